"""Delivery beside a stage that goes on: what is published is planned and delivered at once, in the stage's process.

It works with the stage's own epoch, so for every sink and for the decision log it is one more task of that run (I5).
What it leaves undone, the tasks behind the stage do; if the process dies anywhere in here, it is a delivery that died.
"""

from __future__ import annotations

import logging
import threading
import time
from types import TracebackType
from typing import Self

from airflow_ft.protocol.config import CheckpointConfig
from airflow_ft.protocol.coordinator import Coordinator
from airflow_ft.protocol.errors import (
    CheckpointExpiredError,
    FencedError,
    SinkAccessError,
    SinkUnavailableError,
    StateConflictError,
    StoreUnavailableError,
    TransientError,
)
from airflow_ft.protocol.heartbeat import Heartbeat
from airflow_ft.protocol.memory import give_back
from airflow_ft.protocol.planning import Delivery
from airflow_ft.protocol.ports import Archive, Progress
from airflow_ft.protocol.restart import is_tolerated
from airflow_ft.protocol.retention import finalise, retain
from airflow_ft.protocol.steps import Context, has_work

log = logging.getLogger(__name__)

LONGEST_PAUSE = 30.0
_TRIED_BEFORE_IT_EXPIRES = 4
"""So often at least a sink that is away is tried within the time-out of a checkpoint."""
RETAINED_TOGETHER = 20
"""So many delivered checkpoints are finalised, and old ones pruned, at once: until then each is read with every look at
the open ones, and keeps its place on disk."""
FOLLOWED_EACH = 5.0
"""So often (seconds) a stream tells its sources how far it has confirmed, however little that is: people watch the lag
of consumer groups."""
PRUNED_EACH, PRUNED_BYTES = 60.0, 256_000_000
"""A stream, whose next checkpoint waits meanwhile, prunes so often (seconds), or when it has delivered so much."""


class Overlap:
    """Delivers from a thread for the duration of the block; `check` raises what ended it.

    A sink that is away is tried again, with growing pauses (seconds, from `interval`; in a stream none is so long that
    what is published meanwhile could expire before it was tried). With AT_LEAST_ONCE the others do not wait so long:
    each publication is delivered to them. Anything that trying again does not mend ends it: refused rows have rewound
    the pipeline, and then the stage has to end too.

    In a stream a checkpoint that is not decided in time expires; more of these in a row than
    `config.tolerable_failures` end it. What goes well is told as `Heartbeat` does, not each by itself.
    """

    def __init__(
        self,
        context: Context,
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
        self._progress, self._archive = progress, archive
        self._delivered = self._bytes = 0  # since it was finalised, and pruned
        self._pruned = time.monotonic()
        # When the sources hear the rest (monotonic): first what a process that has died did not tell them.
        self._is_told, self._follows = False, self._pruned + FOLLOWED_EACH
        self._stop, self._wake = threading.Event(), threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name=f"overlap-{context.pipeline}", daemon=True)

    def settle_plans(self) -> None:
        """To be called before the stage: plans for other sinks give way, and what carries their rows gets its number.

        While the stage goes on such a number would come between two of its own, and end it.
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
            self._is_told = False
            if self._heartbeat:
                self._heartbeat.beat(checkpoint)
            if self._delivered >= RETAINED_TOGETHER:
                self._retain()
                self._delivered = 0
        if away is not None:
            raise away

    def _retain(self) -> None:
        """What `confirmed` does at the end of a run: one that goes on for long must not keep all that it has staged.

        The stage works in folders of the present epoch, or in that of the base: the sweep leaves both alone.
        """
        context = self._context
        if self._heartbeat and self._bytes < PRUNED_BYTES and time.monotonic() - self._pruned < PRUNED_EACH:
            self._tell_sources()
            return
        self._pruned, self._bytes = time.monotonic(), 0
        self._coordinator.close()  # the sinks are told over connections of their own to forget old markers
        retain(context.store, context.pipeline, self._config, context.participants, self._archive, self._progress)
        give_back()

    def _tell_sources(self) -> None:
        self._is_told = finalise(self._context.store, self._context.pipeline, self._progress)
        self._follows = time.monotonic() + (FOLLOWED_EACH if self._is_told else PRUNED_EACH)

    def check(self) -> None:
        """Raises what ended it, such as DeclinedError."""
        if self._error is not None:
            raise self._error

    def _look(self) -> None:
        """Delivers; and tells the sources what is confirmed, also while a sink is away. Raises as `deliver`."""
        try:
            self.deliver()
        except FencedError:
            raise
        except TransientError:
            self._follow()
            raise
        self._follow()

    def _follow(self) -> None:
        if self._heartbeat and not self._is_told and time.monotonic() >= self._follows:
            self._tell_sources()

    def _run(self) -> None:
        """Until the block ends. Whatever else ends it is kept: in silence the stage would go on delivering nothing."""
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
                    return  # whoever watches the stage's lease hears of it too
                pause = min(self._longest_pause, 2 * pause)
                # With AT_LEAST_ONCE the other sinks take what is published meanwhile.
                waiting = self._stop if self._delivery.mode.waits else self._wake
                if (now := time.monotonic()) >= said:
                    log.warning("delivery beside the stage is retried in %.0f s: %s", pause, error)
                    said = now + pause

    def _is_replaced(self) -> bool:
        """Whether a newer owner is there. A sink may refuse without one: as when others take a transactional id."""
        try:
            return self._context.store.pipeline(self._context.pipeline).epoch != self._coordinator.epoch
        except StoreUnavailableError:  # the next look tells
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
