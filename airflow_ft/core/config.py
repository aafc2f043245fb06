"""What a user may set, and what names may look like. Everything is checked at construction: at DAG parse."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import Any, Self

from airflow_ft.core.arguments import shown
from airflow_ft.core.errors import ConfigurationError
from airflow_ft.core.flink import settings_of

NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")


def check_name(kind: str, name: str) -> str:
    """Returns `name` when it may name a pipeline, sink or source; else ConfigurationError."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ConfigurationError(
            f"{name!r} cannot name a {kind}.",
            remedy="use 1 to 63 of the characters a-z, 0-9, '_' and '-', beginning with a letter or digit.",
        )
    return name


@dataclass(frozen=True, slots=True)
class _Duration:
    """A timedelta; as plain data seconds. `never`: None stands for no end."""

    least: timedelta
    never: bool = False

    @property
    def remedy(self) -> str:
        least = f" of at least {self.least.total_seconds():g} s" if self.least else ""
        return f"give a timedelta{least}" + (", or None for never." if self.never else ".")

    def is_good(self, value: object) -> bool:
        return (value is None and self.never) or (isinstance(value, timedelta) and value >= self.least)

    def to_json(self, value: Any) -> Any:
        return None if value is None else value.total_seconds()

    def from_json(self, value: Any) -> Any:
        if self.never and (value is None or value == "never"):
            return None
        return timedelta(seconds=float(value))

    plain = "a number of seconds"


@dataclass(frozen=True, slots=True)
class _Count:
    """A whole number."""

    least: int

    @property
    def remedy(self) -> str:
        return f"give a whole number from {self.least}."

    def is_good(self, value: object) -> bool:
        return type(value) is int and value >= self.least

    def to_json(self, value: Any) -> Any:
        return value

    def from_json(self, value: Any) -> Any:
        return int(value) if isinstance(value, str) else value

    plain = "a whole number"


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """How a pipeline's checkpoints are made and kept (names as in Flink's CheckpointConfig).

    What is not given is `[airflow_ft] checkpointing`'s, or else has the default that stands here.

    timeout: from TRIGGERED to STAGED; a micro-batch that takes longer is ABORTED(EXPIRED) and ends the attempt.
    num_retained: delivered checkpoints whose rows stay in the write-ahead log, at least 1.
    max_delivery_rows: several staged checkpoints are delivered as one up to this many rows (a single larger
        checkpoint is delivered alone). 0: each checkpoint by itself.
    num_retained_events: the newest checkpoints of which the decision log keeps each event. Of older ones it keeps what
        was decided and proven, for ever.
    quarantine_after: a checkpoint that has been in doubt for this long, although its sinks answer, is QUARANTINED: kept
        whole for a person, nothing later is delivered, every gate stays closed. None: it is tried again for ever.
    """

    timeout: timedelta = field(default=timedelta(minutes=10), metadata={"kind": _Duration(timedelta(seconds=1))})
    num_retained: int = field(default=3, metadata={"kind": _Count(1)})
    max_delivery_rows: int = field(default=1_000_000, metadata={"kind": _Count(0)})
    num_retained_events: int = field(default=100_000, metadata={"kind": _Count(1)})
    quarantine_after: timedelta | None = field(
        default=timedelta(days=1), metadata={"kind": _Duration(timedelta(0), never=True)}
    )
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
        for name, kind in _KINDS.items():
            value = getattr(self, name)
            if not kind.is_good(value):
                raise ConfigurationError(f"CheckpointConfig.{name} is {shown(value)}.", remedy=kind.remedy)

    def resolved(self, defaults: CheckpointConfig) -> CheckpointConfig:
        """With `defaults` for what was not given."""
        return type(self)(**{name: getattr(self if name in self.given else defaults, name) for name in _KINDS})

    def to_json(self) -> dict[str, Any]:
        """What was given, as plain data; times in seconds."""
        return {name: kind.to_json(getattr(self, name)) for name, kind in _KINDS.items() if name in self.given}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> CheckpointConfig:
        """The inverse of `to_json`; numbers may be text, as Jinja makes it, and "never" stands for None."""
        if unknown := sorted(set(data) - set(_KINDS)):
            raise ConfigurationError(
                f"unknown checkpoint settings: {', '.join(unknown)}.", remedy=f"known are {', '.join(_KINDS)}."
            )
        known = {}
        for name, value in data.items():
            try:
                known[name] = _KINDS[name].from_json(value)
            except (TypeError, ValueError, OverflowError):
                raise ConfigurationError(
                    f"checkpointing: {name} is {shown(value)}.", remedy=f"give {_KINDS[name].plain}."
                ) from None
        return cls(**known)

    @classmethod
    def from_flink(cls, settings: Mapping[str, Any]) -> CheckpointConfig:
        """From Flink's own keys, such as {"execution.checkpointing.timeout": "10 min"}.

        A key that would promise what is not done is refused with the reason, one without an effect is warned of.
        """
        return cls(**settings_of(settings))


_KINDS: dict[str, _Duration | _Count] = {
    each.name: each.metadata["kind"] for each in fields(CheckpointConfig) if each.metadata
}
