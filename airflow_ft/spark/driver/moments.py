"""`Moment`: a time of the decision log's clock that is kept while Spark computes."""

from __future__ import annotations

import time
from datetime import datetime, timedelta
from typing import NamedTuple

from airflow_ft.protocol.decision_log import QueryLog


class Moment(NamedTuple):
    """A time of the decision log's clock, and this machine's monotonic clock before and after the log's answer."""

    at: datetime
    read: float
    answered: float

    @classmethod
    def now(cls, store: QueryLog) -> Moment:
        """Read both clocks."""
        read = time.monotonic()
        return cls(store.now(), read, time.monotonic())

    def earliest(self, now: Moment) -> datetime:
        """Return the earliest time that the log's clock may have shown between this moment and `now`.

        If that clock was put back once, what arrived afterwards has an earlier time than this moment (I9). The log's
        answers count as a step of their length, because a step may hide in them.
        """
        step = now.answered - self.read - (now.at - self.at).total_seconds()
        return self.at - timedelta(seconds=max(0.0, step))

    def earliest_until(self, at: datetime) -> datetime:
        """As `earliest`, until the log's time `at`, which this process has just received."""
        answered = time.monotonic()
        return self.earliest(Moment(at, answered, answered))
