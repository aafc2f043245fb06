"""The strategy `parallel`: after the decision, each branch in its own local transaction, side by side (REDO).

Faster than one transaction if the server has spare cores. Its price: branches become visible one after the other, and
rows that the server refuses when others are already visible can only be corrected, not aborted.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any

from airflow_ft.protocol.model import Fence, Plan, Proof, Vote
from airflow_ft.sinks.mysql.branches import BranchedParticipant
from airflow_ft.sinks.mysql.fencing import still_named
from airflow_ft.sinks.mysql.ledger import settled
from airflow_ft.sinks.mysql.load import Way


class ParallelParticipant(BranchedParticipant):
    """One server, a marker and a local transaction a branch. See `airflow_ft.protocol.participant.Participant`."""

    def _prepare(self, plan: Plan, fence: Fence, tries: int) -> Mapping[str, Any]:
        notes = super()._prepare(plan, fence, tries)
        if "settled" in notes:
            return notes
        with closing(self._open()) as session:  # a former owner's, or another history's, would stop what is decided
            self._standing_branches(session, self._ledger(plan.pipeline), plan, fence)
        return {**notes, "branches": {s.label: s.rows for s in self._slices(plan)}}

    def _deliver(self, plan: Plan, fence: Fence, vote: Vote | None, tries: int, way: Way) -> Proof:
        ledger = self._ledger(plan.pipeline)
        slices = self._slices(plan)
        with closing(self._open()) as session:
            # From here on no older attempt's branch is open: raising the head waits for each, or ends it.
            self._announce(session, ledger, fence)
            head = still_named(ledger.head(session), fence, self._nonce)
            marker = settled(session, ledger, plan, fence, head, exactly=True)
            if marker is not None:
                return marker.proof(self._plan.name, plan.number)
            standing = self._standing_branches(session, ledger, plan, fence)
        missing = [part for part in slices if part.label not in standing]
        if missing:
            self._deliver_branches(plan, fence, vote, missing, way)
        detail: dict[str, Any] = {"attempt": fence.attempt, "tries": tries}
        if self._killed:
            detail["killed"] = list(self._killed)
        return self._conclude(plan, fence, [part.label for part in slices], detail)
