"""Waits until a barrier has passed several pipelines (I9). Reads only."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_ft.pipeline.barriers import BarrierGate
from airflow_ft.pipeline.obstacles import Obstacles
from airflow_ft.triggers.polling import poll
from airflow_ft.triggers.shared import Watch, reading

if TYPE_CHECKING:
    from airflow_ft.store.decision_log import DecisionLog


class BarrierTrigger(BaseTrigger):
    """Fires once, when the gate is open; the event is what `BarrierGate.is_open` returned.

    Args:
        gate: `BarrierGate.to_json()`.
        store: as in `airflow_ft.pipeline.decision_log.store_url`.
        poll_interval: seconds between two looks.
    """

    def __init__(self, *, gate: Mapping[str, Any], store: str | None = None, poll_interval: float = 10.0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.gate = dict(gate)
        self.store = store
        self.poll_interval = poll_interval
        declared = BarrierGate.from_json(self.gate)
        self._obstacles = Obstacles()
        # One that opens at a time of its own does so without a write.
        self._watch = Watch(declared.pipelines, always=declared.opens_at is not None)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Class path and arguments."""
        return (
            "airflow_ft.triggers.barrier.BarrierTrigger",
            {"gate": self.gate, "store": self.store, "poll_interval": self.poll_interval},
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """One event, when the gate is open."""
        with reading(self.store) as reader:
            opened = await poll(self.look, self.poll_interval, self.log, reader.threads)
        yield TriggerEvent(opened)  # type: ignore[no-untyped-call]

    def look(self) -> dict[str, Any] | None:
        """One look, in a thread of its own, at the log that all triggers share (`airflow_ft.triggers.shared`)."""
        return self._watch.look(self.store, self.poll_interval, self._ask)

    def _ask(self, store: DecisionLog) -> dict[str, Any] | None:
        gate = BarrierGate.from_json(self.gate)
        statuses = gate.statuses(store)
        opened = gate.opened(store, statuses)
        if opened is None:
            for text in self._obstacles.new(store, [each.pipeline for each in statuses if not each.covered]):
                self.log.warning("%s", text)
        return opened
