"""`PipelineSpec`: all settings of a pipeline's author, in one frozen value. Each task carries its part of it.

Its fields are listed only here. The operators name those that they use as template fields, and `resolve` completes the
pipeline. The decision log keeps the specification of each checkpoint (`to_json`, by its digest).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_ft.pipeline.spec_checks import (
    check_connections,
    check_dead_letters,
    check_folders,
    check_for_streams,
    check_inputs,
    check_late_after,
    check_log_in_bucket,
    check_places,
    check_position,
    check_reading,
    check_sinks,
    check_spark,
    check_split,
    check_targets,
    drains_as_stream,
)
from airflow_ft.pipeline.templates import declared, declared_name, no_suffix, plain, rebuild
from airflow_ft.protocol.argument_names import by_name, unknown_argument
from airflow_ft.protocol.arguments import check_type, is_template, refuse_object, shown, truth, wrong
from airflow_ft.protocol.config import OF_STREAMS, CheckpointConfig
from airflow_ft.protocol.dead_letters import DeadLetters
from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.protocol.from_savepoint import FromSavepoint
from airflow_ft.protocol.inline_job import InlineJob, declared_job
from airflow_ft.protocol.model import CheckpointingMode
from airflow_ft.protocol.planning import Delivery, plan_delivery
from airflow_ft.protocol.restart import ExponentialDelay, RestartStrategy
from airflow_ft.protocol.secrets import without_secrets
from airflow_ft.protocol.sink_spec import HoldingSinkSpec
from airflow_ft.spark.request import check_kept, check_standby

if TYPE_CHECKING:
    from airflow_ft.protocol.sink_spec import SinkSpec
    from airflow_ft.sources import Source

_OF_A_RUN = ("suffix", "position", "from_savepoint", "dry_run", "dry_run_samples", "rewind")


@by_name
@dataclass(frozen=True, kw_only=True)
class PipelineSpec:
    """A pipeline as its author declares it.

    All text in `sources`, `sinks`, `job`, `job_args`, `checkpointing`, `spark_*`, `store` and `wal_root` may contain
    Jinja, except connection ids of sinks: the tasks are named by them.

    Args:
        pipeline: its name, the stable identity of the sources' positions and of the sinks' ledgers: 1 to 63 of the
            characters a-z, 0-9, '_' and '-'. Renaming it begins another pipeline. It may contain Jinja. In a mapped
            task group each map index needs a pipeline of its own, by Jinja here or by `suffix`.
        suffix: text to add to the name, after a '-': an argument of the mapped task group around it, or Jinja.
        job: "package.module" or "package.module:Object" with `transform(spark, sources)` and optionally
            `split(batch)`; imported by Spark's driver, never by the DAG. Or a function or class of the DAG file below
            `@airflow_ft.job`, of which the driver gets the source.
        sources: what the job reads, by the names that it uses (`KafkaSource`, `FileSource`, `SocketSource`,
            `CustomSource`).
        position: instead of job and sources: the position of rows that another program computes (docs/external.md).
        sinks: where the rows go, by the names that the job uses (`MySqlSink`, `KafkaSink`). Sinks of one connection are
            one participant, and become visible together.
        dead_letters: the sink for rows that the job cannot use, by its name; or `DeadLetters`, which says how many
            such rows a checkpoint may have. The job may leave it out. Without a `split` of its own it gets what
            `parse_json(..., on_malformed="keep")` has marked (docs/jobs.md).
        optional_sinks: names of sinks that `split` may leave out, besides that of `dead_letters`.
        checkpointing: time-out, retention and size of deliveries: `CheckpointConfig`, or its settings by name (times
            in seconds), where one is to be rendered: {"timeout": "{{ params.timeout }}"}.
        restart: how often, and after which wait, a failed task is retried (docs/restarts.md): a `RestartStrategy`, or
            its settings by name (times in seconds): {"type": "fixed-delay", "attempts": 5, "delay": 30}. None: 3
            times, 15 s apart, unless the DAG says otherwise. `CheckpointedPipeline` needs it when the DAG is parsed,
            so without Jinja. Operators that are used one by one go by Airflow's own arguments instead.
        commit_point: the connection whose own transaction decides; None: the first ATOMIC one declared, else the
            decision log.
        store: decision log: URL without a password, or id of a PostgreSQL connection; None: `[airflow_ft] store`.
        wal_root: folder (path or URI) of the write-ahead log; None: `[airflow_ft] wal_root`.
        spark_master: for spark-submit, or "conn:<id>" of a Spark connection; None: `[airflow_ft] spark_master`.
        spark_conf: Spark's settings. They override `[airflow_ft] spark_conf`, one by one.
        jars: jar files or folders of them (a list, or text with commas); None: `[airflow_ft] spark_jars`.
        packages: Maven coordinates that Spark fetches besides.
        job_args: plain data for the job.
        keep_session: for how long Spark waits for the next run of this pipeline on the same machine. That run starts no
            JVM, so a small run takes a fraction of the time. Meanwhile Spark holds the driver's memory. Zero: Spark
            ends with its run. None: `[airflow_ft] keep_session`.
        standby: a stream keeps a second driver of Spark that has started and waits, and takes over if the working one
            dies (docs/restarts.md). It needs the memory of a second driver, and a local Spark master.
        overlap: deliver staged checkpoints during the stage, in its process; the tasks behind it deliver the rest. A
            run of many checkpoints is done sooner, and confirms the first ones long before its end. One difference:
            refused rows end the stage.
        streaming: the pipeline runs until it is stopped: one long task triggers a checkpoint every
            `CheckpointConfig.interval`, and delivers it while the next one is computed.
        dry_run: a run computes what it would deliver, logs it with the sinks' objections, and delivers nothing
            (docs/jobs.md): True, or Jinja that becomes "True" or "False", such as "{{ params.dry_run }}" with
            `dry_run_params`.
        dry_run_samples: number of rows of each sink in the log of such a run, visible to its readers; 0: none.
        rewind: a run first computes published, undelivered rows again, once, as `airflow ft rewind` does: True, or
            Jinja as for `dry_run`.
        from_savepoint: the savepoint that a run starts from, once, instead of the pipeline's own state: its path, or a
            `FromSavepoint`, usually Jinja: `FromSavepoint.from_params()` uses the DAG run's parameters
            (`savepoint_params`). Empty text, None: its own state.
        late_after: time without a confirmation, and without a look that found its sources read, after which the
            pipeline is late. It is then LATE on the page and among the problems. For a schedule, give a little more
            than its interval. None: never.
        emit_asset: declare the assets of the pipeline, its sources and its sinks, and update `airflow-ft://<pipeline>`
            and those of sinks that got rows when checkpoints are confirmed.

    Raises ConfigurationError for settings that cannot work, as soon as possible: usually when the DAG is parsed.
    """

    pipeline: str
    suffix: Any = None
    job: str | Callable[..., Any] | InlineJob | None = None
    sources: Mapping[str, Source] = field(default_factory=dict)
    position: Any = None
    sinks: Mapping[str, SinkSpec]
    optional_sinks: Sequence[str] = ()
    dead_letters: DeadLetters | str | None = None
    checkpointing: CheckpointConfig | Mapping[str, Any] = field(default_factory=CheckpointConfig)
    restart: RestartStrategy | Mapping[str, Any] | None = None
    commit_point: str | None = None
    store: str | None = None
    wal_root: str | None = None
    spark_master: str | None = None
    spark_conf: Mapping[str, str] = field(default_factory=dict, repr=False)
    jars: str | Sequence[str] | None = None
    packages: Sequence[str] = ()
    job_args: Mapping[str, Any] = field(default_factory=dict, repr=False)
    keep_session: timedelta | None = None
    standby: bool = False
    overlap: bool = False
    streaming: bool = False
    dry_run: bool | str = False
    dry_run_samples: int = 0
    rewind: bool | str = False
    from_savepoint: FromSavepoint | Mapping[str, Any] | str | None = None
    late_after: timedelta | None = None
    emit_asset: bool = True
    configured: tuple[str, ...] = field(default=(), repr=False, compare=False)
    """What the provider's configuration has said, as `checkpointing.timeout`, `spark_conf.<name>`. Not an argument."""

    def __post_init__(self) -> None:
        for name, default in (("checkpointing", CheckpointConfig()), ("spark_conf", {}), ("job_args", {})):
            if getattr(self, name) is None:
                object.__setattr__(self, name, default)
        if self.job is not None:
            object.__setattr__(self, "job", declared_job(self.job))
        pipeline, suffix = declared_name(self.pipeline, self.suffix)
        object.__setattr__(self, "pipeline", pipeline)
        object.__setattr__(self, "suffix", suffix)
        try:
            self._check_inputs()
            self._check_places()
            self._check_sinks()
            self._check_checkpointing()
            self._check_restart()
            self._check_savepoint()
            self._check_dry_run()
        except ConfigurationError as error:
            error.located(pipeline=pipeline if isinstance(pipeline, str) else "")
            raise

    def _check_inputs(self) -> None:
        if self.is_external:
            return check_position(self.position, vars(self))
        check_inputs(self.job, self.sources, self.job_args)

    def _check_places(self) -> None:
        check_places(self.wal_root, commit_point=self.commit_point, store=self.store, spark_master=self.spark_master)
        check_spark(self.spark_conf, self.jars, self.packages, self.keep_session)
        check_log_in_bucket(self.wal_root, self.spark_master, self.spark_conf, keep_session=self.keep_session)
        check_late_after(self.late_after)
        for name in ("overlap", "streaming", "standby", "emit_asset"):
            check_type(name, getattr(self, name), bool, f"Give True or False as {name}.")
        if self.keep_session:
            check_kept(self._known_master)
        if self.standby:
            check_standby(self._known_master, streaming=self.streaming, keep_session=self.keep_session)

    @property
    def _known_master(self) -> str:
        """The Spark master; "" while it is Jinja, in a connection or in the configuration."""
        found = self.spark_master or self.spark_conf.get("spark.master")
        is_known = isinstance(found, str) and not is_template(found) and not found.startswith("conn:")
        return str(found) if is_known else ""

    def _check_sinks(self) -> None:
        check_sinks(self.sinks, self.optional_sinks)
        object.__setattr__(self, "dead_letters", DeadLetters.of(self.dead_letters))
        if self.dead_letters is not None:
            check_dead_letters(self.sinks, self.optional)
        check_connections(self.sinks, self.wal_root)
        check_targets(self.sinks)
        check_folders(self.sources, self.sinks)
        if not is_template(self.commit_point):
            plan_delivery(declared(self.sinks), self.commit_point)
        check_split(self.job, self.sinks, self.optional)

    def _check_checkpointing(self) -> None:
        remedy = "Give a CheckpointConfig, such as CheckpointConfig(timeout=timedelta(minutes=10))."
        check_type("checkpointing", self.checkpointing, (CheckpointConfig, Mapping), remedy)
        if isinstance(self.checkpointing, Mapping):
            for name, value in self.checkpointing.items():
                refuse_object(f"checkpointing[{name!r}]", str(value) if isinstance(value, str) else "")
        if isinstance(self.checkpointing, Mapping) and not self.is_rendered:
            known = {name: value for name, value in self.checkpointing.items() if not is_template(value)}
            if "unaligned" not in known and "unaligned" in self.checkpointing:  # a run says whether that is in order
                known.pop("aligned_timeout", None)
            CheckpointConfig.from_json(known)
            check_for_streams([name for name in OF_STREAMS if name in self.checkpointing], streaming=self.streaming)
            return
        if not is_template(self.commit_point):
            plan_delivery(declared(self.sinks), self.commit_point, self.config.mode)
        check_for_streams(self.config.given_to_streams, streaming=self.streaming)
        if "mode" in self.config.given:  # as below
            self.check_mode()
        if self.streaming and self.config.drain:
            raise drains_as_stream()
        if "timeout" in self.config.given:  # else the provider's configuration may say it
            self.check_holding(self.config)

    def _check_restart(self) -> None:
        remedy = "Give a restart strategy, such as FixedDelay(attempts=5, delay=timedelta(seconds=30))."
        check_type("restart", self.restart, (RestartStrategy, Mapping), remedy, optional=True)
        if not isinstance(self.restart, Mapping):
            return
        known = {name: value for name, value in self.restart.items() if not is_template(value)}
        if len(known) == len(self.restart):
            object.__setattr__(self, "restart", RestartStrategy.from_json(known))
        elif "type" in known or "type" not in self.restart:
            RestartStrategy.read(known)

    def _check_savepoint(self) -> None:
        object.__setattr__(self, "from_savepoint", FromSavepoint.of(self.from_savepoint))
        if self.savepoint is not None and self.is_rendered and self.config.mode is CheckpointingMode.AT_MOST_ONCE:
            what = f"mode {self.config.mode} reads only new records, so it cannot start from a savepoint."
            given, remedy = ["from_savepoint", "mode"], "Leave out from_savepoint or mode."
            raise ConfigurationError(what, code="arguments_conflict", remedy=remedy, arguments=given)

    def _check_dry_run(self) -> None:
        for name in ("dry_run", "rewind"):
            if not is_template(given := getattr(self, name)):
                truth(name, given)
        check_type("dry_run_samples", self.dry_run_samples, int, "Give a number of rows as dry_run_samples.")
        if self.dry_run_samples < 0:
            raise wrong("dry_run_samples", shown(self.dry_run_samples), "Give 0 or more rows as dry_run_samples.")

    def check_mode(self) -> None:
        """ConfigurationError when the mode cannot be kept with what is read here, or by the run of a schedule."""
        check_reading(self.config.mode, self.sources, streaming=self.streaming)

    def check_holding(self, config: CheckpointConfig) -> None:
        """ConfigurationError, naming the sink, when one cannot hold its rows for as long as a checkpoint may take."""
        for name, sink in self.sinks.items():
            if isinstance(sink, HoldingSinkSpec):
                try:
                    sink.check_checkpointing(config)
                except ConfigurationError as error:
                    error.located(sink=name)
                    raise

    @property
    def is_rendered(self) -> bool:
        """Return whether `checkpointing` is known before a run: none of it is Jinja."""
        given = self.checkpointing
        return isinstance(given, CheckpointConfig) or not any(map(is_template, given.values()))

    @property
    def config(self) -> CheckpointConfig:
        """`checkpointing`; ConfigurationError while it contains Jinja."""
        given = self.checkpointing
        return given if isinstance(given, CheckpointConfig) else CheckpointConfig.from_json(given)

    @property
    def is_external(self) -> bool:
        """Return whether a program of the author computes the rows, and no job."""
        return self.position is not None

    @property
    def optional(self) -> frozenset[str]:
        """The sinks that the job may leave out."""
        dead = [self.dead_letters.sink] if isinstance(self.dead_letters, DeadLetters) else []
        return frozenset((*self.optional_sinks, *dead))

    @property
    def savepoint(self) -> FromSavepoint | None:
        """`from_savepoint`."""
        return FromSavepoint.of(self.from_savepoint)

    @property
    def is_dry_run(self) -> bool:
        """`dry_run`; ConfigurationError for what is neither yes nor no."""
        return truth("dry_run", self.dry_run)

    @property
    def is_rewind(self) -> bool:
        """`rewind`; ConfigurationError for what is neither yes nor no."""
        return truth("rewind", self.rewind)

    @property
    def strategy(self) -> RestartStrategy:
        """Return how a stream is restarted; ConfigurationError while that contains Jinja."""
        given = self.restart or ExponentialDelay()
        return RestartStrategy.from_json(given) if isinstance(given, Mapping) else given

    @property
    def delivery(self) -> Delivery:
        """Return who takes part in a delivery, and who decides."""
        return plan_delivery(self.sinks, self.commit_point, self.config.mode)

    def plain(self, name: str) -> Any:
        """A field in containers that Airflow renders, and shows."""
        value = getattr(self, name)
        if isinstance(value, InlineJob):  # source is no template
            return value
        is_settings = isinstance(value, CheckpointConfig | RestartStrategy | FromSavepoint)
        return value.to_json() if is_settings else plain(value)

    def rendered(self, values: Mapping[str, Any]) -> PipelineSpec:
        """Return the specification with rendered fields (in the form of `plain`), checked again."""
        changed = dict(values)
        if self.suffix is not None and changed.get("suffix", self.suffix) is None:
            raise no_suffix(self.pipeline, None)  # the name without one is another pipeline's
        for name in ("sources", "sinks"):
            if name in changed:
                changed[name] = rebuild(getattr(self, name), changed[name], kind=name.removesuffix("s"))
        if "checkpointing" in changed:
            changed["checkpointing"] = CheckpointConfig.from_json(changed["checkpointing"])
        if changed.get("restart") is not None:
            changed["restart"] = RestartStrategy.from_json(changed["restart"])
        return replace(self, **changed)

    def to_json(self) -> dict[str, Any]:
        """Plain data for the decision log, the CLI and the page, without secrets; what only a run knows is left out."""
        found = {each.name: self.plain(each.name) for each in fields(self) if each.name not in _OF_A_RUN}
        found |= {"sources": {name: source.to_json() for name, source in self.sources.items()}, "sinks": {}}
        for name, sink in self.sinks.items():
            named = {"kind": sink.kind, "conn_id": sink.conn_id, "strategy": sink.strategy}
            found["sinks"][name] = {**named, "promise": sink.promise.value, **sink.settings()}
        if isinstance(self.job, InlineJob):
            found |= {"job": self.job.reference, "job_sha256": self.job.sha256, "job_source": self.job.shown_source}
        for name in ("keep_session", "late_after"):
            given = getattr(self, name)
            found[name] = None if given is None else given.total_seconds()
        plainly = json.loads(json.dumps(found, default=lambda _: "known in a run"))
        parts: dict[str, Any] = {  # by name, because a source or sink may be called "tokens"
            part: {name: without_secrets(each) for name, each in plainly.pop(part).items()}
            for part in ("sources", "sinks")
        }
        safe: dict[str, Any] = without_secrets(plainly)
        return safe | parts


SPEC_FIELDS = tuple(each.name for each in fields(PipelineSpec) if each.name != "configured")


def defaults() -> dict[str, Any]:
    """Return the default of each field, as in `PipelineSpec.to_json`; omits what a pipeline needs."""
    given = {each.name: each for each in fields(PipelineSpec) if each.name not in ("job", "sources")}
    found = {name: each.default for name, each in given.items() if each.default is not MISSING}
    found |= {name: each.default_factory() for name, each in given.items() if each.default_factory is not MISSING}
    plainly: dict[str, Any] = json.loads(json.dumps(found, default=lambda _: {}))
    return plainly


def take_spec(arguments: Mapping[str, Any], others: Sequence[str]) -> tuple[PipelineSpec, dict[str, Any]]:
    """Return a specification from keyword arguments, and the rest of them: arguments named in `others`.

    Raises:
        ConfigurationError: arguments are unknown or missing.
    """
    known = {name: value for name, value in arguments.items() if name in SPEC_FIELDS}
    left = {name: value for name, value in arguments.items() if name not in SPEC_FIELDS}
    for name in left:
        if name not in others:
            raise unknown_argument(name, [*SPEC_FIELDS, *others], "a pipeline has")
    rows = () if "position" in known else ("job", "sources")
    for name in ("pipeline", *rows, "sinks"):
        if name not in known:
            remedy = f"Give {name}=..."
            remedy += ", or position=... if another program computes the rows." if name == "job" else ""
            raise ConfigurationError(f"{name} is missing.", code="argument_missing", remedy=remedy, argument=name)
    return PipelineSpec(**known), left
