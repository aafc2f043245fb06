"""`PipelineSpec`: all that a pipeline's author says, in one frozen value. Each task carries its part of it.

Its fields are listed here and nowhere else: the operators name those that they use as template fields, the driver gets
it whole, and the decision log keeps what each checkpoint was made with (`to_json`, by its digest).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from datetime import timedelta
from difflib import get_close_matches
from inspect import isclass
from typing import TYPE_CHECKING, Any

from airflow_ft.pipeline.templates import declared, declared_name, no_suffix, plain, rebuild
from airflow_ft.protocol.arguments import (
    check_job,
    check_key,
    check_known,
    check_plain,
    check_text,
    check_texts,
    check_type,
    is_resolved_later,
    is_template,
    refuse_object,
    shown,
    truth,
    wrong,
)
from airflow_ft.protocol.config import OF_STREAMS, CheckpointConfig, check_name
from airflow_ft.protocol.dead_letters import DeadLetters
from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.protocol.from_savepoint import FromSavepoint
from airflow_ft.protocol.inline_job import InlineJob, declared_job
from airflow_ft.protocol.model import CheckpointingMode
from airflow_ft.protocol.planning import Delivery, plan_delivery
from airflow_ft.protocol.restart import ExponentialDelay, RestartStrategy
from airflow_ft.protocol.secrets import without_secrets
from airflow_ft.protocol.sink_spec import HoldingSinkSpec
from airflow_ft.sinks.registry import system
from airflow_ft.sources.groups import check_groups
from airflow_ft.sources.modes import check_mode

if TYPE_CHECKING:
    from airflow_ft.protocol.sink_spec import SinkSpec
    from airflow_ft.sources import Source

_SINK = ("kind", "conn_id", "strategy", "promise", "at_least_once", "settings")
_OF_A_RUN = ("suffix", "from_savepoint", "dry_run", "dry_run_samples", "rewind")
_SOURCE = ("conn_id", "to_json", "read")
_ROOTS = ("/", "file:/", "hdfs://")


@dataclass(frozen=True, kw_only=True)
class PipelineSpec:
    """A pipeline as its author declares it.

    All text in `sources`, `sinks`, `job`, `job_args`, `checkpointing`, `spark_*`, `store` and `wal_root` may contain
    Jinja, except connection ids of sinks: the tasks are named by them.

    Args:
        pipeline: its name, the stable identity of the sources' positions and of the sinks' ledgers: 1 to 63 of the
            characters a-z, 0-9, '_' and '-'. Renaming it begins another pipeline. It may contain Jinja. In a mapped
            task group each map index needs a pipeline of its own, by Jinja here or by `suffix`.
        suffix: what follows the name, after a '-': an argument of the mapped task group around it, or Jinja.
        job: "package.module" or "package.module:Object" with `transform(spark, sources)` and optionally
            `split(batch)`; imported by Spark's driver, never by the DAG. Or a function or class of the DAG file below
            `@airflow_ft.job`, of which the driver gets the source.
        sources: what the job reads, by the names it uses (`KafkaSource`, `FileSource`, `SocketSource`,
            `CustomSource`).
        sinks: what its rows go into, by the names it uses (`MySqlSink`, `KafkaSink`). Sinks of one connection are one
            participant, and become visible together.
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
        store: decision log: a URL without a password, or the id of a PostgreSQL connection; None: `[airflow_ft]
            store`.
        wal_root: folder (path or URI) of the write-ahead log; None: `[airflow_ft] wal_root`.
        spark_master: for spark-submit, or "conn:<id>" of a Spark connection; None: `[airflow_ft] spark_master`.
        spark_conf: settings that go before those of `[airflow_ft] spark_conf`, one by one.
        jars: jar files or folders of them (a list, or text with commas); None: `[airflow_ft] spark_jars`.
        packages: Maven coordinates that Spark fetches besides.
        job_args: plain data for the job.
        keep_session: for how long Spark waits for the next run of this pipeline on the same machine, which then needs
            no start of a JVM: a small run takes a fraction of the time. It holds the driver's memory meanwhile; zero:
            it ends with its run. None: `[airflow_ft] keep_session`.
        overlap: deliver staged checkpoints during the stage, in its process; the tasks behind it deliver the rest. A
            run of many checkpoints is done sooner, and confirms the first ones long before its end. One difference:
            refused rows end the stage.
        streaming: the pipeline runs until it is stopped: one long task triggers a checkpoint every
            `CheckpointConfig.interval`, and delivers it while the next one is computed.
        dry_run: a run computes what it would deliver, logs it with the sinks' objections, and delivers nothing
            (docs/jobs.md): True, or Jinja that becomes "True" or "False", such as "{{ params.dry_run }}" with
            `dry_run_params`.
        dry_run_samples: number of rows of each sink in the log of such a run, visible to its readers; 0: none.
        rewind: a run computes once more, before anything else, what is published and not delivered, as `airflow ft
            rewind` does, once: True, or Jinja as of `dry_run`.
        from_savepoint: the savepoint that a run starts from, once, instead of the pipeline's own state: its path, or a
            `FromSavepoint`, usually Jinja: `FromSavepoint.from_params()` uses the DAG run's parameters
            (`savepoint_params`). Empty text, None: its own state.
        late_after: time after which the pipeline is late (LATE on the page, among the problems) without a confirmation
            and without a look that found its sources read; for a schedule, a little more than its interval. None:
            never.
        emit_asset: declare the assets of the pipeline, its sources and its sinks, and update `airflow-ft://<pipeline>`
            and those of sinks that got rows when checkpoints are confirmed.

    Raises ConfigurationError for settings that cannot work, as soon as possible: usually when the DAG is parsed.
    """

    pipeline: str
    suffix: Any = None
    job: str | Callable[..., Any] | InlineJob
    sources: Mapping[str, Source]
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
        object.__setattr__(self, "job", declared_job(self.job))
        pipeline, suffix = declared_name(self.pipeline, self.suffix)
        object.__setattr__(self, "pipeline", pipeline)
        object.__setattr__(self, "suffix", suffix)
        checks = (
            self._check_job,
            self._check_places,
            self._check_sinks,
            self._check_split,
            self._check_checkpointing,
            self._check_restart,
            self._check_savepoint,
            self._check_dry_run,
        )
        for check in checks:
            try:
                check()
            except ConfigurationError as error:
                error.located(pipeline=pipeline if isinstance(pipeline, str) else "")
                raise

    def _check_job(self) -> None:
        if not is_template(self.job) and not is_resolved_later(self.job):
            check_job(self.job)
        _check_specs("source", self.sources, _SOURCE, 'KafkaSource(topics=["orders"])')
        if not self.sources:
            raise ConfigurationError(
                "the pipeline has no sources.",
                code="argument_missing",
                remedy='Declare at least one, such as sources={"orders": KafkaSource(topics=["orders"])}.',
                argument="sources",
            )
        check_groups(self.sources)
        check_type("job_args", self.job_args, Mapping, 'Give a dictionary, such as {"limit": 100}.')
        for name in self.job_args:
            check_key("job_args", name)
        check_plain("job_args", self.job_args)
        if isinstance(self.job, InlineJob):  # a module is not imported here: its job is asked in the driver
            self.job.check_arguments(list(self.job_args))

    def _check_split(self) -> None:
        """Check the split of a job of the DAG file, which is known; the driver checks a module after the import."""
        apart = [name for name in self.sinks if name not in self.optional]
        if isinstance(self.job, InlineJob) and not self.job.divides and len(apart) > 1:
            raise ConfigurationError(
                f"the job {self.job.reference} has no split(batch), but several sinks: {', '.join(apart)}.",
                code="split_missing",
                remedy="Write a class below @job with transform(self, spark, sources) and split(self, batch), which"
                " returns {sink name: DataFrame}.",
                job=self.job.reference,
                sinks=apart,
            )

    def _check_places(self) -> None:
        for name in ("commit_point", "store", "wal_root", "spark_master"):
            check_text(name, getattr(self, name), optional=True)
        if self.wal_root and not is_template(self.wal_root) and not self.wal_root.startswith(_ROOTS):
            raise wrong(
                "wal_root",
                shown(self.wal_root),
                "Give an absolute path, a file:/// URI, or hdfs://NAMENODE:PORT/PATH as wal_root.",
                code="path_invalid",
            )
        check_type("spark_conf", self.spark_conf, Mapping, 'Give a dictionary, such as {"spark.driver.memory": "2g"}.')
        for name, value in dict[str, Any](self.spark_conf).items():
            check_key("spark_conf", name)
            if isinstance(value, str):
                refuse_object(f"spark_conf[{name!r}]", value)
            elif not is_resolved_later(value):  # it may be a secret: show only its type
                remedy = f'Give text: {{"{name}": "..."}}.'
                raise wrong(f"spark_conf[{name!r}]", f"a {type(value).__name__}", remedy)
        if isinstance(self.jars, str):
            refuse_object("jars", self.jars)
        elif self.jars is not None and not is_resolved_later(self.jars):
            check_texts("jars", self.jars)
        check_texts("packages", self.packages)
        if self.keep_session is not None and (
            not isinstance(self.keep_session, timedelta) or self.keep_session < timedelta(0)
        ):
            raise wrong(
                "keep_session", shown(self.keep_session), "Give timedelta(minutes=15), or timedelta(0) for none."
            )
        if self.late_after is not None and (
            not isinstance(self.late_after, timedelta) or self.late_after <= timedelta(0)
        ):
            raise wrong(
                "late_after",
                shown(self.late_after),
                "Give a timedelta, such as timedelta(hours=26) for a daily pipeline, or leave late_after out.",
            )
        for name in ("overlap", "streaming", "emit_asset"):
            check_type(name, getattr(self, name), bool, f"Give True or False as {name}.")

    def _check_sinks(self) -> None:
        _check_specs("sink", self.sinks, _SINK, 'MySqlSink(table="shop.orders")')
        check_texts("optional_sinks", self.optional_sinks)
        check_known("optional_sinks", tuple(self.optional_sinks))
        if unknown := sorted(set(self.optional_sinks) - set(self.sinks)):
            raise _no_sink("optional_sinks", unknown, self.sinks)
        object.__setattr__(self, "dead_letters", DeadLetters.of(self.dead_letters))
        if self.dead_letters is not None and self.optional.issuperset(self.sinks):
            raise ConfigurationError(
                f"the pipeline has only the sink of dead letters: {', '.join(sorted(self.optional))}.",
                code="argument_missing",
                remedy="Declare a sink for the other rows.",
                argument="sinks",
            )
        if unknown := sorted(self.optional - set(self.sinks)):
            raise _no_sink("dead_letters", unknown, self.sinks)
        for name, sink in self.sinks.items():
            if is_resolved_later(sink.conn_id):
                raise ConfigurationError(
                    "its connection id is known only in a run, but the names of tasks contain it.",
                    code="value_known_too_late",
                    remedy="Write the id itself as conn_id. If it must vary, use the single operators.",
                    sink=name,
                    argument="conn_id",
                )
            system(sink.kind).require_clients()
        if not is_template(self.commit_point) and not is_resolved_later(self.commit_point):
            plan_delivery(declared(self.sinks), self.commit_point)

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
            self._check_for_streams([name for name in OF_STREAMS if name in self.checkpointing])
            return
        if not is_template(self.commit_point) and not is_resolved_later(self.commit_point):
            plan_delivery(declared(self.sinks), self.commit_point, self.config.mode)
        self._check_for_streams(self.config.given_to_streams)
        if "mode" in self.config.given:  # as below
            self.check_mode()
        if self.streaming and self.config.drain:
            raise ConfigurationError(
                "CheckpointConfig.drain is for scheduled pipelines, but this one is a stream.",
                code="arguments_conflict",
                remedy="Leave drain out, and stop the stream with `airflow ft stop --drain`.",
                arguments=["drain", "streaming"],
            )
        if "timeout" in self.config.given:  # else the provider's configuration may say it
            self.check_holding(self.config)

    def _check_for_streams(self, given: Sequence[str]) -> None:
        if given and not self.streaming:
            raise ConfigurationError(
                f"CheckpointConfig.{given[0]} is for streams, but this pipeline is scheduled.",
                code="needs_streaming",
                remedy=f"Add streaming=True, or leave {given[0]} out. The checkpoints of a scheduled run follow from"
                " its schedule and the limits of its sources (max_offsets_per_trigger, max_files_per_trigger, ...).",
                argument=given[0],
            )

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
            raise ConfigurationError(
                f"mode {self.config.mode} reads only new records, so it cannot start from a savepoint.",
                code="arguments_conflict",
                remedy="Leave out from_savepoint or mode.",
                arguments=["from_savepoint", "mode"],
            )

    def _check_dry_run(self) -> None:
        for name in ("dry_run", "rewind"):
            if not is_template(given := getattr(self, name)) and not is_resolved_later(given):
                truth(name, given)
        check_type("dry_run_samples", self.dry_run_samples, int, "Give a number of rows as dry_run_samples.")
        if self.dry_run_samples < 0:
            raise wrong("dry_run_samples", shown(self.dry_run_samples), "Give 0 or more rows as dry_run_samples.")

    def check_mode(self) -> None:
        """ConfigurationError when the mode cannot be kept with what is read here, or by the run of a schedule."""
        mode = self.config.mode
        if mode is CheckpointingMode.AT_MOST_ONCE and not self.streaming:
            raise ConfigurationError(
                f"mode {mode} is for streams. Each run of a scheduled pipeline would start at the end of its sources"
                " and read nothing.",
                code="needs_streaming",
                remedy="Add streaming=True. Or leave mode out: each run then continues where the last one ended.",
                argument="mode",
                value=mode.value,
            )
        for name, source in self.sources.items():
            check_mode(name, source, mode)

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
    def optional(self) -> frozenset[str]:
        """The sinks that the job may leave out."""
        dead = self.dead_letters
        return frozenset((*self.optional_sinks, *([dead.sink] if isinstance(dead, DeadLetters) else [])))

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
        if isinstance(self.restart, Mapping):
            return RestartStrategy.from_json(self.restart)
        return self.restart or ExponentialDelay()

    @property
    def delivery(self) -> Delivery:
        """Return who takes part in a delivery, and who decides."""
        return plan_delivery(self.sinks, self.commit_point, self.config.mode)

    def plain(self, name: str) -> Any:
        """A field in containers that Airflow renders, and shows."""
        value = getattr(self, name)
        if isinstance(value, InlineJob):  # source is no template
            return value
        told = isinstance(value, CheckpointConfig | RestartStrategy | FromSavepoint)
        return value.to_json() if told else plain(value)

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
        found["sources"] = {name: source.to_json() for name, source in self.sources.items()}
        found["sinks"] = {
            name: {
                "kind": sink.kind,
                "conn_id": sink.conn_id,
                "strategy": sink.strategy,
                "promise": sink.promise.value,
                **sink.settings(),
            }
            for name, sink in self.sinks.items()
        }
        if isinstance(self.job, InlineJob):
            found |= {
                "job": self.job.reference,
                "job_sha256": self.job.sha256,
                "job_source": self.job.shown_source,
            }
        for name in ("keep_session", "late_after"):
            given = getattr(self, name)
            found[name] = None if given is None else given.total_seconds()
        safe: dict[str, Any] = without_secrets(json.loads(json.dumps(found, default=lambda _: "known in a run")))
        return safe


SPEC_FIELDS = tuple(each.name for each in fields(PipelineSpec) if each.name != "configured")


def defaults() -> dict[str, Any]:
    """Return the default of each field, as in `PipelineSpec.to_json`; omits required fields."""
    given = {each.name: each for each in fields(PipelineSpec)}
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
            close = get_close_matches(name, [*SPEC_FIELDS, *others], 1)
            raise ConfigurationError(
                f"a pipeline has no argument {name}.",
                code="argument_unknown",
                remedy=f"Did you mean {close[0]}?" if close else f"Give some of {', '.join([*SPEC_FIELDS, *others])}.",
                argument=name,
            )
    for name in ("pipeline", "job", "sources", "sinks"):
        if name not in known:
            raise ConfigurationError(
                f"{name} is missing.", code="argument_missing", remedy=f"Give {name}=...", argument=name
            )
    return PipelineSpec(**known), left


def _no_sink(argument: str, unknown: Sequence[str], sinks: Mapping[str, SinkSpec]) -> ConfigurationError:
    names = ", ".join(unknown)
    what = f"{argument} names {names}, which is not a sink of the pipeline."
    return wrong(argument, names, f"Give names of {', '.join(sinks)}.", what=what)


def _check_specs(kind: str, given: object, attributes: tuple[str, ...], example: str) -> None:
    check_type(f"{kind}s", given, Mapping, f'Give a dictionary by name: {{"orders": {example}}}.')
    assert isinstance(given, Mapping)
    for name, spec in given.items():
        check_name(kind, name)
        if isclass(spec) or not is_dataclass(spec) or not all(hasattr(spec, attribute) for attribute in attributes):
            why = f", which is not a {kind}"
            raise wrong(f"{kind}s[{name!r}]", shown(spec), f"Give a {kind}, such as {example}.", why=why)
