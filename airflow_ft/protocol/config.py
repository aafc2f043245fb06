"""What a user may set, and what names may look like. Everything is checked at construction: at DAG parse."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import Any, Self

from airflow_ft.protocol.arguments import refuse_object, shown
from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.protocol.flink import settings_of
from airflow_ft.protocol.kinds import Choice, Count, Duration, Flag, check_settings, kinds_of, read_settings
from airflow_ft.protocol.model import CheckpointingMode, ExternalizedRetention

NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")


def check_name(kind: str, name: str) -> str:
    """Returns `name` when it may name a pipeline, sink or source; else ConfigurationError."""
    if isinstance(name, str):
        refuse_object(kind, name)
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ConfigurationError(
            f"{shown(name)} is not allowed as the name of a {kind}.",
            code="name_invalid",
            remedy="Use 1 to 63 of the characters a-z, 0-9, '_' and '-'. Begin with a letter or digit.",
            kind=kind,
            name=shown(name),
        )
    return name


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """How a pipeline's checkpoints are made and kept (names as in Flink's CheckpointConfig).

    What is not given is `[airflow_ft] checkpointing`'s, or else has the default that stands here.

    Those from `interval` to `externalized_retention` are for streams (`streaming=True`); a scheduled pipeline is cut by
    its schedule and its sources, and its runs end by themselves.

    Args:
        mode: how often a row becomes visible when something dies: a `CheckpointingMode`. With AT_MOST_ONCE, for streams
            alone, nothing is remembered from one attempt to the next: each begins where its sources stand then.
        interval: a stream is cut so often; 0: as fast as it goes. Where a source is bounded (`max_offsets_per_trigger`,
            `max_files_per_trigger`, `max_bytes_per_trigger`) and has more, slices follow each other without a pause.
        min_pause: so long after a checkpoint was confirmed the next one is triggered at the earliest. More than 0
            allows one checkpoint at a time.
        max_concurrent: so many checkpoints may be between TRIGGERED and COMPLETED: while sinks deliver one, the next is
            computed. When there are that many the stream waits, and its source with it (backpressure).
        tolerable_failures: so many checkpoints in a row may fail (EXPIRED, SEAL_FAILED) before the stream itself fails,
            and is restarted by its strategy; -1: all. One that is confirmed begins the count anew.
        unaligned: rows on their way to a slow sink lie in the write-ahead log and belong to their checkpoint, so the
            next one is triggered without waiting for it. Allows one checkpoint to be computed at a time, and needs
            EXACTLY_ONCE.
        aligned_timeout: an unaligned stream waits so long for the sinks first.
        externalized_retention: what is kept of the confirmed checkpoints when the stream was asked to stop, or has
            failed for good: rows, manifests and operator state, or nothing of them. Where it has read to is kept in any
            case.
        timeout: from TRIGGERED to STAGED, and in a stream to the decision. A checkpoint that takes longer is
            ABORTED(EXPIRED): nothing of it is visible. If it was not staged it is computed again, else its rows are
            delivered with the next one.
        num_retained: the newest delivered checkpoints that are kept whole, with rows and operator state; at least 1.
        max_delivery_rows: several staged checkpoints are delivered as one up to this many rows (a single larger
            checkpoint is delivered alone). 0: each checkpoint by itself.
        num_retained_events: the newest checkpoints of which the decision log keeps each event. Of older ones it keeps
            what was decided and proven, for ever.
        quarantine_after: a checkpoint that has been in doubt for this long, although its sinks answer, is QUARANTINED:
            kept whole for a person, nothing later is delivered, every gate stays closed. None: it is tried again for
            ever.
        drain: a scheduled run that has read everything ends with a checkpoint of what is still open in windows, joins
            and event-time timers, as it stands. A stream is drained by `airflow ft stop --drain`.
        resume_drained: a run goes on from the state before a drain, and what that has emitted comes once more when it
            closes; without it a run after a drain is refused.
    """

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
        check_settings(self)
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

    def resolved(self, defaults: CheckpointConfig) -> CheckpointConfig:
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
        """The inverse of `to_json`; numbers may be text, as Jinja makes it, and "never" stands for None."""
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
