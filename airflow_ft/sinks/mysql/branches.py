"""A number's rows in several branches of `xa`, each with its own marker; branches that were lost are delivered here.

A lost branch is delivered in one local transaction: lock the head (shared), marker, rows, counts, COMMIT. The
marker's key makes a repetition safe: its insert waits for the holder of that key, prepared or not, and finds it taken
if that one has committed. When the markers of all branches exist, the marker of the whole is written, with the head's
last-delivered number. Only that is proof (I6), and later numbers wait for it (I4).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any

from airflow_ft.protocol.errors import SinkUnavailableError
from airflow_ft.protocol.model import Fence, Plan
from airflow_ft.protocol.set_aside import detail as set_aside_detail
from airflow_ft.protocol.set_aside import read_detail, together
from airflow_ft.protocol.votes import Outcome, Proof
from airflow_ft.protocol.write_ahead_log import SegmentReader
from airflow_ft.sinks.base.branch_system import GRAVEST, side_by_side
from airflow_ft.sinks.base.memory import Marker, check_marker
from airflow_ft.sinks.base.one_transaction import TransactionLedger
from airflow_ft.sinks.base.prepared import committed_by_hand, heuristic_text, marker_taken, visible_branches
from airflow_ft.sinks.base.slices import Slice, divide, labels
from airflow_ft.sinks.mysql.fencing import guarded_head, hold_lock
from airflow_ft.sinks.mysql.ledger import Ledger, marker_lost, settled
from airflow_ft.sinks.mysql.load import AnotherWay
from airflow_ft.sinks.mysql.naming import literal
from airflow_ft.sinks.mysql.server import ServerParticipant
from airflow_ft.sinks.mysql.session import Session
from airflow_ft.sinks.refused import Refused

log = logging.getLogger(__name__)

BY_GRAVITY = (*GRAVEST, AnotherWay)


class BranchedParticipant(ServerParticipant):
    """One server, several transactions side by side."""

    def _labels(self) -> Sequence[str]:
        return labels(self._width)

    @property
    def _width(self) -> int:
        return max(sink.branches for sink in self._sinks.values())

    def _slices(self, plan: Plan, opened: Sequence[SegmentReader] | None = None) -> list[Slice]:
        """Return the branches of a plan: the same each time. `opened` are its segments, if they are open."""
        return divide(opened or self._readers(plan), self._sinks, self._width)

    def _branch_detail(self, session: Session, fence: Fence, part: Slice) -> dict[str, Any]:
        return {
            "connection": session.id,
            "path": self._path(session),
            "attempt": fence.attempt,
            "branches": self._width,
            "of": part.of,
        }

    # --- rows ---------------------------------------------------------------------------------------------------

    def _insert(
        self, db: Session, plan: Plan, readers: Sequence[SegmentReader], dead_letters: Refused | None
    ) -> dict[str, int]:
        return self._send_all(db, plan, readers, self._fitting(db, plan, readers), dead_letters)

    def _fill(
        self, session: Session, plan: Plan, opened: Sequence[SegmentReader], part: Slice, detail: Mapping[str, Any]
    ) -> None:
        """Send the rows of a branch whose marker is inserted, and write the server's counts into the marker."""
        refused = self._way.refused(part.label)
        counts = self._insert(session, plan, list(part.readers(opened)), refused)
        if refused is not None:  # durable before COMMIT, and named by the marker
            detail = {**detail, **set_aside_detail(refused.write())}
        ledger = self._ledger(plan.pipeline)
        if ledger.on(session).fill_marker(plan.number, counts, detail, part.label) != 1:
            raise marker_lost(ledger, plan.number)

    # --- what is missing ----------------------------------------------------------------------------------------

    def _visible_branches(self, session: Session, ledger: Ledger, plan: Plan, fence: Fence) -> dict[str, Marker]:
        """The markers of the branches that are visible now, of this very plan."""
        found = ledger.on(session).branch_markers(plan.number)
        for marker in found.values():
            check_marker(marker, plan, fence.installation)
        return found

    def _deliver_branches(
        self, plan: Plan, fence: Fence, missing: Sequence[Slice], opened: Sequence[SegmentReader]
    ) -> None:
        """Delivers these branches side by side; the head must name this object's nonce."""
        with closing(self._open()) as session:
            self._fitting(session, plan, opened, judge=True)
        side_by_side([partial(self._one_branch, plan, fence, part) for part in missing], BY_GRAVITY)

    def _one_branch(self, plan: Plan, fence: Fence, part: Slice) -> None:
        ledger, opening = self._ledger(plan.pipeline), self._opening(plan)
        with closing(self._open()) as session:
            hold_lock(session, ledger, fence, self._nonce, part.label)
            session.begin()
            guarded_head(session, ledger, fence, self._nonce, shared=True)
            detail = self._branch_detail(session, fence, part)
            if not ledger.on(session).take_place(plan, fence, Outcome.COMMITTED, detail, part.label):
                return  # settled: `_conclude` reads the markers
            self._fill(session, plan, opening.result(), part, detail)
            self._end(session)

    # --- the whole ----------------------------------------------------------------------------------------------

    def _conclude(self, plan: Plan, fence: Fence, expected: Sequence[str], detail: Mapping[str, Any]) -> Proof:
        """`_conclude_in` a new session, which it announces: the branches may have taken long."""
        with closing(self._open()) as session:
            self._announce(session, self._ledger(plan.pipeline), fence)
            return self._conclude_in(session, plan, fence, expected, detail)

    def _conclude_in(
        self, session: Session, plan: Plan, fence: Fence, expected: Sequence[str], detail: Mapping[str, Any]
    ) -> Proof:
        """Write the marker of the whole, and the head with it, when the markers of all `expected` branches exist.

        The head names `session`, which cannot be used afterwards.
        """
        ledger = self._ledger(plan.pipeline)
        session.begin()
        head = guarded_head(session, ledger, fence, self._nonce)
        marker = settled(session, ledger, plan, fence, head, exactly=True)
        if marker is not None:
            return marker.proof(self.name, plan.number)
        visible = self._visible_branches(session, ledger, plan, fence)
        lacking = [branch for branch in expected if branch not in visible]
        refused = [branch for branch, marker in visible.items() if marker.outcome is not Outcome.COMMITTED]
        unknown = [branch for branch in visible if branch not in expected]
        if lacking or refused or unknown:
            raise SinkUnavailableError(
                f"branches are missing: {lacking}, aborted: {refused}, of another plan: {unknown}.",
                code="branches_incomplete",
                remedy=f"Wait for the retry. If it fails too, look at the rows of checkpoint {plan.number} in"
                f" {ledger.table}.",
                missing=lacking,
                aborted=refused,
                unknown=unknown,
            )
        counts = dict.fromkeys(self._sinks, 0)
        for marker in visible.values():
            for name, rows in marker.counts.items():
                counts[name] += rows
        whole = {
            **detail,
            "server": session.product,
            "segments": [segment.number for segment in plan.segments],
            "branches": {branch: dict(marker.counts) for branch, marker in sorted(visible.items())},
            **set_aside_detail(together(read_detail(marker.detail) for _, marker in sorted(visible.items()))),
        }
        ledger.on(session).write_marker(plan, fence, Outcome.COMMITTED, counts, whole)
        ledger.on(session).deliver_head(plan.number)
        self._end(session)
        return Proof(self.name, plan.number, Outcome.COMMITTED, plan.digest, fence.epoch, counts, whole)

    def _write_tombstone(self, ledger: TransactionLedger, plan: Plan, fence: Fence, detail: Mapping[str, Any]) -> None:
        """As the base. A place that is taken means what its marker says: the insert may have waited for its commit."""
        assert isinstance(ledger, Ledger)
        for label in self._labels():
            if ledger.take_place(plan, fence, Outcome.ABORTED, detail, label):
                continue
            if (winner := ledger.marker(plan.number, label)) is not None:
                check_marker(winner, plan, fence.installation)
            if found := self._heuristic_text(ledger, plan):
                raise committed_by_hand(found, plan.pipeline)
            raise marker_taken(label, plan.number)
        ledger.write_marker(plan, fence, Outcome.ABORTED, {}, detail)

    # --- what was committed by hand -----------------------------------------------------------------------------

    def _heuristic_text(self, ledger: Ledger, plan: Plan) -> str:
        """Describe branches that someone committed before the decision. "": there are none, or the number is settled.

        Their rows are visible. A commit counts their markers as any other, and an abort halts the pipeline.
        """
        found = visible_branches(ledger.branch_markers(plan.number), plan.installation)
        if not found or ledger.marker(plan.number) is not None:
            return ""
        where = (
            f"FROM {ledger.table} WHERE pipeline = {literal(ledger.pipeline)}"
            f" AND participant = {literal(ledger.participant)} AND number = {plan.number}"
        )
        tables = [sink.table for sink in self._sinks.values()]
        return heuristic_text(found, tables, "XA COMMIT", "XA ROLLBACK", where)
