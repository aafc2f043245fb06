"""What a user may set, and what names may look like. Everything is checked at construction: at DAG parse."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import Any, Self

from airflow_ft.core.errors import ConfigurationError
from airflow_ft.core.flink import settings_of
from airflow_ft.core.kinds import Count, Duration, check_settings, kinds_of, read_settings

NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")


def check_name(kind: str, name: str) -> str:
    """Returns `name` when it may name a pipeline, sink or source; else ConfigurationError."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ConfigurationError(
            f"{name!r} cannot name a {kind}.",
            remedy="use 1 to 63 of the characters a-z, 0-9, '_' and '-', beginning with a letter or digit.",
        )
    return name


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """How a pipeline's checkpoints are made and kept (names as in Flink's CheckpointConfig).

    What is not given is `[airflow_ft] checkpointing`'s, or else has the default that stands here.

    timeout: from TRIGGERED to STAGED; a micro-batch that takes longer is ABORTED(EXPIRED) and ends the attempt.
    num_retained: delivered checkpoints whose rows stay in the write-ahead log, at least 1.
    max_delivery_rows: several staged checkpoints are delivered as one up to this many rows (a single larger
        checkpoint is delivered alone). 0: each checkpoint by itself.
    quarantine_after: a checkpoint that has been in doubt for this long, although its sinks answer, is QUARANTINED: kept
        whole for a person, nothing later is delivered, every gate stays closed. None: it is tried again for ever.
    """

    timeout: timedelta = field(default=timedelta(minutes=10), metadata={"kind": Duration(timedelta(seconds=1))})
    num_retained: int = field(default=3, metadata={"kind": Count(1)})
    max_delivery_rows: int = field(default=1_000_000, metadata={"kind": Count(0)})
    quarantine_after: timedelta | None = field(
        default=timedelta(days=1), metadata={"kind": Duration(timedelta(0), never=True)}
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
        check_settings(self)

    def resolved(self, defaults: CheckpointConfig) -> CheckpointConfig:
        """With `defaults` for what was not given."""
        return type(self)(**{name: getattr(self if name in self.given else defaults, name) for name in _KINDS})

    def to_json(self) -> dict[str, Any]:
        """What was given, as plain data; times in seconds."""
        return {name: kind.to_json(getattr(self, name)) for name, kind in _KINDS.items() if name in self.given}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> CheckpointConfig:
        """The inverse of `to_json`; numbers may be text, as Jinja makes it, and "never" stands for None."""
        return cls(**read_settings(cls, data, "checkpointing"))

    @classmethod
    def from_flink(cls, settings: Mapping[str, Any]) -> CheckpointConfig:
        """From Flink's own keys, such as {"execution.checkpointing.timeout": "10 min"}.

        A key that would promise what is not done is refused with the reason, one without an effect is warned of.
        """
        return cls(**settings_of(settings))


_KINDS = kinds_of(CheckpointConfig)
