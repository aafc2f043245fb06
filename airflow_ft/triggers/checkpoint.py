"""Waits until a pipeline is confirmed up to a point (I9). Reads only."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_ft.pipeline.checkpoints import Gate
from airflow_ft.pipeline.obstacles import Obstacles
from airflow_ft.triggers.polling import poll
from airflow_ft.triggers.shared import Watch, reading

if TYPE_CHECKING:
    from airflow_ft.store.decision_log import DecisionLog


class CheckpointTrigger(BaseTrigger):
    """Fires once, when the gate is open; the event is what `Gate.is_open` returned.

    Args:
        pipeline: the pipeline's name.
        gate: `Gate.to_json()`.
        store: as in `airflow_ft.pipeline.decision_log.store_url`.
        poll_interval: seconds between two looks.
    """

    def __init__(
        self, *, pipeline: str, gate: Mapping[str, Any], store: str | None = None, poll_interval: float = 10.0
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.pipeline = pipeline
        self.gate = dict(gate)
        self.store = store
        self.poll_interval = poll_interval
        self._watch = Watch((pipeline,))
        self._obstacles = Obstacles()

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Class path and arguments."""
        return (
            "airflow_ft.triggers.checkpoint.CheckpointTrigger",
            {
                "pipeline": self.pipeline,
                "gate": self.gate,
                "store": self.store,
                "poll_interval": self.poll_interval,
            },
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
        opened = Gate.from_json(self.gate).is_open(store, self.pipeline)
        if opened is None:
            for each in self._obstacles.new(store, [self.pipeline]):
                self.log.warning("%s", each)
        return opened
