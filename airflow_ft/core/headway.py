"""How far the deliveries of this process have come: for its lease, which tells it to whoever looks, and for metrics."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

FRESH_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Taken:
    """Rows of a checkpoint's segment that a participant has read, of those that it is to deliver."""

    number: int
    participant: str
    sink: str
    rows: int
    of: int

    def __str__(self) -> str:
        taken = f"{self.participant} has taken {self.rows:,} of {self.of:,} rows of {self.sink}"
        return f"checkpoint {self.number}: {taken}"


class Headway:
    """What was told last by each participant; what is older than half a minute is over, or stands still."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._told: dict[str, tuple[float, Taken]] = {}

    def tell(self, taken: Taken) -> None:
        """From any thread."""
        self._told[taken.participant] = (self._clock(), taken)

    def now(self) -> list[Taken]:
        """By participant."""
        since = self._clock() - FRESH_SECONDS
        return [taken for _, (at, taken) in sorted(self._told.copy().items()) if at >= since]


HEADWAY = Headway()
"""Of this process."""
