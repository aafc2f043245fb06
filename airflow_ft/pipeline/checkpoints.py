"""The gate (I9): what it means that a pipeline is confirmed up to a point. Shared by sensor and trigger."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow_ft.protocol.arguments import check_zone
from airflow_ft.protocol.errors import ConfigurationError, require_not_renamed
from airflow_ft.protocol.model import RunKey

if TYPE_CHECKING:
    from airflow_ft.protocol.decision_log import QueryLog
    from airflow_ft.store.decision_log import DecisionLog
    from airflow_ft.store.reading import ReadingOperations

BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Gate:
    """Exactly one of: a number, a run, a time as of which all is confirmed, a time after which something is.

    number: every checkpoint up to it is settled, the pipeline has confirmed this one or a later one, and what was
        rewound of them was computed again and confirmed.
    run: the DAG run has staged, and all that was published by then is settled: confirmed, or aborted without rows.
    as_of: everything that the sources held at that time, by the store's clock, is confirmed. A stage that began to read
        at or after it has read its sources to their end, or a stream has read as far. All that was published by then
        is settled.
    after: a checkpoint was confirmed at or after that time, by the store's clock, with any rows.
    """

    number: int | None = None
    run: RunKey | None = None
    as_of: datetime | None = None
    after: datetime | None = None

    def __post_init__(self) -> None:
        conditions = (self.number, self.run, self.as_of, self.after)
        if sum(condition is not None for condition in conditions) != 1:
            raise ConfigurationError(
                "a gate needs exactly one condition.",
                code="arguments_conflict",
                remedy="Give only one of number, dag_id with run_id, as_of, or after.",
                arguments=["number", "run", "as_of", "after"],
            )
        for name, at in (("as_of", self.as_of), ("after", self.after)):
            check_zone(name, at)

    @classmethod
    def published(cls, store: QueryLog, pipeline: str) -> Gate:
        """Return a gate for everything published by now; before the first publication for its first whole run."""
        try:
            number = store.pipeline(pipeline).last_published
        except KeyError:
            number = 0
        return cls(number=number) if number else cls(as_of=BEGINNING)

    def is_open(self, store: DecisionLog, pipeline: str) -> dict[str, Any] | None:
        """{"pipeline", "number": newest confirmed one, 0: none} when open; None when closed, or no such pipeline.

        PipelineHaltedError if the pipeline was renamed, so that the gate can never open.
        """
        try:
            latest = store.latest_confirmed(pipeline)
            newest = latest.number if latest else 0
            if self.number is not None:
                opened = newest >= self.number and _is_confirmed_through(store, pipeline, self.number)
            elif self.run is not None:
                opened = _run_is_confirmed(store, pipeline, self.run)
            elif self.as_of is not None:
                opened = confirmed_as_of(store, pipeline, self.as_of) is not None
            else:
                at = latest.completed_at if latest else None
                opened = at is not None and self._after <= at <= store.now()  # later: the log's clock was ahead
            if not opened:
                require_not_renamed(store.pipeline(pipeline), "Wait for the pipeline of the new name.")
        except KeyError:
            return None
        return {"pipeline": pipeline, "number": newest} if opened else None

    @property
    def _after(self) -> datetime:
        assert self.after is not None  # by __post_init__
        return self.after

    def to_json(self) -> dict[str, Any]:
        """Plain data for a trigger's arguments."""
        return {
            "number": self.number,
            "run": [self.run.dag_id, self.run.run_id, self.run.map_index] if self.run else None,
            "as_of": self.as_of.isoformat() if self.as_of else None,
            "after": self.after.isoformat() if self.after else None,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Gate:
        """The inverse of `to_json`."""
        return cls(
            number=data["number"],
            run=RunKey(*data["run"]) if data["run"] else None,
            as_of=datetime.fromisoformat(data["as_of"]) if data["as_of"] else None,
            after=datetime.fromisoformat(data["after"]) if data["after"] else None,
        )

    def __str__(self) -> str:
        if self.number is not None:
            return f"checkpoint {self.number} and all before it to be confirmed"
        if self.run is not None:
            return f"everything of run {self.run} to be confirmed"
        if self.as_of == BEGINNING:
            return "a first run to be staged and confirmed"
        if self.as_of is not None:
            return f"everything that was in the sources at {self.as_of.isoformat()} to be confirmed"
        return f"a checkpoint confirmed at or after {self._after.isoformat()}"


# Each reads what a rewind takes back before and after the checkpoints: a rewind in between has set aside numbers that
# seem to be settled, and what the runs had read.


def confirmed_as_of(store: DecisionLog, pipeline: str, at: datetime) -> int | None:
    """The number up to which all is settled that was in the sources at `at`; None: not all of it is confirmed.

    An answer is final, until a restore delivers the rows again: a rewind concerns only what is not delivered. KeyError:
    there is no such pipeline.
    """
    through = store.read_through(pipeline, at)
    if through is None or not _is_settled_through(store, pipeline, through):
        return None
    return through if store.read_through(pipeline, at) == through else None


def _is_settled_through(store: ReadingOperations, pipeline: str, number: int) -> bool:
    return not store.unsettled(pipeline, through=number, limit=1)


def _is_confirmed_through(store: DecisionLog, pipeline: str, number: int) -> bool:
    """Return what is rewound counts as settled, so the stage that computed it again says how far to look instead."""
    around = below, above = store.complete_around(pipeline, number)
    settled = _is_settled_through(store, pipeline, number) and not store.is_rewound(pipeline, below, number)
    if not settled and above is not None:
        settled = _is_settled_through(store, pipeline, above)
    return settled and store.complete_around(pipeline, number) == around


def _run_is_confirmed(store: ReadingOperations, pipeline: str, key: RunKey) -> bool:
    """Return whether the run is confirmed; for a key without a map index, any index that has the pipeline."""
    runs = [r for r in store.runs(pipeline, key.dag_id, key.run_id) if key.map_index in (-1, r.key.map_index)]
    settled = all(
        run.staged
        and not store.unsettled(pipeline, run=run.key, limit=1)
        and _is_settled_through(store, pipeline, run.through)
        for run in runs
    )
    return bool(runs) and settled and all(store.run(pipeline, run.key) == run for run in runs)
