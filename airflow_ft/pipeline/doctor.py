"""`airflow ft doctor`: every preflight of a pipeline's store, write-ahead log, Spark, sources and sinks, in words.

What is looked at comes from the decision log (a pipeline that has run: its newest plan) or from the DAG (one that never
ran). Systems are examined side by side; nothing that stays is written anywhere.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_ft.pipeline.output_mode import declared_mode, examine_mode
from airflow_ft.pipeline.script_errors import command_of_script, is_script
from airflow_ft.pipeline.sink_doctor import examine_sink
from airflow_ft.pipeline.spark_connection import spark_master
from airflow_ft.protocol.adoption import declared_sinks
from airflow_ft.protocol.arguments import is_template
from airflow_ft.protocol.decision_log import QueryLog
from airflow_ft.protocol.doctor import Check, Examination, examine_state
from airflow_ft.protocol.errors import AirflowFtError, ConfigurationError, filled
from airflow_ft.protocol.model import ParticipantPlan
from airflow_ft.protocol.secrets import HIDDEN
from airflow_ft.spark.request import listed

if TYPE_CHECKING:
    from airflow_ft.pipeline.resolved import SparkSettings
    from airflow_ft.protocol.connections import ConnectionResolver
    from airflow_ft.protocol.decision_log import QueryLog
    from airflow_ft.protocol.model import Segment
    from airflow_ft.protocol.participant import ParticipantFactory
    from airflow_ft.protocol.planning import Delivery
    from airflow_ft.protocol.write_ahead_log import SegmentReader, WalReader
    from airflow_ft.sources import Source
    from airflow_ft.store.decision_log import DecisionLog


_NAME_IT = (
    "Name the file of its DAG: `airflow ft doctor {} --dag FILE`. Without a DAG, run its script: the decision log then"
    " names the sinks, even if the run fails."
)


@dataclass(frozen=True, slots=True)
class Patient:
    """Pipeline to examine. Without `participants` the decision log lists them; only a DAG knows `sources`.

    `spark_master` may name a connection ("conn:<id>"). `left_out` are parts of the DAG that cannot be examined, and
    why. `job` names the module of a job; "": it has none, or only a run knows it. `output_mode` is that of a job of
    the DAG file; "": unknown. `store` is the DAG's decision log; None: the configured one. `computes`: it has a job of
    Spark; None: the decision log knows that, and its settings. `dag_file` is for remedies; "": unknown.
    `structure` are checks of the DAG itself. `of_script`: a script runs the pipeline, so no DAG file declares it.
    """

    pipeline: str
    wal_root: str
    participants: Mapping[str, ParticipantPlan] = field(default_factory=dict)
    sources: Mapping[str, Source] = field(default_factory=dict)
    spark_master: str = ""
    jars: Sequence[str] = ()
    spark_conf: Mapping[str, str] = field(default_factory=dict, repr=False)
    left_out: Mapping[str, str] = field(default_factory=dict)
    job: str = ""
    output_mode: str = ""
    store: str | None = None
    computes: bool | None = None
    dag_file: str = ""
    structure: Sequence[Check] = ()
    of_script: bool = False

    @classmethod
    def of(
        cls,
        pipeline: str,
        wal_root: str,
        spark: SparkSettings,
        delivery: Delivery | None,
        sources: Mapping[str, Source],
        **more: Any,
    ) -> Patient:
        """A pipeline as it is declared."""
        return cls(
            pipeline=pipeline,
            wal_root=wal_root,
            participants={participant.name: participant for participant in delivery.participants} if delivery else {},
            sources=sources,
            spark_master=spark.master,
            jars=spark.jars,
            spark_conf=_with_packages(spark.conf, spark.packages),
            **more,
        )


def examine(
    patient: Patient, open_store: Callable[[], DecisionLog], connections: ConnectionResolver, opener: ParticipantFactory
) -> list[Check]:
    """All checks, grouped by system; never raises for what it finds.

    `opener` opens a participant, to read what its sink remembers. The store that `open_store` opens is closed.
    """
    from airflow_ft.wal import open_wal

    wal = open_wal()
    log = Examination("decision log")
    store = log.attempt("reachable", open_store)
    checks = list(log.checks)
    dag = Examination("DAG")
    for part, why in patient.left_out.items():
        dag.warn(
            part,
            f"not examined, because only a run can render it: {why}",
            "Do nothing if only a run has the value, such as {{ ds }}. If it is a param, give the param a default.",
        )
    checks += [*dag.checks, *patient.structure, *_configuration()]
    participants: Mapping[str, ParticipantPlan] = patient.participants
    needed: list[Segment] = []
    newest: list[SegmentReader] = []
    if store is not None:
        try:
            checks += _store(store, patient.pipeline, is_declared=bool(patient.participants or patient.sources))
            participants = participants or _known(store, patient.pipeline, checks)
            needed, newest = _rows(store, patient.pipeline, wal)
            if patient.computes is None:
                patient = _as_last_run(patient, store)
            with suppress(KeyError):  # it never ran
                patient = replace(patient, of_script=not patient.dag_file and is_script(store, patient.pipeline))
        except AirflowFtError as error:
            unread = Examination("decision log")
            unread.failed("examination", error)
            checks += unread.checks
    tasks: list[Callable[[], list[Check]]] = [
        lambda: _wal(patient.wal_root, wal, needed, store),
        *([lambda: _spark(patient, connections)] if patient.computes else []),
        *([lambda: _location(patient, store)] if patient.computes and store is not None else []),
        lambda: _job(patient, participants.values()),
        *(lambda n=n, s=s: _source(n, s, connections) for n, s in patient.sources.items()),
        *(
            lambda p=p: examine_sink(patient.pipeline, p, connections, newest, opener, store)
            for p in participants.values()
        ),
    ]
    checks += _together(tasks)
    if store is not None:
        store.close()
    checks = [replace(each, remedy=filled(each.remedy, patient.pipeline, patient.dag_file)) for each in checks]
    return [replace(each, remedy=command_of_script(each.remedy)) for each in checks] if patient.of_script else checks


def module_of(job: object) -> str:
    """Return what a pipeline gives as `job` if it names a module, otherwise "" (a job of the DAG file, Jinja)."""
    return job if isinstance(job, str) and not is_template(job) else ""


def examine_sinks(
    pipeline: str,
    participants: Sequence[ParticipantPlan],
    rows: Sequence[SegmentReader],
    connections: ConnectionResolver,
    opener: ParticipantFactory,
    store: DecisionLog | None,
) -> list[Check]:
    """The sinks alone, and whether they would take these segments: columns and values."""
    look = partial(examine_sink, pipeline, connections=connections, rows=rows, opener=opener, store=store, values=True)
    return _together([partial(look, plan=each) for each in participants])


def _together(tasks: Sequence[Callable[[], list[Check]]]) -> list[Check]:
    """Return what all of them find, side by side."""
    with ThreadPoolExecutor(8, thread_name_prefix="airflow-ft-doctor") as pool:
        return [check for found in pool.map(lambda task: task(), tasks) for check in found]


def _configuration() -> list[Check]:
    """Return a warning for each option of the configuration that nothing reads."""
    from airflow_ft.pipeline import options

    exam = Examination("configuration")
    for name, (text, remedy) in options.unknown_options().items():
        exam.warn(name, text, remedy, options.CODE)
    return exam.checks


def _store(store: DecisionLog, pipeline: str, *, is_declared: bool) -> list[Check]:
    from airflow_ft.store.doctor import examine_store

    return [*examine_store(store), *examine_state(store, pipeline, is_declared=is_declared)]


def _known(store: QueryLog, pipeline: str, checks: list[Check]) -> Mapping[str, ParticipantPlan]:
    try:
        return declared_sinks(store, pipeline)
    except (KeyError, ConfigurationError):
        exam = Examination(f"pipeline {pipeline}")
        exam.warn(
            "sinks",
            "its sinks are unknown before the first checkpoint, so none was examined",
            _NAME_IT.format(pipeline),
        )
        checks += exam.checks
        return {}


def _rows(store: QueryLog, pipeline: str, wal: WalReader) -> tuple[list[Segment], list[SegmentReader]]:
    """Segments that are not delivered yet, and the newest one whose files are there."""
    try:
        needed = [c.segment for c in store.open_checkpoints(pipeline) if c.is_undelivered and c.segment]
        there = store.referenced_locations(pipeline)
        newest = (c.segment for c in store.checkpoints(pipeline, 50) if c.segment and c.segment.location in there)
    except KeyError:
        return [], []
    for segment in newest:
        try:
            return needed, [wal.open(segment)]
        except AirflowFtError:  # the check of the log reports it, if it is needed
            return needed, []
    return needed, []


def _wal(root: str, wal: WalReader, needed: Sequence[Segment], store: DecisionLog | None) -> list[Check]:
    from airflow_ft.wal.doctor import examine_wal

    return examine_wal(root, wal, needed, store)


def _with_packages(conf: Mapping[str, str], packages: Sequence[str]) -> dict[str, str]:
    """Return the settings of Spark with these packages after their own."""
    return {**conf, "spark.jars.packages": ",".join((*listed(conf.get("spark.jars.packages", "")), *packages))}


def _as_last_run(patient: Patient, store: DecisionLog) -> Patient:
    """Return the patient with the pipeline's own settings of the newest recorded specification.

    Settings from the configuration, secrets and Jinja stay as the configuration has them now.
    """
    spec: Mapping[str, Any] = {"job": ""}  # if none is recorded: assume that Spark computes
    with suppress(KeyError):
        newest = next((c for c in store.checkpoints(patient.pipeline, 50) if c.spec), None)
        spec = store.spec(newest.spec) if newest is not None else spec
    configured = spec.get("configured", ())
    own = {name: spec[name] for name in ("wal_root", "spark_master") if spec.get(name) and name not in configured}
    if spec.get("jars") is not None and "jars" not in configured:
        own["jars"] = listed(spec["jars"])
    conf = {
        name: value
        for name, value in (spec.get("spark_conf") or {}).items()
        if f"spark_conf.{name}" not in configured and HIDDEN not in str(value) and not is_template(value)
    }
    conf = _with_packages({**patient.spark_conf, **conf}, listed(spec.get("packages") or ()))
    return replace(patient, spark_conf=conf, computes=spec.get("job") is not None, **own)


def _spark(patient: Patient, connections: ConnectionResolver) -> list[Check]:
    from airflow_ft.spark.task.doctor import examine_spark

    exam, sources = Examination("spark"), patient.sources.values()
    master = exam.attempt("master", lambda: spark_master(patient.spark_master, connections))
    return exam.checks + examine_spark(
        master,
        patient.jars,
        patient.spark_conf,
        needs_connector=any(source.needs_connector for source in sources) if sources else None,
        wal_root=patient.wal_root,
    )


def _location(patient: Patient, store: QueryLog) -> list[Check]:
    """Look for Spark's own checkpoint, from which the next run continues, if it lies in the log that is examined."""
    from airflow_ft.spark.state.locations import SparkLocation, location_root, require_batch
    from airflow_ft.wal.filesystem import filesystem

    exam = Examination(f"pipeline {patient.pipeline}")
    with suppress(KeyError):  # it never ran
        base = store.pipeline(patient.pipeline).base
        if base is not None and location_root(base.location) == filesystem(patient.wal_root).uri(patient.wal_root):
            location = SparkLocation.of(base, patient.pipeline)
            exam.passes(
                "spark's checkpoint", f"{base.location} has batch {base.batch}", lambda: require_batch(location)
            )
    return exam.checks


def _job(patient: Patient, participants: Iterable[ParticipantPlan] = ()) -> list[Check]:
    """Look for the module of the job without importing it, as Spark's driver would from this machine."""
    exam, module = Examination("job"), patient.job.partition(":")[0]
    if patient.computes:
        command = filled("`airflow ft dry-run`", patient.pipeline, patient.dag_file)
        runs = "`airflow_ft.dry_run` runs a job of `airflow_ft.run`" if patient.of_script else f"{command} runs the job"
        exam.ok("rows", f"not computed, so its columns and names of sinks were not checked: {runs}")
    if not module:
        return exam.checks + examine_mode(patient.output_mode, participants)
    path = [*sys.path, *([str(Path(patient.dag_file).absolute().parent)] if patient.dag_file else [])]
    origin = module_origin(module, path)
    if origin:
        exam.ok("module", f"{module} is {origin}")
    else:
        exam.problem(
            "module",
            f"the module {module} is not in the DAG's folder, and not on Python's path",
            "Correct job= in the DAG, or put the module into Airflow's DAG folder or PYTHONPATH.",
            "module_missing",
        )
    return exam.checks + examine_mode(declared_mode(patient.job, origin), participants)


def module_origin(module: str, path: Sequence[str]) -> str:
    """Return the file or folder of a module; "": none. Imports no package on the way."""
    found = None
    for name in module.split("."):
        found = PathFinder.find_spec(name, path)
        if found is None:
            return ""
        path = list(found.submodule_search_locations or ())
    return "" if found is None else found.origin or next(iter(path), "")


def _source(name: str, source: Source, connections: ConnectionResolver) -> list[Check]:
    from airflow_ft.sources.doctor import examine_source

    return examine_source(name, source, connections)
