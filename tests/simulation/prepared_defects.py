"""Mistakes in branches of transactions that are prepared (`airflow_ft.sinks.base.branched`), as in `defects`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from airflow_ft.protocol.model import Fence
from airflow_ft.sinks.base import branched
from airflow_ft.sinks.base.branched import BranchedParticipant
from tests.simulation.defect import NAMED, Change, defect
from tests.simulation.prepared_sink import Ledger

MAPPED = NAMED["mapped prepared"]
QUIET, LOST = NAMED["mapped prepared, no server fails"], NAMED["mapped prepared that loses its branches"]


@defect(
    replace(NAMED["prepared and Kafka"], name="prepared and Kafka, a task for each step", parallel=True, tries=1),
    "I3 I7",
    schedule=("A1ap:44:SLEEP", "A1bp:12:EVENT:prepare declines item 1", "A1ap:46:DIE_BEFORE"),
)
def tombstone_without_the_places_of_prepared_branches(change: Change) -> None:
    """A late branch finds its own place free."""
    change(branched, "labels", lambda _: [])


@defect(LOST, "I2 I3 I6 I7")
def lost_branches_delivered_without_their_places(change: Change) -> None:
    """Their rows come under the marker of the whole alone, beside a late transaction of the same branch."""
    fill = BranchedParticipant._fill

    def without(self: Any, db: Any, ledger: Any, *args: Any) -> Any:
        free = type("Free", (Ledger,), {"write_marker": lambda *_: None})
        return fill(self, db, free(ledger.db), *args)

    change(BranchedParticipant, "_fill", without)


@defect(MAPPED, "I3", at=970)
def prepared_branches_taken_back_by_a_load_that_fails(change: Change) -> None:
    """A vote may count them by then."""
    join = BranchedParticipant._join

    def taking_back(self: Any, plan: Any, fence: Fence, notes: Any, wanted: Any) -> bool:
        try:
            return join(self, plan, fence, notes, wanted)
        except Exception:
            self._renounce(plan, fence)
            raise

    change(BranchedParticipant, "_join", taking_back)


@defect(MAPPED, "I3")
def prepared_branches_counted_without_a_look(change: Change) -> None:
    """`prepare` believes that the tasks before it have done their work."""
    join = BranchedParticipant._join

    def believing(self: Any, plan: Any, fence: Fence, notes: Any, wanted: Any) -> bool:
        return len(wanted) > 1 or join(self, plan, fence, notes, wanted)

    change(BranchedParticipant, "_join", believing)
    change(BranchedParticipant, "_require_prepared", lambda *_: [])


@defect(QUIET, "I2 I3 I6")
def rows_of_a_prepared_branch_divided_otherwise_by_a_load(change: Change) -> None:
    """R17: the label of a branch says which rows it has, in every process."""
    load, slices = BranchedParticipant.load, BranchedParticipant._slices

    def turned(self: Any, plan: Any, opened: Any) -> Any:
        parts = slices(self, plan, opened)
        return [replace(part, label=other.label) for part, other in zip(parts, reversed(parts), strict=True)]

    def loading(self: Any, plan: Any, fence: Fence, notes: Mapping[str, Any], branch: str) -> bool:
        self._slices = lambda plan, opened=None: turned(self, plan, opened)
        return load(self, plan, fence, notes, branch)

    change(BranchedParticipant, "load", loading)


@defect(
    replace(NAMED["prepared, a task for each step"], name="prepared, a task for each step, one item", runs=(1,)),
    "I3",
    schedule=("A1p:32:SLEEP", "A1c:9:YIELD:A1p"),
)
def newer_prepared_branches_rolled_back(change: Change) -> None:
    """R8: an attempt rolls back all branches of its number, also newer ones."""

    def roll_back(self: Any, db: Any, plan: Any, fence: Fence, kept: Any = None, older: bool = False, **_: int) -> None:
        for name in self._listed(db, fence):
            if name.number == plan.number and name.rank != kept and not (older and name.rank == fence.rank):
                self._end_branch(db, name, "ROLLBACK")

    change(BranchedParticipant, "_roll_back", roll_back)


@defect(LOST, "I2 I7")
def whole_without_the_branches_that_are_lost(change: Change) -> None:
    """The marker of the whole is written beside what is visible."""
    change(BranchedParticipant, "_fill", lambda *_: ({}, {}))
