"""`airflow_ft.dry_run`: compute what the next run of a pipeline would deliver, and deliver nothing.

The job runs as usual, from the pipeline's position (a copy of Spark's location, with its state), with its own
temporary decision log and write-ahead log. It takes no epoch and no number of the pipeline, writes no sink and commits
no offset; other runs continue meanwhile. It only reads the pipeline's own decision log, and neither creates nor
migrates it. Then it checks the staged rows against the sinks as `airflow ft doctor` does.
"""

from __future__ import annotations

import logging
import re
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from airflow_ft.pipeline import settings
from airflow_ft.pipeline.run import check_plain_values, spec_of
from airflow_ft.pipeline.spec import PipelineSpec
from airflow_ft.protocol.backpressure import RETAINED_BATCHES, SPARE_BATCHES
from airflow_ft.protocol.dead_letters import DeadLetters
from airflow_ft.protocol.doctor import Check, Verdict, worst
from airflow_ft.protocol.errors import AirflowFtError, ConfigurationError, JobError
from airflow_ft.protocol.failure import with_fix
from airflow_ft.protocol.lease import Worker, new_epoch
from airflow_ft.protocol.model import CheckpointingMode, RunKey
from airflow_ft.protocol.numbers import Numbers, count_text
from airflow_ft.protocol.planning import quarantined

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_ft.protocol.connections import ConnectionResolver
    from airflow_ft.protocol.decision_log import HistoryLog, QueryLog
    from airflow_ft.protocol.model import Pipeline, Segment
    from airflow_ft.protocol.write_ahead_log import SegmentReader
    from airflow_ft.spark.process import Driver
    from airflow_ft.spark.request import StageRequest, StageResult
    from airflow_ft.store.decision_log import DecisionLog

SAMPLES = 5
_OWN = ("samples", "everything", "columns_only")
_ENOUGH = "the columns are known"
_FORGOTTEN = 86_400.0  # seconds, after which a dry run that left its folder must have died
_NAME = re.compile(r"^\.dry-run-(\d+)-[0-9a-f]{8}$")  # below the root of the log; no pipeline can have this name
_RUN = RunKey("dry-run", "dry-run")

log = logging.getLogger(__name__)
spark_log = logging.getLogger("airflow_ft.spark")


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """Result of a dry run.

    rows: by sink. checkpoints: how many there would be; has_more: that was only the beginning of what is there to
    read. columns: by sink, name and type of each (Arrow's), where they are known. samples: by sink, its first rows,
    values as Python has them. checks: what the sinks would say (`airflow ft doctor`) of these columns and rows, and
    whether there are too many dead letters. waiting: rows by sink of checkpoints that are published and not delivered,
    by number: the next run delivers them first, and they are not among `rows`.
    """

    pipeline: str
    checkpoints: int
    rows: Mapping[str, int]
    has_more: bool
    columns: Mapping[str, Mapping[str, str]]
    samples: Mapping[str, Sequence[Mapping[str, Any]]] = field(repr=False)
    checks: Sequence[Check]
    waiting: Mapping[int, Mapping[str, int]] = field(default_factory=dict)

    @property
    def would_be_refused(self) -> bool:
        """Return whether a check found a problem: a run would fail, and not all of it would be delivered."""
        return worst(list(self.checks)) is Verdict.PROBLEM

    @property
    def problems(self) -> Sequence[Check]:
        """The checks that found one."""
        return [check for check in self.checks if check.verdict is Verdict.PROBLEM]

    @property
    def waiting_rows(self) -> Mapping[str, int]:
        """Return the rows of `waiting`, over all of these checkpoints."""
        found: Counter[str] = Counter()
        for rows in self.waiting.values():
            found.update(rows)
        return dict(found)

    def to_json(self) -> dict[str, Any]:
        """Plain data, without samples."""
        return {
            "pipeline": self.pipeline,
            "checkpoints": self.checkpoints,
            "rows": dict(self.rows),
            "has_more": self.has_more,
            "waiting": {**Numbers.of(self.waiting).told(), "rows": self.waiting_rows},
            "columns": {sink: dict(columns) for sink, columns in self.columns.items()},
            "problems": [check.to_json() for check in self.problems],
        }

    def told(self) -> Iterator[str]:
        """In lines, for people: counts, columns, samples, and what the sinks say."""
        if not self.checkpoints:
            yield f"{self.pipeline}: nothing is new{'' if self.waiting else ', so nothing would be delivered'}"
        else:
            more = "; there is more to read behind it" if self.has_more else ""
            yield f"{self.pipeline}: {count_text(self.checkpoints, 'checkpoint')} would be delivered{more}"
        if self.waiting:
            counts = ", ".join(f"{sink} {rows:,}" for sink, rows in self.waiting_rows.items())
            numbers = Numbers.of(self.waiting)
            yield (
                f"the next run also delivers what earlier runs have published, which is not counted below:"
                f" checkpoint{'' if numbers.count == 1 else 's'} {numbers} (rows: {counts})"
            )
        for sink in dict.fromkeys([*self.columns, *self.rows]):
            columns = ", ".join(f"{name} {kind}" for name, kind in self.columns.get(sink, {}).items())
            yield f"{sink}: {count_text(self.rows.get(sink, 0), 'row')}{f' of ({columns})' if columns else ''}"
            for row in self.samples.get(sink, ()):
                yield "  " + ", ".join(f"{name}={_short(value)}" for name, value in row.items())
        for check in self.checks:
            if check.verdict is not Verdict.OK:
                yield with_fix(f"{check.verdict.upper()} {check.subject}: {check.coded}: {check.text}", check.remedy)
        if not self.would_be_refused:
            yield "the sinks would take it" if self.checkpoints else "the sinks are ready"


def dry_run(
    spec: PipelineSpec | None = None,
    *,
    samples: int = SAMPLES,
    everything: bool = False,
    columns_only: bool = False,
    **arguments: Any,
) -> DryRun:
    """Return what the next run of a pipeline would deliver; nothing is delivered, and nothing that stays is written.

    Args:
        spec: the pipeline. A stream is cut once.
        samples: how many rows of each sink are shown.
        everything: all that there is to read now; False: the first checkpoint of it (one slice, where the source says
            how large a slice is).
        columns_only: computes nothing: columns, and what the sinks say of them.
        arguments: instead of `spec` those of `PipelineSpec`, by name. Nothing is rendered: no Jinja.

    Connections are those that the `airflow` command finds.

    Raises JobError for a mistake in the job, and what keeps it from being tried at all; what the sinks would refuse is
    among the `checks`.
    """
    from airflow_ft.pipeline.connections import server_connections

    declared = spec_of(spec, arguments, _OWN)
    check_plain_values(declared)
    return rehearse(declared, server_connections, samples=samples, everything=everything, columns_only=columns_only)


def dry_run_params() -> dict[str, Any]:
    """A field of Airflow's trigger form: `DAG(params=dry_run_params())`; give the pipeline
    `dry_run="{{ params.dry_run }}"`.
    """
    from airflow.sdk import Param

    about = "Compute what would be delivered, and tell it in the log of the task; deliver nothing."
    return {"dry_run": Param(False, type="boolean", title="Dry run", description=about)}


def rehearse(
    spec: PipelineSpec,
    connections: ConnectionResolver,
    *,
    samples: int = SAMPLES,
    everything: bool = False,
    columns_only: bool = False,
    on_line: Callable[[str], None] = spark_log.info,
    on_start: Callable[[Driver], None] = lambda _: None,
) -> DryRun:
    """Run `dry_run` with the given connections; `on_line` receives Spark's lines, `on_start` its process."""
    from airflow_ft.pipeline.decision_log import check_store, participant_factory
    from airflow_ft.pipeline.doctor import examine_sinks
    from airflow_ft.pipeline.steps import require_log, require_sources
    from airflow_ft.wal import open_wal

    spec = settings.resolved(spec)
    if spec.config.mode is CheckpointingMode.AT_MOST_ONCE:
        raise ConfigurationError(
            f"a dry run is impossible in mode {spec.config.mode}, which reads only new records.",
            code="arguments_conflict",
            remedy="Leave out dry_run or mode.",
            pipeline=spec.pipeline,
            arguments=["dry_run", "mode"],
        )
    check_store(spec.store)
    require_log(spec)
    require_sources(spec, connections)
    if (savepoint := spec.savepoint) is not None and savepoint.is_given:
        raise ConfigurationError(
            f"a dry run starts at the position of the pipeline, and cannot start at {savepoint.path}.",
            code="arguments_conflict",
            remedy="Leave out dry_run or from_savepoint. Or restore the savepoint under another name (`airflow ft"
            f" savepoint restore {savepoint.path} --pipeline NAME`), and try that pipeline.",
            pipeline=spec.pipeline,
            arguments=["dry_run", "from_savepoint"],
            path=savepoint.path,
        )
    with _scratch(spec) as (root, url), closing(_log_of(spec, connections, url)) as store:
        stands, waiting = _standing(store, spec), _waiting(store, spec.pipeline)
        attempt = _Attempt(spec, connections, root, url, stands, everything, columns_only)
        segments, result, schemas = attempt.stage(on_line, on_start)
        wal = open_wal()
        readers = [wal.open(each) for each in segments]
        checks = examine_sinks(
            spec.pipeline, spec.delivery.participants, readers, connections, participant_factory(connections), store
        )
        checks += _too_many_dead_letters(spec, segments)
        if not readers and schemas:
            checks += _schema_problems(spec, connections, schemas)
        for reader in readers:
            for sink in reader.sinks():
                if (schema := reader.schema(sink)).names:
                    schemas.setdefault(sink, schema)
        return DryRun(
            pipeline=spec.pipeline,
            checkpoints=len(segments),
            rows={} if result is None else result.rows,
            has_more=result is not None and not result.complete,
            columns={sink: _columns(schema) for sink, schema in schemas.items()},
            samples={sink: _sample(readers, sink, samples) for sink in schemas},
            checks=checks,
            waiting=waiting,
        )


def columns_of(spec: PipelineSpec, connections: ConnectionResolver) -> Mapping[str, pa.Schema]:
    """Return the columns of each sink without any row; omits sinks whose columns depend on rows.

    Raises what `dry_run` does.
    """
    from airflow_ft.pipeline.steps import require_log

    spec = settings.resolved(spec)
    require_log(spec)
    with _scratch(spec) as (root, url):
        with closing(_log_of(spec, connections, url)) as store:
            stands = _standing(store, spec)
        attempt = _Attempt(spec, connections, root, url, stands, everything=False, columns_only=True)
        return attempt.stage(spark_log.info, lambda _: None)[2]


@dataclass(frozen=True, slots=True)
class _Attempt:
    """The staging of a dry run, in a decision log and a write-ahead log of its own."""

    spec: PipelineSpec
    connections: ConnectionResolver
    root: str
    url: str
    stands: Pipeline | None
    everything: bool
    columns_only: bool

    def stage(
        self, on_line: Callable[[str], None], on_start: Callable[[Driver], None]
    ) -> tuple[list[Segment], StageResult | None, dict[str, pa.Schema]]:
        """Return what was staged; None: nothing was computed; the columns by sink, where known without rows."""
        from airflow_ft.spark.task.launcher import run_stage
        from airflow_ft.store import open_store

        schemas: dict[str, pa.Schema] = {}
        pipeline = self.spec.pipeline

        def judge(found: Mapping[str, pa.Schema]) -> Sequence[AirflowFtError]:
            schemas.update(found)
            return [JobError(_ENOUGH)] if self.columns_only else ()  # it ends the driver before anything is computed

        result = None
        with closing(open_store(self.url)) as store:
            before = store.register(pipeline)
            with new_epoch(store, pipeline, Worker(task="dry-run", try_number=1), "dry run") as (epoch, _):
                attempt = store.begin_stage(pipeline, epoch, _RUN, "dry-run", None)
                try:
                    result = run_stage(
                        self._request(before, epoch, attempt),
                        store,
                        log=on_line,
                        on_start=on_start,
                        judge=judge,
                    )
                except JobError as error:
                    if error.what != _ENOUGH:
                        raise
            newest_first = store.checkpoints(pipeline, RETAINED_BATCHES)
            return [each.segment for each in newest_first if each.segment is not None][::-1], result, schemas

    def _request(self, before: Pipeline, epoch: int, attempt: int) -> StageRequest:
        from airflow_ft.pipeline import steps as pipeline_steps

        if self.stands is not None:
            before = replace(before, base=self.stands.base, base_is_clean=False)
        spec = replace(self.spec, store=self.url, wal_root=self.root)
        request = pipeline_steps.request(spec, _RUN, before, epoch, attempt, self.connections)
        config = replace(request.checkpointing, drain=False)
        # As if that many could wait for delivery: a run stops then, and leaves the rest to the next one.
        retained = RETAINED_BATCHES if self.everything else SPARE_BATCHES + 1
        return replace(
            request,
            streaming=False,
            restart=None,
            checkpointing=config,
            retained_batches=retained,
            # Too many of them would keep all rows from being shown; they are told as a check.
            dead_letters=dead.without_bounds if (dead := request.dead_letters) else None,
            keep_session=0.0,  # the pipeline's idle JVM is neither used nor ended, and none is left behind
        )


def _log_of(spec: PipelineSpec, connections: ConnectionResolver, url: str) -> DecisionLog:
    """The pipeline's decision log, as it is; where there is none yet, the one at `url`."""
    from airflow_ft.pipeline.decision_log import find_configured_store
    from airflow_ft.store import open_store

    return find_configured_store(spec.store, connections) or open_store(url)


def _standing(store: HistoryLog, spec: PipelineSpec) -> Pipeline | None:
    """The pipeline as the decision log knows it; None: it never ran."""
    from airflow_ft.spark.state.draining import drain_of, refuse

    try:
        found = store.pipeline(spec.pipeline)
    except KeyError:
        return None
    if not spec.config.resume_drained and (drain := drain_of(store, spec.pipeline)):
        raise refuse(drain)
    return found


def _waiting(store: QueryLog, pipeline: str) -> dict[int, dict[str, int]]:
    """Rows by sink of what earlier runs have published, and the next one delivers."""
    try:
        opened = store.open_checkpoints(pipeline)
    except KeyError:
        return {}
    kept = {checkpoint.number for checkpoint in quarantined(opened)}  # for a person
    return {c.number: dict(c.segment.rows) for c in opened if c.is_undelivered and c.segment and c.number not in kept}


@contextmanager
def _scratch(spec: PipelineSpec) -> Iterator[tuple[str, str]]:
    """Root of a write-ahead log and URL of a decision log, which are gone afterwards.

    In that log is only what the pipeline's own has of where sources begin: "latest" is the moment it was for the run.
    """
    from airflow_ft.spark.state.beginnings import copy_frozen
    from airflow_ft.wal.filesystem import filesystem

    wal_root = spec.wal_root or ""
    files = filesystem(wal_root)
    root = files.uri(wal_root, f".dry-run-{int(time.time())}-{uuid.uuid4().hex[:8]}")
    with suppress(OSError):
        for name in files.names(wal_root) if files.exists(wal_root) else ():
            if (match := _NAME.match(name)) and time.time() - int(match[1]) > _FORGOTTEN:
                log.info("deleted the files of a dry run that died: %s", files.uri(wal_root, name))
                files.remove_tree(files.uri(wal_root, name))
    with TemporaryDirectory(prefix="airflow-ft-dry-run-") as folder:
        try:
            copy_frozen(wal_root, spec.pipeline, root, spec.pipeline)
            yield root, f"sqlite:///{Path(folder) / 'ft.db'}"
        finally:
            if files.exists(root):
                files.remove_tree(root)


def _schema_problems(
    spec: PipelineSpec, connections: ConnectionResolver, schemas: Mapping[str, pa.Schema]
) -> list[Check]:
    """Return the checks of columns alone, without rows."""
    from airflow_ft.sinks.fitting import schema_problems

    return [
        Check(f"sink {error.sink}", "columns", Verdict.PROBLEM, error.what, error.remedy)
        for error in schema_problems(spec.delivery.participants, connections, schemas)
    ]


def _too_many_dead_letters(spec: PipelineSpec, segments: Sequence[Segment]) -> list[Check]:
    """The first checkpoint that has more than are allowed: with it a run would fail."""
    if (dead := DeadLetters.of(spec.dead_letters)) is None:
        return []
    for place, segment in enumerate(segments, 1):
        if told := dead.exceeded(segment.rows.get(dead.sink, 0), segment.total_rows):
            which = f"of checkpoint {place} of {len(segments)}, " if len(segments) > 1 else ""
            remedy = "Correct the source or the job, or allow more."
            return [Check(f"sink {dead.sink}", "dead letters", Verdict.PROBLEM, f"{which}{told}", remedy)]
    return []


def _columns(schema: pa.Schema) -> dict[str, str]:
    return {each.name: str(each.type) for each in schema}


def _sample(readers: Sequence[SegmentReader], sink: str, count: int) -> list[dict[str, Any]]:
    """The first rows of a sink."""
    batches = (
        batch
        for reader in readers
        if sink in reader.sinks()
        for file in reader.files(sink)
        for batch in reader.batches(sink, file)
    )
    return list(islice((row for batch in batches for row in batch.slice(0, count).to_pylist()), count))


def _short(value: Any) -> str:
    text = value.isoformat() if hasattr(value, "isoformat") else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
