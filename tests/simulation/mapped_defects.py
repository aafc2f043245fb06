"""Mistakes in branches that other processes load (`xa` in mapped tasks), as in `defects`: each must be found."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from typing import Any

from airflow_ft.protocol.model import Fence
from airflow_ft.sinks.mysql.shared_branches import SESSION, SharedXaParticipant, digest_of
from airflow_ft.sinks.mysql.xa import XaParticipant
from airflow_ft.sinks.mysql.xid import owner_of, recover
from tests.simulation.defect import NAMED, Change, defect

MARIA, MYSQL = NAMED["mapped xa on MariaDB"], NAMED["mapped xa on MySQL"]
QUIET = NAMED["mapped xa, no server fails"]


@defect(MYSQL, "I3", at=970)
def branches_taken_back_by_a_process_that_fails(change: Change) -> None:
    """It rolls back what is prepared under the announcement. A vote may count that by then."""
    join = SharedXaParticipant._join

    def taking_back(self: SharedXaParticipant, plan: Any, fence: Fence, notes: Any, labels: Any) -> bool:
        try:
            return join(self, plan, fence, notes, labels)
        except Exception:
            ledger = self._ledger(plan.pipeline)
            with closing(self._open()) as session:
                for xid in recover(session).of(owner_of(ledger, fence.installation)):
                    if digest_of(xid.nonce) == notes[SESSION]:
                        self._end_branch(session, ledger, fence, xid, "ROLLBACK")
            raise

    change(SharedXaParticipant, "_join", taking_back)


@defect(MARIA, "I3", at=87)
def announced_branches_counted_without_a_look(change: Change) -> None:
    """`prepare` believes that the tasks before it have done their work."""
    join = SharedXaParticipant._join

    def believing(self: SharedXaParticipant, plan: Any, fence: Fence, notes: Any, labels: Any) -> bool:
        return len(labels) > 1 or join(self, plan, fence, notes, labels)

    change(SharedXaParticipant, "_join", believing)


@defect(MARIA, "I2 I3 I6", at=38)
def vote_for_the_branches_that_are_there(change: Change) -> None:
    """A branch whose task has failed is left out of the vote, and of the number."""
    conclude = SharedXaParticipant.conclude

    def those(self: SharedXaParticipant, plan: Any, fence: Fence, notes: Any) -> Mapping[str, Any]:
        ledger = self._ledger(plan.pipeline)
        with closing(self._open()) as session:
            listed = recover(session).of(owner_of(ledger, fence.installation))
        labels = {xid.branch for xid in listed if digest_of(xid.nonce) == notes[SESSION]}
        if not labels:
            return conclude(self, plan, fence, notes) or {}
        rows = {part.label: part.rows for part in self._slices(plan) if part.label in labels}
        return {**notes, "epoch": fence.epoch, "branches": rows}

    change(SharedXaParticipant, "conclude", those)


@defect(QUIET, "I2 I3 I6", at=73)
def rows_divided_otherwise_by_a_load(change: Change) -> None:
    """R17: the label of a branch says which rows it has, in every process."""
    load, slices = SharedXaParticipant.load, XaParticipant._slices

    def turned(self: SharedXaParticipant, plan: Any, opened: Any) -> Any:
        parts = slices(self, plan, opened)
        return [replace(part, label=other.label) for part, other in zip(parts, reversed(parts), strict=True)]

    def loading(self: SharedXaParticipant, plan: Any, fence: Fence, notes: Any, branch: str) -> bool:
        self._slices = lambda plan, opened=None: turned(self, plan, opened)  # type: ignore[method-assign]
        return load(self, plan, fence, notes, branch)

    change(SharedXaParticipant, "load", loading)
