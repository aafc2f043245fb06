"""`Moment`: a time of the decision log's clock that is kept while Spark computes."""

from __future__ import annotations

import time
from datetime import datetime
from typing import NamedTuple

from airflow_ft.protocol.decision_log import QueryLog

STEP_SECONDS = 0.1
"""A smaller step of a clock is not noticed."""
_DRIFT = 0.001  # seconds a second by which two clocks may differ without a step


class Moment(NamedTuple):
    """A time of the decision log's clock, and of this machine's monotonic clock just before.

    If the log's clock is put back, what arrives later may get an earlier time than this one (I9).
    """

    at: datetime
    read: float

    @classmethod
    def now(cls, store: QueryLog) -> Moment:
        """Read both clocks."""
        read = time.monotonic()
        return cls(store.now(), read)

    def holds(self, now: Moment) -> bool:
        """Return whether the log's clock was not put back since."""
        passed = now.read - self.read
        return passed - (now.at - self.at).total_seconds() < STEP_SECONDS + _DRIFT * passed
