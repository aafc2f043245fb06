"""What a user may set, and what names may look like. Everything is checked at construction: at DAG parse."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from typing import Any

from airflow_ft.core.errors import ConfigurationError

NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")


def check_name(kind: str, name: str) -> str:
    """Returns `name` when it may name a pipeline, sink or source; else ConfigurationError."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ConfigurationError(
            f"{name!r} cannot name a {kind}.",
            remedy="use 1 to 63 of the characters a-z, 0-9, '_' and '-', beginning with a letter or digit.",
        )
    return name


class Unset(Enum):
    """The value of what nobody has set, where None already means something."""

    UNSET = "unset"


UNSET = Unset.UNSET
QUARANTINE_AFTER = timedelta(days=1)
"""Where neither pipeline nor `[airflow_ft] quarantine_after` says anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointConfig:
    """How a pipeline's checkpoints are made and kept (names as in Flink's CheckpointConfig).

    timeout: from TRIGGERED to STAGED; a micro-batch that takes longer is ABORTED(EXPIRED) and ends the attempt.
    num_retained: delivered checkpoints whose rows stay in the write-ahead log, at least 1.
    max_delivery_rows: several staged checkpoints are delivered as one up to this many rows (a single larger
        checkpoint is delivered alone). 0: each checkpoint by itself.
    quarantine_after: a checkpoint that has been in doubt for this long, although its sinks answer, is QUARANTINED: kept
        whole for a person, nothing later is delivered, every gate stays closed. None: it is tried again for ever.
        Not given: `[airflow_ft] quarantine_after`, which is a day by default.
    """

    timeout: timedelta = field(default=timedelta(minutes=10))
    num_retained: int = 3
    max_delivery_rows: int = 1_000_000
    quarantine_after: timedelta | Unset | None = UNSET

    def __post_init__(self) -> None:
        if not isinstance(self.timeout, timedelta) or self.timeout < timedelta(seconds=1):
            raise ConfigurationError(
                f"CheckpointConfig.timeout is {self.timeout!r}.", remedy="give a timedelta of at least one second."
            )
        if type(self.num_retained) is not int or self.num_retained < 1:
            raise ConfigurationError(
                f"CheckpointConfig.num_retained is {self.num_retained!r}.", remedy="give a whole number from 1."
            )
        if type(self.max_delivery_rows) is not int or self.max_delivery_rows < 0:
            raise ConfigurationError(
                f"CheckpointConfig.max_delivery_rows is {self.max_delivery_rows!r}.",
                remedy="give a whole number of rows from 0 (0: every checkpoint is delivered by itself).",
            )
        after = self.quarantine_after
        if after not in (None, UNSET) and (not isinstance(after, timedelta) or after < timedelta(0)):
            raise ConfigurationError(
                f"CheckpointConfig.quarantine_after is {after!r}.", remedy="give a timedelta, or None for never."
            )

    @property
    def patience(self) -> timedelta | None:
        """`quarantine_after` as it counts: the built-in default where nobody has set it."""
        return QUARANTINE_AFTER if isinstance(self.quarantine_after, Unset) else self.quarantine_after

    def to_json(self) -> dict[str, Any]:
        """Plain data; times in seconds. What is not set is left out."""
        settings: dict[str, Any] = {
            "timeout": self.timeout.total_seconds(),
            "num_retained": self.num_retained,
            "max_delivery_rows": self.max_delivery_rows,
        }
        if not isinstance(self.quarantine_after, Unset):
            after = self.quarantine_after
            settings["quarantine_after"] = None if after is None else after.total_seconds()
        return settings

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> CheckpointConfig:
        """The inverse of `to_json`; settings that are missing keep their defaults."""
        known = dict(data)
        for name in ("timeout", "quarantine_after"):
            if known.get(name) is not None:
                try:
                    known[name] = timedelta(seconds=float(known[name]))
                except (TypeError, ValueError, OverflowError):
                    raise ConfigurationError(
                        f"checkpointing: {name} is {known[name]!r}.", remedy="give a number of seconds."
                    ) from None
        unknown = sorted(set(known) - {"timeout", "num_retained", "max_delivery_rows", "quarantine_after"})
        if unknown:
            raise ConfigurationError(
                f"unknown checkpoint settings: {', '.join(unknown)}.",
                remedy="known are timeout and quarantine_after (seconds), num_retained, max_delivery_rows.",
            )
        return cls(**known)
