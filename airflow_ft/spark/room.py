"""For how many checkpoints Spark keeps the state: all that wait for delivery, since a rewind goes back before them."""

from __future__ import annotations

from airflow_ft.core.ports import Store
from airflow_ft.spark.request import StageRequest

# Batches that Spark keeps beyond those that wait for delivery: the last delivered one, to which a rewind goes, and the
# one under way.
SPARE_BATCHES = 2


class QueueIsFull(Exception):
    """As many checkpoints wait for delivery as Spark keeps state for: more could not be rewound any more (I10)."""

    def __init__(self, waiting: int) -> None:
        super().__init__(f"{waiting} checkpoints wait for delivery")
        self.waiting = waiting


class Room:
    """How much is left of it. What is delivered meanwhile makes room, so the decision log is read when none is left."""

    def __init__(self, store: Store, request: StageRequest) -> None:
        self._store, self._request, self._left = store, request, 0

    def take(self) -> None:
        """For one checkpoint more, when those before it are published; raises QueueIsFull."""
        if not self._left:
            waiting = self._store.undelivered(self._request.pipeline)
            self._left = max(0, self._request.retained_batches - SPARE_BATCHES - waiting)
            if not self._left:
                raise QueueIsFull(waiting)
        self._left -= 1
