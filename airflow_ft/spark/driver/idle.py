"""Intervals of a stream without input, as Spark's own listener reports them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow_ft.protocol.decision_log import QueryLog
from airflow_ft.spark.attribution import bound
from airflow_ft.spark.driver.moments import Moment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_RECORD_SECONDS = 5.0
STEP_SECONDS = 0.1
"""A smaller step of the wall clock is not noticed."""
_MARKS = 30  # Spark reports an interval some time after it
_AFTER_A_STEP = 60.0  # seconds in which reports from before the step may arrive


class Idle:
    """Intervals in which Spark found nothing new; `listening` hears of them.

    Their times are of the JVM's wall clock, which is this machine's. What the decision log's clock said before one of
    them began was before it. After a step of the wall clock that order is unknown: all marks are dropped, and none is
    made until the reports from before the step have arrived. A smaller step than `STEP_SECONDS` is not noticed, so
    marks keep this distance from an interval.
    """

    def __init__(self, store: QueryLog) -> None:
        self._store = store
        self._offset = _offset()
        self._usable_from = 0.0
        self._recorded = 0.0
        self._seen = 0.0
        self._marks: deque[tuple[float, Moment]] = deque(maxlen=_MARKS)

    @contextmanager
    def listening(self, spark: SparkSession) -> Iterator[None]:
        """For the duration of the block. Not by pyspark's own listener, which copies each event by dozens of calls."""
        from pyspark.java_gateway import ensure_callback_server_started

        jvm: Any = spark._jvm
        ensure_callback_server_started(spark.sparkContext._gateway)  # type: ignore[no-untyped-call]
        heard = _Listener(bound(self._on_event))
        listener = jvm.org.apache.spark.sql.streaming.PythonStreamingQueryListenerWrapper(heard)
        streams = spark._jsparkSession.streams()
        streams.addListener(listener)
        try:
            yield
        finally:
            with suppress(Exception):  # the JVM may have gone
                streams.removeListener(listener)

    def _on_event(self, timestamp: str) -> None:
        self._seen = datetime.fromisoformat(timestamp).timestamp()

    def read_as_of(self) -> Moment | None:
        """All that was there at this time has been read, by the decision log's clock; None: nothing new is known.

        To be called again and again: it notes the time, to be compared with an interval that begins later.
        """
        if self._has_stepped() or time.monotonic() < self._usable_from:
            return None
        before = [at for wall, at in self._marks if wall < self._seen - STEP_SECONDS]
        for _ in before:
            self._marks.popleft()
        now = Moment.now(self._store)
        self._marks.append((time.time(), now))
        return before[-1] if before else None

    def _has_stepped(self) -> bool:
        """Return whether the wall clock has made a step. Then nothing of before is kept."""
        offset = _offset()
        if abs(offset - self._offset) < STEP_SECONDS:
            return False
        self._offset, self._usable_from = offset, time.monotonic() + _AFTER_A_STEP
        self._marks.clear()
        self._seen = 0.0
        return True

    def is_due(self) -> bool:
        """Not each time: a stream that waits need not write."""
        if time.monotonic() - self._recorded < _RECORD_SECONDS:
            return False
        self._recorded = time.monotonic()
        return True


def _offset() -> float:
    """Return the wall clock's distance from the monotonic clock, read when no other thread came in between."""
    for _ in range(100):
        before, wall, after = time.monotonic(), time.time(), time.monotonic()
        if after - before < STEP_SECONDS / 2:
            break
    return wall - before


class _Listener:
    """Listener that the JVM calls; the method names are Spark's."""

    def __init__(self, idle: Callable[[str], None]) -> None:
        self._idle = idle

    def onQueryStarted(self, event: Any) -> None:
        pass

    def onQueryProgress(self, event: Any) -> None:
        pass

    def onQueryIdle(self, event: Any) -> None:
        self._idle(event.timestamp())

    def onQueryTerminated(self, event: Any) -> None:
        pass

    class Java:
        implements = ("org.apache.spark.sql.streaming.PythonStreamingQueryListener",)
