"""Publication: after Spark's own commit of a batch, by one conditional write, from one thread.

The thread also seals the segment, while Spark commits and plans the next batch, and watches the clock: a batch that is
not published in time is aborted. Whatever it meets ends the attempt, and the query with it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from airflow_ft.core.background import beside
from airflow_ft.core.errors import AirflowFtError, CheckpointExpiredError
from airflow_ft.core.model import AbortReason, AfterAbort, Segment, SparkPosition
from airflow_ft.core.ports import Store
from airflow_ft.spark.request import StageRequest

POLL_SECONDS = 0.005  # a row is as late as that; to look takes microseconds

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Open:
    """The number that is being computed, is sealed (then it has `seal`), or waits for Spark's commit (a segment)."""

    number: int
    batch: int
    deadline: float
    seal: Callable[[], Segment] | None = None
    sealing: Future[Segment] | None = None
    segment: Segment | None = None
    positions: Mapping[str, Any] | None = None


class Publisher:
    """Gives out numbers and publishes them in order; at most one is open.

    `committed(batch)` tells whether Spark has committed the batch; `durable()` makes Spark's location durable, and
    whatever else has to be done before publication; `position(batch)` is Spark's position after it (None: a static
    job). `stop(failure)` is called
    once, from the thread, when the attempt must end.
    """

    def __init__(
        self,
        store: Store,
        request: StageRequest,
        *,
        committed: Callable[[int], bool],
        durable: Callable[[], None],
        position: Callable[[int], SparkPosition | None],
        stop: Callable[[BaseException], None],
    ) -> None:
        self._store, self._request = store, request
        self._committed, self._durable, self._position, self._stop = committed, durable, position, stop
        self._changed = threading.Condition()
        self._open: _Open | None = None
        self._closed = False
        self._predecessor = request.last_published
        self.failure: BaseException | None = None
        self.published: list[Segment] = []
        self.last_batch: int | None = None
        self._thread = threading.Thread(target=self._watch, name="publisher", daemon=True)
        self._thread.start()

    def begin(self, batch: int) -> int:
        """The number of a batch that begins now; waits for the publication of the one before. Raises `failure`."""
        self.settle()
        number = self._store.trigger(self._request.pipeline, self._request.epoch, self._request.run)
        with self._changed:
            self._open = _Open(number, batch, time.monotonic() + self._request.checkpoint_timeout)
        return number

    def written(self, seal: Callable[[], Segment], positions: Mapping[str, Any]) -> None:
        """The open number's files are there: they are sealed now, and published when Spark has committed the batch."""
        with self._changed:
            self._raise()
            assert self._open is not None
            self._open.seal, self._open.positions = seal, positions
            self._changed.notify_all()

    def settle(self) -> None:
        """Waits until nothing is open; raises what prevented a publication. Call it when Spark has committed."""
        with self._changed:
            while self._open is not None and self.failure is None:
                self._changed.wait(1.0)
            self._raise()

    def close(self, why: str) -> None:
        """Ends the thread after the query has ended. What Spark committed is published; an open number is aborted.

        Raises nothing: `failure` says what went wrong.
        """
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()
        if self._open is None or isinstance(self.failure, CheckpointExpiredError):  # that has aborted it
            return
        if self._open.segment is None or not isinstance(self.failure, AirflowFtError):  # no publication is in doubt
            self._abort(self._open, AbortReason.ATTEMPT_ENDED, why)

    def _raise(self) -> None:
        if self.failure is not None:
            raise self.failure

    def _watch(self) -> None:
        try:
            while True:
                with self._changed:
                    now = self._open
                    if now is None or now.seal is None:
                        if self._closed:
                            return
                        self._changed.wait(0.2)
                    now = self._open
                if now is None:
                    continue
                if now.seal is not None and now.sealing is None:
                    now.sealing = beside(now.seal, "seal")  # a disk that stands still must not stop the clock
                if now.sealing is not None and now.segment is None and now.sealing.done():
                    now.segment = now.sealing.result()
                if now.segment is not None and self._committed(now.batch):
                    self._publish(now, now.segment)
                elif time.monotonic() > now.deadline:
                    self._expire(now)
                elif self._closed and (now.sealing is None or now.segment is not None):
                    return
                elif now.sealing is not None:
                    with suppress(TimeoutError):
                        now.sealing.exception(POLL_SECONDS)
                    if now.segment is not None:
                        time.sleep(POLL_SECONDS)
        except BaseException as error:
            with self._changed:
                self.failure = error
                self._changed.notify_all()
            self._stop(error)

    def _publish(self, now: _Open, segment: Segment) -> None:
        self._durable()
        # One conditional write. Refused or unanswered: it is not repeated, the attempt ends (I5); a write that is
        # still on its way is settled by the next owner's epoch.
        self._store.publish(
            self._request.pipeline,
            self._request.epoch,
            now.number,
            self._predecessor,
            segment,
            self._position(now.batch),
            now.positions or {},
        )
        log.info("checkpoint %d published (batch %d)", now.number, now.batch)
        with self._changed:
            self.published.append(segment)
            self.last_batch = now.batch
            self._predecessor = now.number
            self._open = None
            self._changed.notify_all()

    def _expire(self, now: _Open) -> None:
        timeout = self._request.checkpoint_timeout
        self._abort(now, AbortReason.EXPIRED, f"not staged within {timeout:g} s")
        raise CheckpointExpiredError(
            f"it was not staged within CheckpointConfig.timeout ({timeout:g} s) and was aborted (EXPIRED).",
            pipeline=self._request.pipeline,
            checkpoint=now.number,
            remedy="raise the time-out, or make the micro-batch smaller (max_offsets_per_trigger,"
            " max_files_per_trigger).",
        )

    def _abort(self, now: _Open, reason: AbortReason, message: str) -> None:
        try:
            # Nothing was published, so there is nothing to carry or to rewind.
            self._store.abort(
                self._request.pipeline, self._request.epoch, now.number, reason, message, AfterAbort.CARRIED
            )
        except AirflowFtError as error:
            # It stays TRIGGERED, can no longer be published, and becomes ABORTED with the next owner's epoch.
            log.warning("checkpoint %d could not be recorded as aborted: %s", now.number, error)
