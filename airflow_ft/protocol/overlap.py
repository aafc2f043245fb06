"""Delivery beside a running stage: published checkpoints are planned and delivered at once, in the stage's process.

It uses the stage's own epoch, so for every sink and for the decision log it is one more task of that run (I5). The
tasks behind the stage deliver what it leaves. If the process dies here, recovery handles it as any delivery that died.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from types import TracebackType
from typing import Self

from airflow_ft.protocol.config import CheckpointConfig
from airflow_ft.protocol.coordinator import Coordinator
from airflow_ft.protocol.delivery_log import RunLog
from airflow_ft.protocol.errors import (
    CheckpointExpiredError,
    FencedError,
    SinkAccessError,
    SinkUnavailableError,
    StateConflictError,
    StoreUnavailableError,
    TransientError,
)
from airflow_ft.protocol.memory import give_back
from airflow_ft.protocol.model import Checkpoint
from airflow_ft.protocol.numbers import count_text
from airflow_ft.protocol.planning import Delivery
from airflow_ft.protocol.restart import is_tolerated
from airflow_ft.protocol.retention import Progress, finalise, retain
from airflow_ft.protocol.steps import Context, has_work
from airflow_ft.protocol.write_ahead_log import Archive

log = logging.getLogger(__name__)

LONGEST_PAUSE = 30.0
_TRIED_BEFORE_IT_EXPIRES = 4
"""Least number of tries at an unavailable sink within the time-out of a checkpoint, and of sweeps."""
RETAINED_TOGETHER = 20
"""Delivered checkpoints that are finalised together, when old ones are pruned too. Until then each of them is read with
every look at the open ones, and keeps its place on disk."""
FOLLOWED_EACH = 5.0
"""Seconds between a stream's reports to its sources of how far it has confirmed. Even small progress is reported,
because people watch the lag of consumer groups."""
PRUNED_EACH, PRUNED_BYTES = 60.0, 256_000_000
"""Seconds, or delivered bytes, after which a stream prunes, also at its start. Its next checkpoint waits meanwhile."""
LOGGED_EACH = 10.0


class Overlap:
    """Deliver from a thread for the duration of the block; `check` raises the error that ended it.

    Retries an unavailable sink with growing pauses (seconds, from `interval`). In a stream a pause never outlasts the
    timeout of a published checkpoint. With AT_LEAST_ONCE the other sinks do not wait: each publication is delivered to
    them. An error that a retry cannot solve ends the block: refused rows have rewound the pipeline, and then the stage
    must end too.

    In a stream a checkpoint that is not decided in time expires. More of these in a row than
    `config.tolerable_failures` end the block. `Heartbeat` logs successes in summaries.
    """

    def __init__(
        self,
        context: Context[RunLog],
        epoch: int,
        delivery: Delivery,
        config: CheckpointConfig,
        progress: Progress,
        archive: Archive,
        interval: float = 0.5,
        *,
        streaming: bool = False,
    ) -> None:
        self._context = context
        self._coordinator = Coordinator(
            context.store,
            context.pipeline,
            epoch,
            context.participants,
            timeout=config.timeout if streaming else None,
            level=logging.DEBUG if streaming else logging.INFO,
        )
        self._heartbeat = Heartbeat(context.store, context.pipeline) if streaming else None
        self._delivery, self._config, self._interval = delivery, config, interval
        in_time = config.timeout.total_seconds() / _TRIED_BEFORE_IT_EXPIRES if streaming else LONGEST_PAUSE
        self._longest_pause = min(LONGEST_PAUSE, in_time)
        self._longest_retention = in_time if streaming else math.inf
        self._progress, self._archive = progress, archive
        self._delivered = self._bytes = 0  # since it was finalised, and pruned
        # When it was pruned (monotonic), and whether more was delivered since: first what a dead process did not prune.
        self._pruned, self._can_prune = -math.inf, True
        # When the sources get the rest (monotonic), first what a dead process did not report.
        self._sources_know, self._follows = False, time.monotonic() + FOLLOWED_EACH
        self._stop, self._wake = threading.Event(), threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name=f"overlap-{context.pipeline}", daemon=True)

    def settle_plans(self) -> None:
        """Drop plans for other sinks and number their carried rows. Call it before the stage.

        During the stage such a number would fall between two of the stage's own numbers and end it.
        """
        try:
            if has_work(self._context):
                self._coordinator.plan(self._delivery, self._config.max_delivery_rows)
        except FencedError:
            raise
        except TransientError as error:
            log.warning("cannot plan the delivery of earlier rows yet: %s", error)

    def wake(self) -> None:
        """Something was published: it need not wait for the next look."""
        self._wake.set()

    def deliver(self) -> None:
        """Delivers what is staged at this moment, number by number; returns early when the block has ended."""
        if not has_work(self._context):
            return
        self._coordinator.expire()
        away: TransientError | None = None
        for number in self._coordinator.plan(self._delivery, self._config.max_delivery_rows):
            if self._stop.is_set():
                return
            try:
                checkpoint = self._coordinator.deliver(number)
            except (SinkUnavailableError, SinkAccessError, StateConflictError) as error:
                if self._delivery.mode.waits:
                    raise
                away = away or error  # the other sinks take what follows
                continue
            segments = checkpoint.plan.segments if checkpoint.plan else ()
            self._delivered += max(1, len(segments))
            self._bytes += sum(segment.bytes for segment in segments)
            self._sources_know, self._can_prune = False, True
            if self._heartbeat:
                self._heartbeat.beat(checkpoint)
            if self._delivered >= RETAINED_TOGETHER:
                self._retain()
                self._delivered = 0
        if away is not None:
            raise away

    def _retain(self) -> None:
        """Apply retention as `confirmed` does at the end of a run, so that a long run does not keep all staged rows.

        The stage works in folders of the present epoch, or in that of the base: the sweep leaves both alone. What a
        sweep does not manage before checkpoints expire, or the stage ends, is left to the next one.
        """
        context = self._context
        if self._heartbeat and not self._must_prune:
            self._commit_source_progress()
            return
        self._pruned, self._bytes, self._can_prune = time.monotonic(), 0, False
        self._coordinator.close()  # separate connections delete old markers
        participants, archive, progress = context.participants, self._archive, self._progress
        if not retain(
            context.store, context.pipeline, self._config, participants, archive, progress, self._must_stop_sweep
        ):
            self._can_prune = True
        give_back()

    def _must_stop_sweep(self) -> bool:
        return self._stop.is_set() or time.monotonic() - self._pruned >= self._longest_retention

    @property
    def _must_prune(self) -> bool:
        is_due = self._bytes >= PRUNED_BYTES or time.monotonic() - self._pruned >= PRUNED_EACH
        return self._can_prune and is_due

    def _commit_source_progress(self) -> None:
        self._sources_know = finalise(self._context.store, self._context.pipeline, self._progress)
        self._follows = time.monotonic() + (FOLLOWED_EACH if self._sources_know else PRUNED_EACH)

    def check(self) -> None:
        """Raises what ended it, such as DeclinedError."""
        if self._error is not None:
            raise self._error

    def _look(self) -> None:
        """Deliver. A stream also prunes and reports confirmed positions to the sources, even if a sink is unavailable.

        Raises as `deliver`.
        """
        try:
            self.deliver()
        except FencedError:
            raise
        except TransientError:
            self._follow()
            raise
        self._follow()

    def _follow(self) -> None:
        if not self._heartbeat:
            return
        if self._must_prune:
            self._retain()
        elif not self._sources_know and time.monotonic() >= self._follows:
            self._commit_source_progress()

    def _run(self) -> None:
        """Deliver until the block ends. Keeps any error: otherwise the stage would continue without delivery and
        without a sign.
        """
        try:
            self._deliver_on()
        except Exception as error:
            self._error = error
        except BaseException as error:  # so pyo3 raises the panic of a library in Rust
            self._error = TransientError(
                f"the delivery beside the stage ended with {type(error).__name__}: {error}.",
                code="delivery_crashed",
                remedy="Do nothing: it is retried. Report it if it happens again.",
                pipeline=self._context.pipeline,
                cause=type(error).__name__,
            )
            self._error.__cause__ = error

    def _deliver_on(self) -> None:
        """Raises what ends it, such as DeclinedError."""
        pause, waiting, said = self._interval, self._wake, 0.0
        while True:
            waiting.wait(pause)
            if self._stop.is_set():
                return
            self._wake.clear()
            try:
                self._look()
                pause, waiting = self._interval, self._wake
            except CheckpointExpiredError as error:
                context, tolerable = self._context, self._config.tolerable_failures
                if not is_tolerated(error, context.store, context.pipeline, tolerable):
                    raise
                log.warning("%s This is tolerated: tolerable_failures is %d", error, tolerable)
                pause, waiting = self._interval, self._wake  # a pause beyond the time-out lets the next one expire, too
            except TransientError as error:
                if isinstance(error, FencedError) and self._is_replaced():
                    return  # any reader of the stage's lease sees it too
                pause = min(self._longest_pause, 2 * pause)
                # With AT_LEAST_ONCE the other sinks take what is published meanwhile.
                waiting = self._stop if self._delivery.mode.waits else self._wake
                if (now := time.monotonic()) >= said:
                    log.warning("delivery beside the stage is retried in %.0f s: %s", pause, error)
                    said = now + pause

    def _is_replaced(self) -> bool:
        """Return whether a newer owner exists. A sink may also refuse without one, as when others take a transactional
        id.
        """
        try:
            return self._context.store.pipeline(self._context.pipeline).epoch != self._coordinator.epoch
        except StoreUnavailableError:  # the next look shows it
            return False

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        self._stop.set()
        self._wake.set()
        if kind is None or issubclass(kind, Exception):  # else this process is being ended: nothing to wait for
            self._thread.join()
            self._coordinator.close()


class Heartbeat:
    """Sums up deliveries and logs them every `LOGGED_EACH` seconds: rows, checkpoints, latency, waiting rows."""

    def __init__(self, store: RunLog, pipeline: str) -> None:
        self._store, self._pipeline = store, pipeline
        self._began = time.monotonic()
        self._forget()

    def _forget(self) -> None:
        self._rows = self._count = 0
        self._latencies: list[float] = []

    def beat(self, checkpoint: Checkpoint) -> None:
        """One more number is delivered."""
        if not checkpoint.is_confirmed or checkpoint.completed_at is None or checkpoint.plan is None:
            return
        self._count += 1
        self._rows += sum(segment.total_rows for segment in checkpoint.plan.segments)
        self._latencies.append((checkpoint.completed_at - checkpoint.triggered_at).total_seconds())
        seconds = time.monotonic() - self._began
        if seconds < LOGGED_EACH:
            return
        waiting = self._store.undelivered(self._pipeline)
        log.info(
            "checkpoint %d is confirmed: %s in %s in %.0f s; %.2f s from trigger to confirmation"
            " (longest %.2f s); %s for delivery",
            checkpoint.number,
            count_text(self._rows, "row"),
            count_text(self._count, "checkpoint"),
            seconds,
            sorted(self._latencies)[len(self._latencies) // 2],
            max(self._latencies),
            f"{waiting} wait" if waiting else "nothing waits",
        )
        self._began = time.monotonic()
        self._forget()
