"""The gate (I9): what it means that a pipeline is confirmed up to a point. Shared by sensor and trigger."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from airflow_ft.core.errors import ConfigurationError
from airflow_ft.core.model import RunKey
from airflow_ft.core.ports import Store


@dataclass(frozen=True, slots=True)
class Gate:
    """Exactly one of: a number, a run, a time.

    number: every checkpoint up to it is settled and the pipeline has confirmed this one or a later one.
    run: the run has staged, and all its checkpoints are settled: confirmed, or aborted without rows.
    after: a checkpoint was confirmed at or after that time, by the store's clock.
    """

    number: int | None = None
    run: RunKey | None = None
    after: datetime | None = None

    def __post_init__(self) -> None:
        if sum(condition is not None for condition in (self.number, self.run, self.after)) != 1:
            raise ConfigurationError(
                "a gate needs exactly one condition.", remedy="give number, dag_id with run_id, or after."
            )
        if self.after is not None and self.after.tzinfo is None:
            raise ConfigurationError("after is a time without a zone.", remedy="give a time with a zone.")

    def is_open(self, store: Store, pipeline: str) -> dict[str, Any] | None:
        """{"pipeline", "number": newest confirmed one, 0: none} when open; None when closed, or no such pipeline."""
        try:
            latest = store.latest_confirmed(pipeline)
            newest = latest.number if latest else 0
            if self.number is not None:
                opened = newest >= self.number and all(
                    c.is_settled for c in store.open_checkpoints(pipeline) if c.number <= self.number
                )
            elif self.run is not None:
                opened = self._run_is_confirmed(store, pipeline, self.run)
            else:
                opened = bool(latest and latest.completed_at and latest.completed_at >= self._after)
        except KeyError:
            return None
        return {"pipeline": pipeline, "number": newest} if opened else None

    @property
    def _after(self) -> datetime:
        assert self.after is not None  # by __post_init__
        return self.after

    @staticmethod
    def _run_is_confirmed(store: Store, pipeline: str, key: RunKey) -> bool:
        run = store.run(pipeline, key)
        settled = all(c.is_settled for c in store.run_checkpoints(pipeline, key))
        # Read before and after: a rewind in between has set aside numbers that seem to be settled, and the stage's end.
        return run is not None and run.staged and settled and store.run(pipeline, key) == run

    def to_json(self) -> dict[str, Any]:
        """Plain data for a trigger's arguments."""
        return {
            "number": self.number,
            "run": [self.run.dag_id, self.run.run_id] if self.run else None,
            "after": self.after.isoformat() if self.after else None,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Gate:
        """The inverse of `to_json`."""
        return cls(
            number=data["number"],
            run=RunKey(*data["run"]) if data["run"] else None,
            after=datetime.fromisoformat(data["after"]) if data["after"] else None,
        )

    def __str__(self) -> str:
        if self.number is not None:
            return f"checkpoint {self.number} to be confirmed"
        if self.run is not None:
            return f"everything of run {self.run} to be confirmed"
        return f"a checkpoint confirmed at or after {self._after.isoformat()}"
