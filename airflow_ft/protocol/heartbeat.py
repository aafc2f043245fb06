"""What a stream says of itself: a line now and then, not six for each checkpoint."""

from __future__ import annotations

import logging
import time

from airflow_ft.protocol.decision_log import CountLog
from airflow_ft.protocol.model import Checkpoint
from airflow_ft.protocol.numbers import count_text

SECONDS = 10.0

log = logging.getLogger(__name__)


class Heartbeat:
    """Sums up deliveries and logs them every `SECONDS`: rows, checkpoints, latency, waiting rows."""

    def __init__(self, store: CountLog, pipeline: str) -> None:
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
        if seconds < SECONDS:
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
