"""Waits until a run may take its pipeline's turn. Reads only, and proves nothing: the task looks again."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_ft.protocol.lease import LEASE_SECONDS
from airflow_ft.protocol.model import RunKey
from airflow_ft.triggers.polling import poll
from airflow_ft.triggers.shared import reading


class TurnTrigger(BaseTrigger):
    """Fire when no lease is alive, and the turn is free, is ours, or its holder's DAG run has no task that works.

    Args:
        pipeline: the pipeline's name.
        dag_id: of the waiting run.
        run_id: of the waiting run.
        map_index: of the waiting run.
        store: as in `airflow_ft.pipeline.decision_log.store_url`.
        lease_seconds: a lease without renewal for half of it counts as dead here (taking an epoch watches it for the
            whole time).
        poll_interval: seconds between two looks.
    """

    def __init__(
        self,
        *,
        pipeline: str,
        dag_id: str,
        run_id: str,
        map_index: int = -1,
        store: str | None = None,
        lease_seconds: float = LEASE_SECONDS,
        poll_interval: float = 5.0,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.pipeline = pipeline
        self.dag_id = dag_id
        self.run_id = run_id
        self.map_index = map_index
        self.store = store
        self.lease_seconds = lease_seconds
        self.poll_interval = poll_interval
        self._watched: dict[str, tuple[int, float]] = {}

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Class path and arguments."""
        return (
            "airflow_ft.triggers.turn.TurnTrigger",
            {
                "pipeline": self.pipeline,
                "dag_id": self.dag_id,
                "run_id": self.run_id,
                "map_index": self.map_index,
                "store": self.store,
                "lease_seconds": self.lease_seconds,
                "poll_interval": self.poll_interval,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """One event, when the turn is free."""
        with reading(self.store) as reader:
            await poll(self.is_free, self.poll_interval, self.log, reader.threads)
        yield TriggerEvent({"pipeline": self.pipeline})  # type: ignore[no-untyped-call]

    def is_free(self) -> bool:
        """One look, in a thread of its own."""
        from airflow_ft.pipeline.runs import run_is_idle

        with reading(self.store) as reader:
            store = reader.store()
            holder = store.pipeline(self.pipeline).turn
            leases = store.leases(self.pipeline)
        own = RunKey(self.dag_id, self.run_id, self.map_index)
        if holder is not None and holder != own and not run_is_idle(holder):
            return False
        now = time.monotonic()
        self._watched = {
            lease.holder: seen
            if (seen := self._watched.get(lease.holder, (-1, now)))[0] == lease.counter
            else (lease.counter, now)
            for lease in leases
        }
        return all(now - since >= self.lease_seconds / 2 for _, since in self._watched.values())
