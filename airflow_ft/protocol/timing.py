"""Duration of checkpoints, step by step, and their rows: for one checkpoint, and summed up for many."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from statistics import fmean, quantiles
from types import MappingProxyType
from typing import NamedTuple

from airflow_ft.protocol.model import Checkpoint, CheckpointState, StateSizes
from airflow_ft.protocol.reasons import Reason


class Step(StrEnum):
    """Steps of a checkpoint, in this order; each ends when the next begins."""

    STAGE = "stage"
    PREPARE = "prepare"
    DECIDE = "decide"
    COMMIT = "commit"


class Timing(NamedTuple):
    """Times of a checkpoint (UTC, by the store's clock), its own rows and their bytes in the log.

    `lag`, by source: what it had beyond this checkpoint when it was the newest one; empty: not measured.
    `state_sizes`: the size of the state after it; None: not measured, or no state.
    """

    number: int
    state: CheckpointState
    reason: Reason | None
    rows: int
    bytes: int
    triggered_at: datetime
    staged_at: datetime | None = None
    prepared_at: datetime | None = None
    decided_at: datetime | None = None
    completed_at: datetime | None = None
    lag: Mapping[str, int] = MappingProxyType({})
    state_sizes: StateSizes | None = None

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> Timing:
        """Return the times and sizes of a checkpoint."""
        segment = checkpoint.segment
        return cls(
            checkpoint.number,
            checkpoint.state,
            checkpoint.reason,
            segment.total_rows if segment else 0,
            segment.bytes if segment else 0,
            checkpoint.triggered_at,
            checkpoint.staged_at,
            checkpoint.prepared_at,
            checkpoint.decided_at,
            checkpoint.completed_at,
            checkpoint.lag,
            checkpoint.state_sizes,
        )

    @property
    def steps(self) -> Mapping[Step, float]:
        """Seconds of each step that it has ended. One that left no time of its own is a part of the one behind it."""
        found: dict[Step, float] = {}
        since = self.triggered_at
        for step, until in self.ends.items():
            found[step] = (until - since).total_seconds()
            since = until
        return found

    @property
    def ends(self) -> Mapping[Step, datetime]:
        """Return the end of each step that has ended."""
        times = (self.staged_at, self.prepared_at, self.decided_at, self.completed_at)
        return {step: at for step, at in zip(Step, times, strict=True) if at is not None}

    @property
    def seconds(self) -> float | None:
        """From its trigger until it was completed; None: it is not, or was delivered with another one."""
        return None if self.completed_at is None else (self.completed_at - self.triggered_at).total_seconds()


@dataclass(frozen=True, slots=True)
class Spread:
    """Many values in short."""

    minimum: float
    mean: float
    maximum: float
    p50: float
    p95: float
    p99: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        """None: there is no value. Between two values a percentile is interpolated."""
        if not values:
            return None
        cuts = quantiles(values, n=100, method="inclusive") if len(values) > 1 else [values[0]] * 99
        return cls(min(values), fmean(values), max(values), cuts[49], cuts[94], cuts[98])


class Delivered(NamedTuple):
    """A completed checkpoint: the rows that it delivered, also those of others, and when it was completed."""

    number: int
    rows: int
    at: datetime


def rate(completed: Sequence[Delivered]) -> float | None:
    """Return the rows per second between the oldest and the newest of these (newest first); None: too few to
    measure.
    """
    if len(completed) < 2:
        return None
    seconds = (completed[0].at - completed[-1].at).total_seconds()
    return sum(each.rows for each in completed[:-1]) / seconds if seconds > 0 else None


def summary(timings: Sequence[Timing]) -> Iterator[tuple[str, Spread]]:
    """Yield the spread of completed timings: seconds of each step and in total ("seconds"), "rows", and "bytes" in the
    log.

    Of those with a measured state also the changed bytes ("state_changes") and bytes of full snapshots
    ("state_snapshot").
    """
    names = ("seconds", *Step, "rows", "bytes", "state_changes", "state_snapshot")
    values: dict[str, list[float]] = {name: [] for name in names}
    for each in timings:
        if each.seconds is None:
            continue
        measured: dict[str, float] = {step.value: seconds for step, seconds in each.steps.items()}
        measured |= {"seconds": each.seconds, "rows": each.rows, "bytes": each.bytes}
        if sizes := each.state_sizes:
            measured["state_changes"] = sizes.changes
            if sizes.snapshot:
                measured["state_snapshot"] = sizes.snapshot
        for name, value in measured.items():
            values[name].append(value)
    for name, found in values.items():
        if (spread := Spread.of(found)) is not None:
            yield name, spread
