"""A user's settings, and the allowed form of names. Everything is checked at construction: at DAG parse."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import Any, ClassVar, Self

from airflow_ft.protocol.argument_names import by_name
from airflow_ft.protocol.arguments import refuse_object, shown
from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.protocol.flink import settings_of
from airflow_ft.protocol.kinds import Choice, Count, Duration, Flag, accept_settings, kinds_of, read_settings
from airflow_ft.protocol.model import CheckpointingMode, ExternalizedRetention

NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")


def check_name(kind: str, name: str) -> str:
    """Returns `name` when it may name a pipeline, sink or source; else ConfigurationError."""
    if isinstance(name, str):
        refuse_object(kind, name)
    if not isinstance(name, str) or not NAME.fullmatch(name):
        letters = "Use 1 to 63 of the characters a-z, 0-9, '_' and '-'. Begin with a letter or digit."
        raise ConfigurationError(
            f"{shown(name)} is not allowed as the name of a {kind}.",
            code="name_invalid",
            remedy=letters if isinstance(name, str) else f"Give the name of one {kind} as text.",
            kind=kind,
            name=shown(name),
        )
    return name


@by_name
@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """Settings for a pipeline's checkpoints and their retention (names as in Flink's CheckpointConfig).

    A missing setting comes from `[airflow_ft] checkpointing`, or else from the default below.

    The settings from `interval` to `externalized_retention` are for streams (`streaming=True`). For a scheduled
    pipeline its schedule and sources set the checkpoints, and its runs end when they have read everything.

    Args:
        mode: delivery guarantee after a failure: a `CheckpointingMode`. With AT_MOST_ONCE, for streams only, attempts
            share no progress: each attempt starts at the sources' current positions.
        interval: time between two checkpoints of a stream; 0: no pause. While a limited source
            (`max_offsets_per_trigger`, `max_files_per_trigger`, `max_bytes_per_trigger`) has more, checkpoints follow
            each other without a pause.
        min_pause: shortest time between a confirmed checkpoint and the next trigger. More than 0 allows one checkpoint
            at a time.
        max_concurrent: most checkpoints between TRIGGERED and COMPLETED. The driver computes the next one while sinks
            deliver. At the limit the stream waits, and so does its source (backpressure).
        tolerable_failures: consecutive checkpoints that may fail (EXPIRED, SEAL_FAILED) before the stream itself fails
            and its strategy restarts it; -1: any number. A confirmed checkpoint resets the count.
        unaligned: trigger the next checkpoint without waiting for slow sinks. Their rows wait in the write-ahead log
            as part of their checkpoint. Allows one checkpoint to be computed at a time, and needs EXACTLY_ONCE.
        aligned_timeout: how long an unaligned stream waits for the sinks before it triggers without them.
        externalized_retention: which confirmed checkpoints remain after the stream was stopped or failed for good:
            rows, manifests and operator state, or nothing of them. Source positions always remain.
        timeout: longest time from TRIGGERED to STAGED, and in a stream to the decision. A slower checkpoint is
            ABORTED(EXPIRED) and nothing of it becomes visible. If it was staged, the next one delivers its rows;
            otherwise they are computed again.
        num_retained: number of newest delivered checkpoints that are kept whole, with rows and operator state; at
            least 1.
        max_delivery_rows: deliver several staged checkpoints as one up to this many rows (a single larger checkpoint
            is delivered alone). A sink may take fewer. 0: deliver each checkpoint alone. Positions are delivered alone.
        num_retained_events: number of newest checkpoints of which the decision log keeps every event. Of older ones it
            keeps the decisions and proofs without limit. Events about runs, such as their turns and stages, stay for
            the same number of newest epochs, at least 1,000.
        quarantine_after: quarantine a checkpoint that has been in doubt for this long although its sinks answer, if one
            of them refuses it. A person then decides; later checkpoints wait and every gate stays closed. None: retry
            without limit.
        drain: end a scheduled run that has read everything with a checkpoint that emits open windows, joins and
            event-time timers. `airflow ft stop --drain` drains a stream.
        resume_drained: let a run continue from the state before a drain, so drained results are emitted again when
            they close. Without it a run after a drain is refused.
    """

    meant: ClassVar[Mapping[str, str]] = {
        name: f"It belongs to the pipeline: CheckpointedPipeline({name}=...)."
        for name in ("late_after", "overlap", "restart", "retries", "retry_delay", "streaming", "wal_root")
    }

    mode: CheckpointingMode = field(
        default=CheckpointingMode.EXACTLY_ONCE, metadata={"kind": Choice(CheckpointingMode)}
    )
    interval: timedelta = field(default=timedelta(seconds=10), metadata={"kind": Duration(timedelta(0))})
    min_pause: timedelta = field(default=timedelta(0), metadata={"kind": Duration(timedelta(0))})
    max_concurrent: int = field(default=4, metadata={"kind": Count(1)})
    tolerable_failures: int = field(default=0, metadata={"kind": Count(-1)})
    unaligned: bool = field(default=False, metadata={"kind": Flag()})
    aligned_timeout: timedelta = field(default=timedelta(0), metadata={"kind": Duration(timedelta(0))})
    externalized_retention: ExternalizedRetention = field(
        default=ExternalizedRetention.RETAIN_ON_CANCELLATION, metadata={"kind": Choice(ExternalizedRetention)}
    )
    timeout: timedelta = field(default=timedelta(minutes=10), metadata={"kind": Duration(timedelta(seconds=1))})
    num_retained: int = field(default=3, metadata={"kind": Count(1)})
    max_delivery_rows: int = field(default=1_000_000, metadata={"kind": Count(0)})
    num_retained_events: int = field(default=100_000, metadata={"kind": Count(1)})
    quarantine_after: timedelta | None = field(
        default=timedelta(days=1), metadata={"kind": Duration(timedelta(0), never=True)}
    )
    drain: bool = field(default=False, metadata={"kind": Flag()})
    resume_drained: bool = field(default=False, metadata={"kind": Flag()})
    given: frozenset[str] = field(default=frozenset(), repr=False, compare=False)
    """The names of what was given, in code, by Jinja or in the provider's configuration. Not an argument."""

    def __new__(cls, **arguments: Any) -> Self:
        self = super().__new__(cls)
        object.__setattr__(self, "_arguments", arguments)
        return self

    def __post_init__(self) -> None:
        arguments = self.__dict__.pop("_arguments")
        if "given" in arguments:  # by dataclasses.replace, with all fields: what differs from its default was given
            defaults = {each.name: each.default for each in fields(self)}
            changed = {name for name in _KINDS if arguments[name] != defaults[name]}
            object.__setattr__(self, "given", self.given | changed)
        else:
            object.__setattr__(self, "given", frozenset(arguments))
        accept_settings(self)
        for name, alone in (("min_pause", bool(self.min_pause)), ("unaligned", self.unaligned)):
            if alone and "max_concurrent" in self.given and self.max_concurrent != 1:
                raise ConfigurationError(
                    f"CheckpointConfig: {name} allows one checkpoint at a time, but max_concurrent is"
                    f" {self.max_concurrent}.",
                    code="arguments_conflict",
                    remedy=f"Leave out max_concurrent or {name}.",
                    arguments=[name, "max_concurrent"],
                )
        if self.aligned_timeout and not self.unaligned:
            raise ConfigurationError(
                "CheckpointConfig: aligned_timeout has an effect only with unaligned=True.",
                code="argument_missing",
                remedy="Add unaligned=True, or leave out aligned_timeout.",
                argument="unaligned",
            )
        if self.unaligned and self.mode is not CheckpointingMode.EXACTLY_ONCE:
            # As in Flink. What has run ahead of a row that a sink refuses is computed again; in the other modes it
            # would be held up behind that row, or lost with it.
            raise ConfigurationError(
                f"CheckpointConfig: unaligned needs mode {CheckpointingMode.EXACTLY_ONCE}, but mode is {self.mode}.",
                code="arguments_conflict",
                remedy="Leave out unaligned (and aligned_timeout), or leave out mode.",
                arguments=["unaligned", "mode"],
            )

    @property
    def concurrent(self) -> int:
        """Return how many checkpoints may be between TRIGGERED and COMPLETED."""
        return 1 if self.min_pause or self.unaligned else self.max_concurrent

    @property
    def given_to_streams(self) -> tuple[str, ...]:
        """Return what was given that says nothing to a scheduled pipeline."""
        return tuple(name for name in OF_STREAMS if name in self.given)

    def of_scheduled(self) -> CheckpointConfig:
        """Without what says nothing to a scheduled pipeline; AT_MOST_ONCE is for streams, too."""
        most = ("mode",) if self.mode is CheckpointingMode.AT_MOST_ONCE else ()
        return self._without((*OF_STREAMS, *most))

    def of_streams(self) -> CheckpointConfig:
        """Without what says nothing to a stream."""
        return self._without(("drain",))

    def _without(self, names: Collection[str]) -> CheckpointConfig:
        return type(self)(**{name: getattr(self, name) for name in self.given if name not in names})

    def with_defaults(self, defaults: CheckpointConfig) -> CheckpointConfig:
        """With `defaults` for what was not given."""
        values = {name: getattr(defaults, name) for name in defaults.given}
        values |= {name: getattr(self, name) for name in self.given}
        if "max_concurrent" not in self.given and (self.min_pause or self.unaligned):
            values.pop("max_concurrent", None)  # what is asked for here allows one
        if "unaligned" in self.given and not self.unaligned and "aligned_timeout" not in self.given:
            values.pop("aligned_timeout", None)
        return type(self)(**values)

    def to_json(self) -> dict[str, Any]:
        """Return what was given, as plain data; times in seconds."""
        return {name: kind.to_json(getattr(self, name)) for name, kind in _KINDS.items() if name in self.given}

    def effective(self, *, streaming: bool) -> dict[str, Any]:
        """All that counts for a stream, or for a scheduled pipeline, given or not; as `to_json`."""
        idle = ("drain",) if streaming else OF_STREAMS
        found = {name: kind.to_json(getattr(self, name)) for name, kind in _KINDS.items() if name not in idle}
        return found | ({"max_concurrent": self.concurrent} if streaming else {})

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> CheckpointConfig:
        """Return the inverse of `to_json`. Numbers may be text, as Jinja renders them; "never" means None."""
        return cls(**read_settings(cls, data, "checkpointing"))

    @classmethod
    def from_flink(cls, settings: Mapping[str, Any]) -> CheckpointConfig:
        """From Flink's own keys, such as {"execution.checkpointing.timeout": "10 min"}.

        They may be a whole configuration, in which `RestartStrategy.from_flink` reads the keys of restart strategies. A
        key that would promise what is not done is refused with the reason, one without an effect is warned of.
        """
        return settings_of(settings).build(cls, _KINDS)


OF_STREAMS = (
    "interval",
    "min_pause",
    "max_concurrent",
    "tolerable_failures",
    "unaligned",
    "aligned_timeout",
    "externalized_retention",
)
_KINDS = kinds_of(CheckpointConfig)


_LATE_SECONDS = 600.0
"""No stream is late before this, even with a short interval."""
_LATE_INTERVALS = 10
_INTERVAL, _TIMEOUT = 10.0, 600.0  # the defaults of CheckpointConfig


def stream_is_late_after(spec: Mapping[str, Any]) -> float:
    """Return the seconds without a confirmation after which a stream without `late_after` is late.

    Ten checkpoint intervals, or the time-out of a checkpoint, or ten minutes: the longest of them.

    Args:
        spec: the specification as plain data (`PipelineSpec.to_json`).
    """
    given = spec.get("checkpointing")
    config = given if isinstance(given, Mapping) else {}
    interval, timeout = _seconds(config.get("interval"), _INTERVAL), _seconds(config.get("timeout"), _TIMEOUT)
    return max(_LATE_INTERVALS * interval, timeout, _LATE_SECONDS)


def _seconds(value: object, usual: float) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else usual
