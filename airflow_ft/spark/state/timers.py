"""Timers of processing time, which fire by the clock and not by incoming rows.

Some operators wait for the clock: timers and time to live of transformWithState in the mode "processingTime", and
time-outs of applyInPandasWithState. With them Spark runs micro-batches continually, without new rows and whether or
not a timer is due. So a query with availableNow would not end, and a new query would do nothing until rows arrive,
even if timers are due. Therefore, for such a job:

- the backlog is read without such micro-batches, so the query ends. Then, in a scheduled run, one micro-batch without
  data is begun (`begin`) and computed: due timers fire, and windows close;
- a stream begins to follow its sources with one, and Spark continues with one each interval;
- one without results is no checkpoint. The next checkpoint holds its changes of the state. If the attempt dies before,
  the earlier state is back and the timers fire again, which no sink has seen. `SILENT` limits how many may come
  between two checkpoints, so that Spark keeps the state that a rewind needs.

If the process dies between `begin` and the commit of that micro-batch, the location does not end at a commit. The next
attempt then works in a copy, cut back to what is published.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_ft.spark.state.files import has_state
from airflow_ft.spark.state.location_files import COMMITS, OFFSETS, add_entry, entry, newest_batch
from airflow_ft.spark.state.locations import SparkLocation

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from airflow_ft.spark.request import StageRequest

SILENT = 50
"""Most consecutive micro-batches without data and without rows before one becomes a checkpoint."""
WAITING = 10
"""When more checkpoints than this wait for delivery, each micro-batch becomes one."""
_EMPTY = "spark.sql.streaming.noDataMicroBatches.enabled"
_RETAINED = "spark.sql.streaming.minBatchesToRetain"
# Plan nodes of operators with a clock, and their identification.
_CLOCKS = {
    "TransformWithState": "timeMode",
    "TransformWithStateInPySpark": "timeMode",
    "TransformWithStateInPandas": "timeMode",
    "FlatMapGroupsWithState": "timeout",
    "FlatMapGroupsInPandasWithState": "timeout",
}


class Timers:
    """Timers of a job, in the location of one attempt."""

    def __init__(self, frame: DataFrame, location: SparkLocation, request: StageRequest) -> None:
        self._spark, self._location = frame.sparkSession, location
        # Who has switched such micro-batches off does not want them.
        self.any = _is_on(self._spark) and _waits_for_the_clock(frame._jdf.queryExecution().analyzed())
        self.forced: int | None = None  # the micro-batch that was begun here, without looking for anything new
        if self.any:
            delivered = request.checkpointing.num_retained
            # The limit holds before each delivered one, before the oldest waiting ones, and before the next one.
            needed = request.retained_batches + delivered + SILENT * (delivered + WAITING + 1)
            self._spark.conf.set(_RETAINED, str(max(needed, int(str(self._spark.conf.get(_RETAINED))))))

    @contextmanager
    def ending(self) -> Iterator[None]:
        """A query that is started in the block ends when all is read."""
        if not self.any:
            yield
            return
        self._spark.conf.set(_EMPTY, "false")
        try:
            yield
        finally:
            self._spark.conf.set(_EMPTY, "true")

    def begin(self) -> bool:
        """Begins a micro-batch without data, which the next query computes; False: nothing can be due.

        To be called when no query runs, and the location ends at a commit.
        """
        if not self.any or not has_state(self._location.uri):
            return False
        batch = newest_batch(self._location.uri)
        if batch < 0:
            return False
        begin_batch(self._location, batch, watermark(self._location, batch)[1])
        self.forced = batch + 1
        return True

    def has_more(self) -> bool:
        """Return whether the micro-batch that was begun here has moved the watermark on."""
        if self.forced is None:
            return False
        of_it, after_it = watermark(self._location, self.forced)
        return after_it > of_it


def may_be_silent(since: int, undelivered: int) -> bool:
    """Return whether a micro-batch without results may be no checkpoint: `since` counts them after the last
    checkpoint.
    """
    return since <= SILENT and undelivered <= WAITING


def begin_batch(location: SparkLocation, batch: int, watermark_ms: int) -> None:
    """The micro-batch behind `batch` waits to be computed there, as after a crash: it reads nothing."""
    offsets = entry(location.uri, OFFSETS, batch)
    clock = {"batchWatermarkMs": watermark_ms, "batchTimestampMs": int(1000 * time.time())}
    add_entry(location.uri, OFFSETS, batch + 1, replace(offsets, metadata={**offsets.metadata, **clock}))


def watermark(location: SparkLocation, batch: int) -> tuple[int, int]:
    """Return the watermarks of a micro-batch and of the next one, in milliseconds."""
    begun, done = (entry(location.uri, log, batch).metadata for log in (OFFSETS, COMMITS))
    of_it = int(begun.get("batchWatermarkMs", 0))
    return of_it, max(of_it, int(done.get("nextBatchWatermarkMs", 0)))


def _is_on(spark: SparkSession) -> bool:
    return str(spark.conf.get(_EMPTY)).lower() == "true"


def _waits_for_the_clock(plan: Any) -> bool:
    """Return whether an operator of a logical plan does."""
    clock = _CLOCKS.get(plan.getClass().getSimpleName())
    if clock is not None and getattr(plan, clock)().toString().startswith("ProcessingTime"):
        return True
    children = plan.children()
    return any(_waits_for_the_clock(children.apply(index)) for index in range(children.size()))
