"""Lag of a pipeline behind its sources, and the time until it has read them. No decision depends on it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from airflow_ft.protocol.numbers import count_text
from airflow_ft.protocol.rate import rate_texts


class Unit(StrEnum):
    """Unit in which a source is counted."""

    RECORDS = "records"
    """Unit of topics: offsets, including those of transaction markers."""
    FILES = "files"


@dataclass(frozen=True, slots=True)
class Lag:
    """Unpublished input of a source: `behind`, at the time `at` (UTC, store's clock; None: now).

    `unit` is a `Unit`, or the plain text of a unit that a newer release wrote. `rate` is what was read per second in
    the last minute (None: too early to measure). `expected` is how much there was when a scheduled stage began, `done`
    how much of it is read. Both are 0 for a stream, and where unknown.
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
        """Return the seconds until all input is read at the rate of the last minute; None: unknown."""
        left = self.expected - self.done if self.expected else self.behind
        if left <= 0:
            return 0.0
        return left / self.rate if self.rate else None

    @property
    def amount(self) -> str:
        """As people say it: `1,200 records`."""
        return count_text(self.behind, self.unit[:-1], self.unit)

    def __str__(self) -> str:
        read = [f"{self.done:,} of {self.expected:,} read"] if self.expected else []
        return ", ".join(
            [f"source {self.source}: {self.amount} behind", *read, *rate_texts(self.rate, self.seconds_left)]
        )
