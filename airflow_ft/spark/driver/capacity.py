"""Decide when the next checkpoint may be triggered.

Spark keeps the state of a limited number of micro-batches, and a rewind goes back to before all undelivered ones. At
the limit a scheduled stage ends. A stream waits, and so do its sources; `WaitReason` gives the reason.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from airflow_ft.protocol.backpressure import SPARE_BATCHES, Wait, capacity
from airflow_ft.protocol.reasons import WaitReason
from airflow_ft.spark.request import StageRequest

if TYPE_CHECKING:
    from airflow_ft.store.decision_log import DecisionLog

_LOOK_SECONDS, _MOST_LOOK_SECONDS = 0.02, 1.0
_PAUSE_OF_A_LOOK = 10  # A look reads all waiting checkpoints, so it takes at most about a tenth of the time.
_LOG_EACH = 30.0
_CARRIED_EACH = 1.0
_COUNTED_EACH = 10.0

log = logging.getLogger(__name__)


class QueueIsFull(Exception):
    """As many checkpoints wait for delivery as Spark keeps state for. A rewind could not reach back further (I10)."""

    def __init__(self, waiting: int) -> None:
        super().__init__(f"{waiting} checkpoints wait for delivery")
        self.waiting = waiting


class Capacity:
    """Number of checkpoints that may still be triggered. Reads the decision log when none is left, since deliveries
    make room.
    """

    def __init__(self, store: DecisionLog, request: StageRequest) -> None:
        self._store, self._request, self._left = store, request, 0
        self._waited: dict[WaitReason, float] = {}  # seconds that are not reported yet
        self._counted = time.monotonic()

    def take(self, is_over: Callable[[], bool] = lambda: False, carry: Callable[[], object] = lambda: None) -> None:
        """For one checkpoint more, when those before it are published; raises QueueIsFull for a scheduled stage.

        A stream waits here; returns early, with nothing taken, when `is_over`. What fills the room may have been given
        up, and wait for a number itself (I7): `carry` gives it one.
        """
        if not self._request.streaming:
            if not self._left:
                waiting = self._store.undelivered(self._request.pipeline)
                self._left = max(0, self._request.retained_batches - SPARE_BATCHES - waiting)
                if not self._left:
                    raise QueueIsFull(waiting)
            self._left -= 1
            return
        began = looked = logged = carried = time.monotonic()
        now = began
        while (reason := self.try_take()) and not is_over():
            pause = _PAUSE_OF_A_LOOK * (time.monotonic() - now)
            time.sleep(min(max(_LOOK_SECONDS, pause), _MOST_LOOK_SECONDS))
            now = time.monotonic()
            self._waited[reason] = self._waited.get(reason, 0.0) + now - looked
            looked = now
            self._log_waits()
            if reason is WaitReason.TOO_MANY_QUEUED and now - carried > _CARRIED_EACH:
                carried = now
                carry()
            if now - logged > _LOG_EACH:
                logged = now
                log.info(
                    "no checkpoint is triggered for %.0f s (%s); %d wait for delivery. %s %s",
                    now - began,
                    reason,
                    self._store.undelivered(self._request.pipeline),
                    reason.cause,
                    reason.remedy,
                )
        self._log_waits()

    def _log_waits(self) -> None:
        """For metrics, now and then: `airflow_ft.spark.task.launcher` reads these lines."""
        if self._waited and time.monotonic() - self._counted > _COUNTED_EACH:
            self._counted = time.monotonic()
            for reason, seconds in self._waited.items():
                log.info("not triggered for %.3f s: %s", seconds, reason)
            self._waited.clear()

    def try_take(self) -> WaitReason | None:
        """Takes one off what is left, and returns None; or returns why no checkpoint may be triggered now."""
        if not self._left:
            request = self._request
            found = capacity(self._store, request.pipeline, request.checkpointing, request.retained_batches)
            if isinstance(found, Wait):
                return found.reason
            self._left = found
        self._left -= 1
        return None
