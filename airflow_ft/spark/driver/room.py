"""When the next checkpoint may be triggered.

Spark keeps the state of so many micro-batches, and a rewind goes back to before all that wait for delivery. A scheduled
stage ends when that many wait. A stream waits, and its sources with it: `WaitReason` says for what.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from airflow_ft.core.model import CheckpointState
from airflow_ft.core.planning import quarantined
from airflow_ft.core.ports import Store
from airflow_ft.core.reasons import WaitReason
from airflow_ft.spark.request import StageRequest

# Batches that Spark keeps beyond those that wait for delivery: the last delivered one, to which a rewind goes, and the
# one under way.
SPARE_BATCHES = 2
_LOOK_SECONDS = 0.02
_TOLD_EACH = 30.0
_CARRIED_EACH = 1.0
_COUNTED_EACH = 10.0
_LIVE = (CheckpointState.STAGED, CheckpointState.PREPARED, CheckpointState.COMMITTING)

log = logging.getLogger(__name__)


class QueueIsFull(Exception):
    """As many checkpoints wait for delivery as Spark keeps state for: more could not be rewound any more (I10)."""

    def __init__(self, waiting: int) -> None:
        super().__init__(f"{waiting} checkpoints wait for delivery")
        self.waiting = waiting


class Room:
    """How much is left. What is delivered meanwhile makes room, so the decision log is read when none is left."""

    def __init__(self, store: Store, request: StageRequest) -> None:
        self._store, self._request, self._left = store, request, 0
        self._waited: dict[WaitReason, float] = {}  # seconds that were not told yet
        self._counted = time.monotonic()

    def take(self, is_over: Callable[[], bool] = lambda: False, carry: Callable[[], object] = lambda: None) -> None:
        """For one checkpoint more, when those before it are published; raises QueueIsFull for a scheduled stage.

        A stream waits here; returns early, with nothing taken, when `is_over`. What fills the room may have been given
        up, and wait for a number itself (I7): `carry` gives it one.
        """
        if not self._request.streaming:
            if not self._left:
                waiting = self._store.undelivered(self._request.pipeline)
                self._left = self._kept(waiting)
                if not self._left:
                    raise QueueIsFull(waiting)
            self._left -= 1
            return
        began = looked = told = carried = time.monotonic()
        while (reason := self.try_take()) and not is_over():
            time.sleep(_LOOK_SECONDS)
            now = time.monotonic()
            self._waited[reason] = self._waited.get(reason, 0.0) + now - looked
            looked = now
            self._tell_waits()
            if reason is WaitReason.TOO_MANY_QUEUED and now - carried > _CARRIED_EACH:
                carried = now
                carry()
            if now - told > _TOLD_EACH:
                told = now
                log.info(
                    "no checkpoint is triggered for %.0f s (%s), and %d wait for delivery. %s %s",
                    now - began,
                    reason,
                    self._store.undelivered(self._request.pipeline),
                    reason.cause,
                    reason.remedy,
                )
        self._tell_waits()

    def _tell_waits(self) -> None:
        """For metrics, now and then: `airflow_ft.spark.task.launcher` reads these lines."""
        if self._waited and time.monotonic() - self._counted > _COUNTED_EACH:
            self._counted = time.monotonic()
            for reason, seconds in self._waited.items():
                log.info("not triggered for %.3f s: %s", seconds, reason)
            self._waited.clear()

    def try_take(self) -> WaitReason | None:
        """Takes one off what is left, and returns None; or returns why no checkpoint may be triggered now."""
        config = self._request.checkpointing
        if not self._left:
            opened = self._store.open_checkpoints(self._request.pipeline)
            if quarantined(opened):
                return WaitReason.NOT_ACTIVE
            waiting = [c for c in opened if c.is_undelivered]
            # What was given up, or is delivered with a later one, is not between TRIGGERED and COMPLETED any more.
            live = [c for c in waiting if c.state in _LIVE]
            if config.unaligned:
                now = self._store.now()
                live = [c for c in live if now - c.triggered_at < config.aligned_timeout]
            left = min(config.concurrent - len(live), self._kept(len(waiting)))
            if left <= 0:
                return WaitReason.TOO_MANY_QUEUED
            if config.min_pause:
                latest = self._store.latest_confirmed(self._request.pipeline)
                if latest and latest.completed_at and self._store.now() - latest.completed_at < config.min_pause:
                    return WaitReason.MIN_PAUSE
            self._left = left
        self._left -= 1
        return None

    def _kept(self, waiting: int) -> int:
        return max(0, self._request.retained_batches - SPARE_BATCHES - waiting)
