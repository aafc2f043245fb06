"""How far a pipeline is behind its sources, and how soon it will have read them. Nothing is decided by it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from airflow_ft.protocol.rate import told


class Unit(StrEnum):
    """What a source is counted in."""

    RECORDS = "records"
    """Of topics: offsets, among them those of transactions' markers."""
    FILES = "files"


@dataclass(frozen=True, slots=True)
class Lag:
    """What a source has, and no published checkpoint: `behind`, as of `at` (UTC, by the store's clock; None: now).

    `unit` is a `Unit`; as it stands where only a newer release knows it. `rate` is what was read a second in the
    last minute (None: too early to tell). `expected` was there when a scheduled stage began, and `done` of it is
    read; both are 0 where that is not known, and of a stream.
    """

    source: str
    unit: Unit | str
    behind: int
    rate: float | None = None
    done: int = 0
    expected: int = 0
    at: datetime | None = None

    @property
    def seconds_left(self) -> float | None:
        """Until all of it is read, if it goes on as in the last minute; None: nobody knows."""
        left = self.expected - self.done if self.expected else self.behind
        if left <= 0:
            return 0.0
        return left / self.rate if self.rate else None

    @property
    def amount(self) -> str:
        """As people say it: `1,200 records`."""
        return amount(self.behind, self.unit)

    def __str__(self) -> str:
        read = [f"{self.done:,} of {self.expected:,} read"] if self.expected else []
        return ", ".join([f"source {self.source}: {self.amount} behind", *read, *told(self.rate, self.seconds_left)])


def amount(count: int, unit: str) -> str:
    """`1 record`, `1,200 records`."""
    return f"{count:,} {unit if count != 1 else unit[:-1]}"


def total(lags: Iterable[Lag]) -> str:
    """Over all sources, by unit: `1,200 records, 3 files`; "" where nothing is known."""
    sums: dict[str, int] = {}
    for each in lags:
        sums[each.unit] = sums.get(each.unit, 0) + each.behind
    return ", ".join(amount(count, unit) for unit, count in sorted(sums.items(), reverse=True))
