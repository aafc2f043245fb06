"""`JobRestarts`: a failed job of a stream begins again in its driver: same JVM and epoch, a new attempt."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_ft.protocol.decision_log import QueryLog
from airflow_ft.protocol.errors import (
    AirflowFtError,
    CheckpointExpiredError,
    JobError,
    StageError,
    StoreUnavailableError,
)
from airflow_ft.protocol.model import SparkPosition
from airflow_ft.protocol.numbers import count_text
from airflow_ft.protocol.reasons import AbortReason
from airflow_ft.protocol.restart import (
    FailureRate,
    RestartStrategy,
    given_up,
    is_tolerated,
    wait_after,
)
from airflow_ft.spark.attribution import current
from airflow_ft.spark.driver.ending import Ending, warn_of
from airflow_ft.spark.driver.executors import MOST_LOSSES, ExecutorLostError
from airflow_ft.spark.driver.publisher import PublishedCounts
from airflow_ft.spark.driver.requests import Requests
from airflow_ft.spark.driver.session import is_alive
from airflow_ft.spark.driver.staging import ManyRowsError
from airflow_ft.spark.request import StageRequest
from airflow_ft.spark.state.draining import drain_of
from airflow_ft.spark.state.locations import behind_the_beginning, incarnation_of
from airflow_ft.store.decision_log import DecisionLog
from airflow_ft.wal.retention import sweep_attempts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_OF_THE_JOB = JobError, StageError, CheckpointExpiredError
_OF_OTHERS = ExecutorLostError, StoreUnavailableError
_PAUSE = 1.0, 60.0
"""Seconds between tries of a checkpoint whose failure is tolerated: its interval, but no less and no more."""
MOST_RESTARTS = 5
"""Restarts in a row without a published checkpoint. After them the fault may be in the JVM, such as lost local files.
"""
_LOOK_SECONDS = 1.0
_LOG_AWAY, _LOG_PAUSE = 60.0, 1.0
"""Seconds for which a driver waits for the decision log, and between two looks."""

log = logging.getLogger("airflow_ft.spark")


def continuing(request: StageRequest, base: SparkPosition | None) -> StageRequest:
    """Return a request that continues from a base, or without one reads everything again."""
    return replace(request, base=behind_the_beginning(base), incarnation=incarnation_of(base))


class _InARow:
    """Count failures since the last publication."""

    def __init__(self, counts: PublishedCounts) -> None:
        self._counts, self._published, self.count = counts, 0, 0

    def add(self) -> int:
        """Count one more. Return how many there are."""
        now = self._counts.numbers.count
        self.count = self.count + 1 if now == self._published else 1
        self._published = now
        return self.count


class JobRestarts:
    """The restarts of one driver. `expects_few`: see `staging.write_batch`."""

    def __init__(self, request: StageRequest, requests: Requests, counts: PublishedCounts, ending: Ending) -> None:
        """`request`: of the first attempt. Without a strategy in it, it begins again only after lost executors and
        outages of the decision log.
        """
        given = request.restart
        self._restarts = None if given is None else RestartStrategy.from_json(given).begin(time.monotonic())
        self._requests, self._ending = requests, ending
        # What is computed again then, though nothing has died, would be lost without a base.
        self.expects_few = request.streaming and not request.starts_from_scratch
        self._failures, self._losses = _InARow(counts), _InARow(counts)

    def after(
        self, store: DecisionLog, spark: SparkSession, request: StageRequest, error: Exception
    ) -> StageRequest | None:
        """Handle an error of a stream. Returns the request of a new attempt; None: it was stopped meanwhile.

        Raises the error if the strategy is exhausted or a restart cannot help. A restart cannot solve an error in the
        job itself, or a dead JVM. After `MOST_RESTARTS` without success the error goes to the task, which starts
        another JVM.
        """
        ending, restarts = self._ending, self._restarts
        if self._requests.is_killed():
            raise error
        cause = ending.cause(error)
        if ending.began and isinstance(cause, _OF_OTHERS) and self._may_compute_again() and is_alive(spark):
            warn_of(cause)
            if isinstance(cause, StoreUnavailableError):
                return self._await_log(store, request, cause)
            log.warning("Spark computes the micro-batch again at once")
            return self._begin_again(store, request, 0.0)
        if restarts is None or not ending.began or not isinstance(cause, _OF_THE_JOB):
            raise error
        if not is_alive(spark):
            raise error
        tolerable = request.checkpointing.tolerable_failures
        tolerated = not isinstance(cause, ManyRowsError) and is_tolerated(cause, store, request.pipeline, tolerable)
        if not isinstance(cause, JobError | ManyRowsError) and self._is_stuck(restarts.strategy, tolerated):
            log.warning(
                "no checkpoint was published in %s, so the task starts another driver",
                count_text(self._failures.count - 1, "restart"),
            )
            raise error
        wait: float | None
        if isinstance(cause, ManyRowsError):
            wait, self.expects_few = 0.0, False  # such a job would meet it again and again
            log.info("%s Spark computes it again at once, and writes all micro-batches itself from now on", cause.what)
        elif tolerated:
            least, most = _PAUSE
            wait = max(least, min(most, request.checkpointing.interval.total_seconds()))
            if isinstance(cause, CheckpointExpiredError):  # the next one is overdue
                wait = 0.0
            warn_of(cause)
            log.warning("the job restarts in %.0f s: tolerable_failures is %d", wait, tolerable)
        else:
            wait = wait_after(cause, restarts, "the job")
            if wait is None:
                ending.first = given_up(cause, restarts.strategy)
                raise error
        return self._begin_again(store, request, wait)

    def _is_stuck(self, strategy: RestartStrategy, tolerated: bool) -> bool:
        """Count a failure. Return whether to start another JVM: after `MOST_RESTARTS`, if the strategy sets no maximum.

        Streams of a group would get the same JVM again.
        """
        failures, most = self._failures.add(), MOST_RESTARTS
        if isinstance(strategy, FailureRate):  # more than these in a row are rarer than its rate
            most = max(most, strategy.max_failures_per_interval + 1)
        return (tolerated or strategy.is_endless) and not current() and failures > most

    def _may_compute_again(self) -> bool:
        """Return whether executors or the log may be lost again. Each publication resets the count."""
        return self._losses.add() <= MOST_LOSSES

    def _await_log(
        self, store: DecisionLog, request: StageRequest, error: StoreUnavailableError
    ) -> StageRequest | None:
        """Begin again as soon as the decision log answers; StoreUnavailableError if it stays away.

        An unanswered publication is settled by then: it holds the pipeline's row until it has ended, and afterwards the
        new attempt refuses it.
        """
        log.warning("waiting up to %.0f s for the decision log, then Spark computes the micro-batch again", _LOG_AWAY)
        what, deadline = request.redactor()(error.what), time.monotonic() + _LOG_AWAY
        while True:
            try:
                store.give_up(request.pipeline, request.epoch, error.abort_reason, what)
                return self._begin_again(store, request, 0.0)
            except StoreUnavailableError:
                asked = self._requests.is_to_end(within=_LOG_PAUSE) or self._requests.is_killed()
                if asked or time.monotonic() > deadline:
                    raise

    def _is_to_drain(self) -> bool:
        return self._requests.is_to_drain() and not self._requests.is_killed()

    def _begin_again(self, store: DecisionLog, request: StageRequest, wait: float) -> StageRequest | None:
        """Wait some seconds, then make a new attempt in this process; None: it was asked to end meanwhile."""
        left, deadline = wait, time.monotonic() + wait
        while self._is_to_drain() and left > 0:
            time.sleep(min(_LOOK_SECONDS, left))
            left = deadline - time.monotonic()
        if not self._is_to_drain() and self._requests.is_to_end(within=left) and not self._is_to_drain():
            what = "its stream was asked to end before the job restarted"
            try:
                store.give_up(request.pipeline, request.epoch, AbortReason.ATTEMPT_ENDED, what)
            except AirflowFtError as error:  # the next owner's epoch does it
                log.warning("an open checkpoint could not be recorded as aborted: %s", error)
            return None
        self._ending.reset()
        drain = drain_of(store, request.pipeline) if self._is_to_drain() else None
        if drain is not None and drain.epoch == request.epoch:  # Spark has failed behind the last checkpoint
            log.info("checkpoint %d has drained the state, so the job does not restart", drain.number)
            return None
        attempt = store.begin_again(request.pipeline, request.epoch, request.run)
        now = store.pipeline(request.pipeline)  # read after it (I10): a rewind before it has set another base
        return replace(
            continuing(request, now.base),
            attempt=attempt,
            base_is_clean=False,
            last_published=now.last_published,
            ask_sinks=False,
        )


def tidy_up(store: QueryLog, spark: SparkSession, request: StageRequest) -> None:
    """Delete files of this epoch's earlier attempts, which would fill the disk of a stream in some days.

    They can publish nothing any more (`begin_again`), so only the locations referenced now are needed. The
    base that was read earlier is kept too, in case of a rewind in between. Does nothing while a query still
    writes.
    """
    try:
        if spark.streams.active:
            return
        kept = {*store.referenced_locations(request.pipeline), *([request.base.location] if request.base else ())}
        sweep_attempts(request.wal_root, request.pipeline, kept, request.epoch, request.attempt)
    except (AirflowFtError, OSError) as error:  # the next restart, or the next epoch, does it
        log.warning("files of earlier attempts were not deleted: %s", error)
