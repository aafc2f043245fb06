"""Publication: after Spark's own commit of a batch, by one conditional write, from one thread.

The thread also seals the segment, while Spark commits and plans the next batch, and watches the clock: a batch that is
not published in time is aborted. Whatever it meets ends the attempt, and the query with it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_ft.protocol.background import beside
from airflow_ft.protocol.errors import (
    AirflowFtError,
    CheckpointExpiredError,
    FencedError,
    JobError,
    SealError,
    StorageUnavailableError,
    StoreUnavailableError,
)
from airflow_ft.protocol.model import AfterAbort, Segment, SparkPosition
from airflow_ft.protocol.numbers import Numbers, count_text
from airflow_ft.protocol.planning import stranded
from airflow_ft.protocol.reasons import AbortReason
from airflow_ft.spark.driver.failures import last_line
from airflow_ft.spark.driver.moments import Moment
from airflow_ft.spark.driver.proof import require_proven
from airflow_ft.spark.request import StageRequest, StageResult
from airflow_ft.wal.roots import away

if TYPE_CHECKING:
    from airflow_ft.protocol.delivery_log import DeliveryLog

POLL_SECONDS = 0.005  # a row is as late as that; to look takes microseconds
REMOTE_POLL_SECONDS = 0.02, 0.25
"""The first and the longest pause between two looks for Spark's commit where each is a request to a server."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Open:
    """The number that is being computed, is sealed (then it has `seal`), or waits for Spark's commit (a segment)."""

    number: int
    batch: int
    deadline: float
    ahead: Future[None] | None
    seal: Callable[[], Segment] | None = None
    sealing: Future[Segment] | None = None
    is_checked: bool = False  # its sources are still those of which it was read
    segment: Segment | None = None
    positions: Mapping[str, Any] | None = None
    as_of: Moment | None = None
    pause: float = POLL_SECONDS  # before the next look for Spark's commit
    began: float = field(default_factory=time.monotonic)
    parts: dict[str, float] = field(default_factory=dict)  # seconds, for traces
    since: float = field(default_factory=time.monotonic)  # the present one

    def end(self, part: str) -> None:
        """So far it took this part, and from here on another one."""
        now = time.monotonic()
        self.parts[part], self.since = round(now - self.since, 6), now


class PublishedCounts:
    """Published numbers, and rows by sink. `output_mode` is that of the query."""

    def __init__(self) -> None:
        self.numbers = Numbers()
        self.rows: Counter[str] = Counter()
        self.output_mode = "append"

    def add(self, segment: Segment) -> None:
        """One more."""
        self.numbers = self.numbers.plus(segment.number)
        self.rows.update(segment.rows)

    def result(self, position: SparkPosition | None, *, complete: bool = True) -> StageResult:
        """As the end of an attempt."""
        found = self.numbers
        before = found.count - len(found.newest)
        return StageResult(
            found.newest,
            dict(self.rows),
            position,
            complete=complete,
            before=before,
            first=found.first if before else 0,
            output_mode=self.output_mode,
        )


class Publisher:
    """Assigns numbers and publishes them in order; at most one is open.

    `committed(batch)` returns whether Spark has committed the batch. `durable()` makes Spark's location durable.
    `ahead()`, called while a batch is computed, makes durable what is there already. `check()` raises if the sources
    are no longer those of which the batch was read; it is called when the rows are written, while Spark commits the
    batch. `position(batch)` is Spark's position after it (None: a static job, or a drain, which nothing continues).
    `remote`: `committed` asks a server. `stop(failure)` is called once, from the thread, when the attempt must end.
    `application` is Spark's id of this one. `last_batch` is the last one with a position, published under
    `last_number`; `last_read` is the last number that has read anything, with its positions.
    """

    def __init__(
        self,
        store: DeliveryLog,
        request: StageRequest,
        *,
        committed: Callable[[int], bool],
        durable: Callable[[], None],
        ahead: Callable[[], None] | None = None,
        check: Callable[[], None] = lambda: None,
        position: Callable[[int], SparkPosition | None],
        stop: Callable[[BaseException], None],
        counts: PublishedCounts | None = None,
        application: str = "",
        remote: bool = False,
    ) -> None:
        self._first_pause, self._longest_pause = REMOTE_POLL_SECONDS if remote else (POLL_SECONDS, POLL_SECONDS)
        self._store, self._request, self._application = store, request, application
        self._committed, self._durable, self._position, self._stop = committed, durable, position, stop
        self._ahead, self._check = ahead, check
        self._changed = threading.Condition()
        self._open: _Open | None = None
        self._closed = False
        self._predecessor = request.last_published
        self.failure: BaseException | None = None
        self.counts = counts or PublishedCounts()
        self.last_batch: int | None = None
        self.last_number = 0
        self.last_segment: Segment | None = None  # of this attempt
        self.last_read: tuple[int, Mapping[str, Any]] | None = None
        self._thread = threading.Thread(target=self._watch, name="publisher", daemon=True)
        self._thread.start()

    def begin(self, batch: int) -> int:
        """The number of a batch that begins now; waits for the publication of the one before. Raises `failure`."""
        self.settle()
        request = self._request
        number = self._store.trigger(request.pipeline, request.epoch, request.run, self._application)
        with self._changed:
            ahead = None if self._ahead is None else beside(self._ahead, "ahead")
            self._open = _Open(number, batch, time.monotonic() + self._timeout, ahead)
        return number

    def written(self, seal: Callable[[], Segment], positions: Mapping[str, Any], as_of: Moment | None = None) -> None:
        """The open number's files are there: they are sealed now, and published when Spark has committed the batch.

        `as_of`: see `DeliveryLog.publish`.
        """
        with self._changed:
            self._raise()
            assert self._open is not None
            self._open.end("compute")
            self._open.seal, self._open.positions, self._open.as_of = seal, positions, as_of
            self._changed.notify_all()

    def carry(self) -> int | None:
        """Publish a number for stranded rows of an aborted one, if nothing else would deliver them; returns it.

        Only this attempt may do so: another process's number between two of its own would end it.
        """
        self.settle()
        request = self._request
        if not stranded(self._store.open_checkpoints(request.pipeline)):
            return None
        number = self._store.trigger(request.pipeline, request.epoch, request.run, self._application)
        self._store.publish(request.pipeline, request.epoch, number, self._predecessor, None, None, {})
        self._predecessor = number
        log.info("checkpoint %d published: it delivers the rows of an aborted checkpoint", number)
        return number

    def settle(self) -> None:
        """Waits until nothing is open; raises what prevented a publication. Call it when Spark has committed."""
        while not self.settled(1.0):
            pass

    def settled(self, within: float) -> bool:
        """Wait up to these seconds, and return whether nothing is open; raise what prevented a publication."""
        with self._changed:
            self._changed.wait_for(lambda: self._open is None or self.failure is not None, within)
            self._raise()
            return self._open is None

    def close(self, cause: AirflowFtError | None = None) -> None:
        """Ends the thread after the query has ended. What Spark committed is published; an open number is aborted.

        `cause`: what ended the query, if that was an error. Raises nothing: `failure` says what went wrong.
        """
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()
        now, failure = self._open, self.failure
        if now is None or isinstance(failure, CheckpointExpiredError):  # that has aborted it
            return
        if isinstance(failure, FencedError):  # the newer owner has
            return
        known = failure if isinstance(failure, AirflowFtError) else cause
        # Perhaps it is published. An abort would wait for the log, too, until the `Stopper` ends the process: the next
        # attempt does it (`DecisionLog.give_up`).
        if isinstance(known, StoreUnavailableError):
            return
        reason = AbortReason.ATTEMPT_ENDED if known is None else known.abort_reason
        if failure is not None and now.is_checked and now.segment is None and not isinstance(known, JobError):
            reason = AbortReason.SEAL_FAILED
        self._abort(now, reason, self._request.redactor()(known.what if known else "the attempt ended"))

    @property
    def _timeout(self) -> float:
        return self._request.checkpointing.timeout.total_seconds()

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
                    now.sealing = beside(now.seal, "seal")  # a hung disk must not stop the clock
                    self._check()
                    now.is_checked = True
                if now.sealing is not None and now.segment is None and now.sealing.done():
                    now.segment = self._sealed(now, now.sealing)
                    now.end("seal")
                    now.pause = self._first_pause
                is_ready = now.segment is not None and _is_done(now.ahead)  # asked once: it may become so meanwhile
                if now.segment is not None and is_ready and self._committed(now.batch):
                    self._publish(now, now.segment)
                elif time.monotonic() > now.deadline:
                    self._expire(now)
                elif self._closed and (now.sealing is None or is_ready):
                    return
                elif now.sealing is not None:
                    with suppress(TimeoutError):
                        now.sealing.exception(POLL_SECONDS)
                    if now.segment is not None:
                        time.sleep(now.pause)
                        now.pause = min(1.5 * now.pause, self._longest_pause)
        except BaseException as error:
            with self._changed:
                self.failure = error
                self._changed.notify_all()
            self._stop(error)

    def _sealed(self, now: _Open, sealing: Future[Segment]) -> Segment:
        try:
            return sealing.result()
        except AirflowFtError:
            raise
        except Exception as error:
            raise self._seal_error(now, error) from error

    def _seal_error(self, now: _Open, error: Exception) -> SealError | StorageUnavailableError:
        if gone := away(self._request.wal_root):
            return gone
        return SealError(
            f"its files could not be sealed: {last_line(error).rstrip('.')}.",
            pipeline=self._request.pipeline,
            checkpoint=now.number,
            remedy="Check whether the disk of wal_root is full or unreachable. Nothing was published: the next attempt"
            " computes the rows again.",
        )

    def _publish(self, now: _Open, segment: Segment) -> None:
        try:
            if now.ahead is not None:
                now.ahead.result()  # a disk may report a lost write once only
            self._durable()
        except OSError as error:
            raise self._seal_error(now, error) from error
        position = self._position(now.batch)
        require_proven(self._request.wal_root, segment, position)
        as_of = None if now.as_of is None else now.as_of.earliest_until  # of the write's own time: no further request
        # One conditional write. Refused or unanswered: it is not repeated, the attempt ends (I5). The next attempt, or
        # the next owner's epoch, settles a write that is still on its way.
        self._store.publish(
            self._request.pipeline,
            self._request.epoch,
            now.number,
            self._predecessor,
            segment,
            position,
            now.positions or {},
            as_of,
            parts=now.parts,
        )
        each = ", ".join(f"{name} {count:,}" for name, count in segment.rows.items())
        seconds = time.monotonic() - now.began
        log.info(
            "checkpoint %d published: %s in %.1f s (%s)",
            now.number,
            count_text(segment.total_rows, "row"),
            seconds,
            each,
        )
        with self._changed:
            self.counts.add(segment)
            if position is not None:
                self.last_batch, self.last_number = now.batch, now.number
            self.last_segment = segment
            if now.positions:
                self.last_read = now.number, now.positions
            self._predecessor = now.number
            self._open = None
            self._changed.notify_all()

    def _expire(self, now: _Open) -> None:
        timeout = self._timeout
        self._abort(now, AbortReason.EXPIRED, f"not staged within {timeout:g} s")
        raise CheckpointExpiredError(
            f"it was not staged within CheckpointConfig.timeout ({timeout:g} s), so it was aborted (EXPIRED).",
            pipeline=self._request.pipeline,
            checkpoint=now.number,
            remedy="Raise CheckpointConfig.timeout, or make the micro-batch smaller (max_offsets_per_trigger,"
            " max_files_per_trigger, max_bytes_per_trigger).",
            timeout=timeout,
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


def _is_done(ahead: Future[None] | None) -> bool:
    return ahead is None or ahead.done()
