"""The strategy `xa`: rows and markers in prepared branches before the decision, committed after it (TWO_PHASE).

Fencing: a branch that is *prepared* outlives its process, and only the decision settles it, since it names the attempt
that it counts. Before the decision, an attempt rolls back what older ones have prepared, and only that. No branch locks
the head. MySQL would keep a shared lock through XA PREPARE, and later attempts could not raise the head. (MariaDB
releases it, so it fences nothing.) The markers do it instead: a branch first takes the place of its marker and then
looks at the head, without a lock. A successor first raises the head and then takes the same place. So either the older
one sees the newer head and stops, or the newer one meets its lock, and ends it or rolls it back. An abort takes every
place with a tombstone in the same way.

Inquiry goes in this order: XA RECOVER, then the marker. In the other order a commit may happen in between (I6).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

import pymysql

from airflow_ft.protocol.errors import AirflowFtError, SinkUnavailableError
from airflow_ft.protocol.model import Fence, Plan
from airflow_ft.protocol.votes import Outcome, Proof, Vote
from airflow_ft.protocol.write_ahead_log import SegmentReader
from airflow_ft.sinks.base.branch_system import side_by_side
from airflow_ft.sinks.base.memory import check_marker, check_owner
from airflow_ft.sinks.base.prepared import MAY_WAIT, PROBE_NUMBER, committed_by_hand, counted, require_vote, voted
from airflow_ft.sinks.base.slices import Slice
from airflow_ft.sinks.mysql.branches import BY_GRAVITY, BranchedParticipant
from airflow_ft.sinks.mysql.failures import (
    DUPLICATE_KEY,
    LOCK_WAIT_TIMEOUT,
    Meaning,
    code_of,
    describe,
    meaning,
)
from airflow_ft.sinks.mysql.fencing import (
    DETACHING,
    hold_lock,
    kill,
    lock_holders,
    new_nonce,
    older_sessions,
    still_named,
)
from airflow_ft.sinks.mysql.ledger import Ledger, settled
from airflow_ft.sinks.mysql.load import AnotherWay
from airflow_ft.sinks.mysql.orphans import Prepared, as_marked
from airflow_ft.sinks.mysql.requirements import ensure_ledger
from airflow_ft.sinks.mysql.session import Session
from airflow_ft.sinks.mysql.xa_preflight import check_xa
from airflow_ft.sinks.mysql.xid import Listed, Xid, end_branch, lock_of, owner_of, recover

log = logging.getLogger(__name__)


class XaParticipant(BranchedParticipant):
    """One server, a prepared transaction a branch. See `airflow_ft.protocol.participant.Participant`."""

    def __init__(self, *opened: Any) -> None:
        super().__init__(*opened)
        self._free_since: dict[Xid, float] = {}  # when the connection that prepared a branch was seen to have left

    # --- phase 1 ------------------------------------------------------------------------------------------------

    def prepare(self, plan: Plan, fence: Fence) -> Mapping[str, Any]:
        """Phase 1: when it returns, all rows are prepared: durable, and invisible."""
        with self._explaining():
            return super().prepare(plan, fence)

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        """Add to the error what to do if branches may wait for each other."""
        try:
            yield
        except SinkUnavailableError as error:
            cause = error.__cause__
            if self._width > 1 and cause is not None and meaning(cause) is Meaning.BUSY:
                error.remedy += MAY_WAIT
            raise error.located() from cause

    def _preflight(self, session: Session, ledger: Ledger, plan: Plan, fence: Fence) -> Mapping[str, Any]:
        nonce = new_nonce()
        self._nonces.add(nonce)
        notes = check_xa(self._open, session, ledger, fence, nonce, self._limits)
        self._clear_the_way(session, ledger, plan, fence)
        head = ledger.on(session).head()
        self._sweep(session, ledger, plan, fence, head.floor if head is not None else 0)
        return {"xa": notes}

    def _vote(self, plan: Plan, fence: Fence, readers: Sequence[SegmentReader]) -> dict[str, Any]:
        notes = {**super()._vote(plan, fence, readers), "epoch": fence.epoch}
        slices = self._slices(plan, readers)
        there = self._there_already(plan, fence)
        try:
            self._hold(plan, fence, [part for part in slices if part.label not in there], readers)
        except (AirflowFtError, pymysql.err.MySQLError, AnotherWay):
            self._renounce(plan, fence)  # prepared rows lock out others; the next attempt would find them anyway
            raise
        return voted(notes, slices, there)

    def _there_already(self, plan: Plan, fence: Fence) -> list[str]:
        """Return branches that an XA COMMIT by hand made visible: only delivering the rest makes the number complete
        (I3).
        """
        with closing(self._open()) as session:
            visible = self._ledger(plan.pipeline).on(session).branch_markers(plan.number)
        for marker in visible.values():
            check_marker(marker, plan, fence.installation)
        there = sorted(branch for branch, marker in visible.items() if marker.outcome is Outcome.COMMITTED)
        if there:
            log.warning("%s: someone committed branches %s of checkpoint %d by hand (XA COMMIT) before the decision, a"
                        " heuristic outcome; preparing the others, so that the checkpoint can be delivered",
                        self.name, ", ".join(there), plan.number)  # fmt: skip
        return there

    def _hold(self, plan: Plan, fence: Fence, slices: list[Slice], readers: Sequence[SegmentReader]) -> None:
        """Prepares all branches side by side under the nonce that the head names; returns when all are durable."""
        ledger = self._ledger(plan.pipeline)
        with closing(self._open()) as session:
            self._announce(session, ledger, fence)
            self._fitting(session, plan, readers, judge=True)
        parts = self._parts(plan, fence, slices)
        self._prepare_side_by_side(plan, fence, parts, list(parts))

    def _parts(self, plan: Plan, fence: Fence, slices: Iterable[Slice]) -> dict[Xid, Slice]:
        """Return the branches by their xids, under the nonce that the head names."""
        owner = owner_of(self._ledger(plan.pipeline), fence.installation)
        return {Xid(owner, plan.number, fence.epoch, fence.attempt, p.label, self._nonce): p for p in slices}

    def _prepare_side_by_side(
        self, plan: Plan, fence: Fence, parts: Mapping[Xid, Slice], lacking: Iterable[Xid]
    ) -> None:
        """Prepare the lacking ones of these branches; returns when all are durable and the head still names them."""
        ledger = self._ledger(plan.pipeline)
        side_by_side([partial(self._branch, plan, fence, xid, parts[xid]) for xid in lacking], BY_GRAVITY)
        with closing(self._open()) as session:
            lost = set(parts) - self._listed(session, ledger, fence).xids
            still_named(ledger.on(session).head(), fence, self._nonce)  # a newer attempt may have rolled them back
        if lost:
            raise SinkUnavailableError(
                f"XA RECOVER lacks {len(lost)} of {len(parts)} prepared branches. Someone ended them, or the server"
                " forgot them.",
                code="prepared_lost",
                remedy="Wait for the retry. If it fails too, look for programs that end XA branches on this server.",
                missing=len(lost),
            )

    def _branch(self, plan: Plan, fence: Fence, xid: Xid, part: Slice) -> None:
        ledger, opening = self._ledger(plan.pipeline), self._opening(plan)
        with closing(self._open()) as session:  # closing an unprepared branch rolls it back
            if not self._start(session, ledger, fence, xid):
                return
            session.require_settings()
            detail = self._branch_detail(session, fence, part)
            self._claim(session, ledger, plan, fence, xid, detail)
            still_named(ledger.on(session).head(), fence, xid.nonce)  # I5: after the place is taken, never before
            self._fill(session, plan, opening.result(), part, detail)
            session.forget_statements()  # they would delay the end of this connection (`fencing.await_end`)
            session.run(f"XA END {xid.sql}")
            session.run(f"XA PREPARE {xid.sql}")

    def _start(self, session: Session, ledger: Ledger, fence: Fence, xid: Xid) -> bool:
        """XA START. False: nothing is left to do for this branch."""
        hold_lock(session, ledger, fence, xid.nonce, xid.branch)
        session.run(f"XA START {xid.sql}")
        return True

    def _claim(
        self, session: Session, ledger: Ledger, plan: Plan, fence: Fence, xid: Xid, detail: Mapping[str, Any]
    ) -> None:
        """Insert the branch's marker, ending an older attempt that holds its place."""
        deadline = time.monotonic() + self._limits.head_wait
        while True:
            try:
                ledger.on(session).write_marker(plan, fence, Outcome.COMMITTED, {}, detail, xid.branch)
                return
            except pymysql.err.MySQLError as error:
                if code_of(error) not in (DUPLICATE_KEY, LOCK_WAIT_TIMEOUT):
                    raise
                # A lock wait time-out ends the statement, not the branch, which has done nothing else yet.
                still_named(ledger.on(session).head(), fence, xid.nonce)
                if code_of(error) == DUPLICATE_KEY or time.monotonic() > deadline:
                    raise SinkUnavailableError(
                        f"another transaction holds the place of branch {xid.branch}: {describe(error)}",
                        code="branch_taken",
                        remedy=f"Look at the rows of checkpoint {plan.number} in {ledger.table}, and at XA RECOVER.",
                        branch=xid.branch,
                    ) from error
            with closing(self._open()) as other:
                self._clear_the_way(other, ledger, plan, fence)
                Prepared(other, ledger, 0).refuse(fence.installation)

    # --- phase 2 ------------------------------------------------------------------------------------------------

    def _deliver(self, plan: Plan, fence: Fence, set_aside: bool, more: Mapping[str, Any]) -> Proof:
        vote = require_vote(self._given)
        ledger = self._ledger(plan.pipeline)
        expected = sorted(vote.notes.get("branches", {}))
        with closing(self._open()) as session:
            self._announce(session, ledger, fence)
            head = still_named(ledger.on(session).head(), fence, self._nonce)
            marker = settled(session, ledger, plan, fence, head, exactly=True)  # I4: not before its predecessor
            listed = None
            if marker is None or marker.outcome is Outcome.COMMITTED:
                listed = self._commit_prepared(session, ledger, plan, fence, vote)
            self._sweep(session, ledger, plan, fence, head.floor, listed)
            if marker is not None:
                return marker.proof(self.name, plan.number)
            visible = self._visible_branches(session, ledger, plan, fence)
            if not expected or set(expected) - set(visible):
                self._commit_prepared(session, ledger, plan, fence, vote)  # asked once more, in the same order
                visible = self._visible_branches(session, ledger, plan, fence)
            detail: dict[str, Any] = {"attempt": fence.attempt, "tries": self._tries}
            detail["prepared"] = list(counted(vote))
            if "heuristic" in vote.notes:
                detail["heuristic"] = vote.notes["heuristic"]
            if expected and not set(expected) - set(visible):
                return self._conclude_in(session, plan, fence, expected, detail)
        # Neither prepared nor committed: rolled back by hand, or forgotten by the server. It is decided, so
        # it is delivered from the log; should it come back after all, the marker's key lets only one in.
        opened = self._readers(plan)
        slices = self._slices(plan, opened)
        expected = [part.label for part in slices]
        lost = [part for part in slices if part.label not in visible]
        log.warning("%s: branches %s of checkpoint %d are lost; delivering them from the write-ahead log",
                    self.name, ", ".join(part.label for part in lost), plan.number)  # fmt: skip
        detail["redelivered"] = [part.label for part in lost]
        self._deliver_branches(plan, fence, lost, opened)
        return self._conclude(plan, fence, expected, detail)

    def _commit_prepared(self, session: Session, ledger: Ledger, plan: Plan, fence: Fence, vote: Vote) -> Listed:
        """Commits what the decision counted; rolls back what older attempts, which it did not count, have left.

        Returns what XA RECOVER had listed before.
        """
        listed = self._listed(session, ledger, fence)
        for xid in listed.of(owner_of(ledger, fence.installation)):
            if xid.number != plan.number:
                continue
            if xid.rank == counted(vote):
                self._end_branch(session, ledger, fence, xid, "COMMIT")
            elif xid.rank < fence.rank:
                self._end_branch(session, ledger, fence, xid, "ROLLBACK")
        return listed

    # --- abort --------------------------------------------------------------------------------------------------

    def _abort(self, plan: Plan, fence: Fence, detail: Mapping[str, Any]) -> Proof:
        """Roll back, because ABORTED is decided. Then put an abort marker into every place, for late branches."""
        ledger = self._ledger(plan.pipeline)
        deadline = time.monotonic() + self._limits.head_wait
        while True:
            with closing(self._open()) as session:
                if plan.participant(self.name).predecessor == 0:
                    # The attempt that began here may not have got as far as to make them; it, too, must meet a head.
                    ensure_ledger(session, ledger)
                    if ledger.on(session).head() is None:
                        self._announce(session, ledger, fence, create=True)
                self._clear_the_way(session, ledger, plan, fence)
                if early := self._heuristic_text(ledger.on(session), plan):
                    raise committed_by_hand(early, plan.pipeline)
            try:
                return super()._abort(plan, fence, detail)
            except pymysql.err.MySQLError as error:
                if code_of(error) != LOCK_WAIT_TIMEOUT or time.monotonic() > deadline:
                    raise  # else: a branch was prepared after the list was read; it is listed now

    # --- what was committed by hand -----------------------------------------------------------------------------

    def heuristic(self, plan: Plan) -> str:
        """Return a text about visible branches of an undecided number."""
        return self._persist("looking for what was committed by hand", partial(self._heuristic, plan), plan=plan)

    def _heuristic(self, plan: Plan) -> str:
        with self._reading(plan.pipeline, plan) as ledger:
            return self._heuristic_text(ledger, plan)

    def _renounce(self, plan: Plan, fence: Fence) -> None:
        """Rolls back what this attempt itself has prepared and will not vote for, if that can be done now."""
        self._nonce = ""
        try:
            with closing(self._open()) as session:
                self._clear_the_way(session, self._ledger(plan.pipeline), plan, fence)
        except (AirflowFtError, pymysql.err.MySQLError) as error:
            log.warning("%s: could not roll back the prepared branches; the next attempt does it: %s", self.name, error)

    # --- prepared branches --------------------------------------------------------------------------------------

    def _clear_the_way(self, session: Session, ledger: Ledger, plan: Plan, fence: Fence) -> None:
        """End older attempts' sessions, and roll back their prepared branches (or those of this process's lost tries).

        Of this number, which must be undecided or ABORTED, and of preflights. Strictly older ones: a late call does
        not touch a successor's branches.
        """
        head = ledger.on(session).head()
        if head is not None:
            check_owner(head, fence)
            lost = self._nonces - {self._nonce}
            for connection in older_sessions(session, ledger, fence, head, lost, self._labels()):
                kill(session, connection, head.rank)
        for xid in self._listed(session, ledger, fence).of(owner_of(ledger, fence.installation)):
            mine = xid.nonce in self._nonces and xid.nonce != self._nonce
            if xid.number in (plan.number, PROBE_NUMBER) and (mine or xid.rank < fence.rank):
                log.warning(
                    "%s: rolling back a branch of checkpoint %d (epoch %d, attempt %d)",
                    self.name,
                    xid.number,
                    *xid.rank,
                )
                self._end_branch(session, ledger, fence, xid, "ROLLBACK")

    def _sweep(
        self, session: Session, ledger: Ledger, plan: Plan, fence: Fence, floor: int, listed: Listed | None = None
    ) -> None:
        """Branches of other numbers that are settled long ago and came back: a server may forget that it ended them.

        The marker of the number decides how its branch ends. Without a marker a branch above the head's `floor` is left
        alone. Up to `floor` no number is delivered any more (it was pruned, or adopted as forgotten), so its branch is
        rolled back.
        `listed` is an earlier XA RECOVER. All markers are read at once: behind a long outage every other number that
        still waits for its turn is listed too.
        """
        listed = listed or self._listed(session, ledger, fence)
        others = [
            xid
            for xid in listed.of(owner_of(ledger, fence.installation))
            if xid.number not in (plan.number, PROBE_NUMBER) and xid.rank < fence.rank
        ]
        markers = ledger.on(session).markers({xid.number for xid in others})  # after the list (I6)
        for xid in others:
            marker = markers.get(xid.number)
            if marker is None and xid.number > floor:
                continue
            verb = as_marked(session, ledger, xid, marker)
            log.warning("%s: a branch of checkpoint %d reappeared; running XA %s", self.name, xid.number, verb)
            self._end_branch(session, ledger, fence, xid, verb)

    def _end_branch(self, session: Session, ledger: Ledger, fence: Fence, xid: Xid, verb: str) -> None:
        """End the branch, or find that it has ended. Its marker shows the outcome."""
        since = self._free_since.get(xid)
        if since is not None:
            time.sleep(max(0.0, since + DETACHING - time.monotonic()))
        patience = self._limits.head_wait
        end_branch(session, ledger, fence.installation, xid, verb, patience, is_free=since is not None)

    def _listed(self, session: Session, ledger: Ledger, fence: Fence) -> Listed:
        """XA RECOVER. On MariaDB it is noted of each branch when its connection was first seen to have left.

        So that of many branches in doubt only the first waits for it (`fencing.await_end`), and the commit by a process
        that has prepared them (`overlap`) hardly does.
        """
        listed = recover(session)
        if session.is_mariadb:
            new = [x for x in listed.of(owner_of(ledger, fence.installation)) if x not in self._free_since]
            locks = [lock_of(ledger, fence.installation, xid) for xid in new]
            for xid, holder in zip(new, lock_holders(session, locks) if locks else (), strict=True):
                if holder is None:
                    self._free_since[xid] = time.monotonic()
        return listed
