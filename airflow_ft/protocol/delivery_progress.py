"""Progress of the deliveries in this process, for its lease (which others read) and for metrics."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from airflow_ft.protocol.numbers import count_text
from airflow_ft.protocol.rate import rate_texts

FRESH_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Taken:
    """Rows of a checkpoint's segment that a participant has read, of those that it is to deliver; `rate` a second."""

    pipeline: str
    number: int
    participant: str
    sink: str
    rows: int
    of: int
    rate: float | None = field(default=None, compare=False)

    def __str__(self) -> str:
        taken = f"{self.participant} has taken {self.rows:,} of {count_text(self.of, 'row')} of {self.sink}"
        left = (self.of - self.rows) / self.rate if self.rate else None
        return ", ".join([f"checkpoint {self.number}: {taken}", *rate_texts(self.rate, left)])


class DeliveryProgress:
    """The last progress that each participant of each pipeline reported. Reports older than 30 seconds are dropped."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._reports: dict[tuple[str, str], tuple[float, Taken]] = {}

    def report(self, taken: Taken) -> None:
        """From any thread."""
        self._reports[taken.pipeline, taken.participant] = (self._clock(), taken)

    def now(self, pipeline: str) -> list[Taken]:
        """By participant."""
        since, reports = self._clock() - FRESH_SECONDS, sorted(self._reports.copy().items())
        return [taken for (of, _), (at, taken) in reports if of == pipeline and at >= since]


DELIVERY_PROGRESS = DeliveryProgress()
"""Of this process."""
