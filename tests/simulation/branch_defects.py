"""Mistakes in the strategy that works in branches (`xa`), as in `defects`: each must be found."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import Any

from airflow_ft.protocol.model import Fence
from airflow_ft.protocol.votes import Outcome
from airflow_ft.sinks.base.memory import Marker
from airflow_ft.sinks.mysql import branches
from airflow_ft.sinks.mysql.branches import BranchedParticipant
from airflow_ft.sinks.mysql.fencing import guarded_head, still_named
from airflow_ft.sinks.mysql.ledger import Ledger
from airflow_ft.sinks.mysql.xa import XaParticipant
from airflow_ft.sinks.mysql.xid import owner_of, recover
from tests.simulation.defect import NAMED, Change, defect

XA, XA_MYSQL = NAMED["xa on MariaDB"], NAMED["xa on MySQL"]
LOST, LOST_RUNS = NAMED["xa that loses its branches"], NAMED["xa that loses its branches, two runs"]
ABORTED = NAMED["xa, a person aborts what is prepared"]
ONE_BY_ONE = replace(XA, name="xa, a task for each step", runs=(1,), parallel=True)


def _fill_nothing(change: Change) -> None:
    """A branch's marker need not be there when its counts are written."""
    fill = Ledger.fill_marker
    change(Ledger, "fill_marker", lambda *args, **named: fill(*args, **named) or 1)


@defect(XA, "I6")
def marker_after_xa_commit(change: Change) -> None:
    """The branch holds the rows alone; its marker follows when it is committed."""
    commit = XaParticipant._commit_prepared

    def then_mark(self: XaParticipant, session: Any, ledger: Ledger, plan: Any, fence: Fence, vote: Any) -> Any:
        listed = commit(self, session, ledger, plan, fence, vote)
        for label in vote.notes["branches"]:
            if ledger.on(session).marker(plan.number, label) is None:
                ledger.on(session).write_marker(plan, fence, Outcome.COMMITTED, {}, {}, label)
        return listed

    change(XaParticipant, "_claim", lambda *_: None)
    _fill_nothing(change)
    change(XaParticipant, "_commit_prepared", then_mark)


@defect(XA, "I3")
def branches_committed_before_the_decision(change: Change) -> None:
    hold = XaParticipant._hold

    def and_commit(self: XaParticipant, plan: Any, fence: Fence, slices: Any, readers: Any) -> None:
        hold(self, plan, fence, slices, readers)
        ledger = self._ledger(plan.pipeline)
        with closing(self._open()) as session:
            for xid in recover(session).of(owner_of(ledger, fence.installation)):
                self._end_branch(session, ledger, fence, xid, "COMMIT")

    change(XaParticipant, "_hold", and_commit)


@defect(ONE_BY_ONE, "I3", pairs=True, at=1462)
def newer_branches_rolled_back_by_an_older_attempt(change: Change) -> None:
    """R8, in the strategy itself: a late sweep ends its successor's prepared branches."""

    def sweep(self: XaParticipant, session: Any, ledger: Ledger, plan: Any, fence: Fence) -> None:
        for xid in recover(session).of(owner_of(ledger, fence.installation)):
            if xid.number == plan.number and xid.nonce != self._nonce:
                self._end_branch(session, ledger, fence, xid, "ROLLBACK")

    change(XaParticipant, "_clear_the_way", sweep)


@defect(XA, "I2 I6")
def branches_that_are_not_listed_taken_for_committed(change: Change) -> None:
    """'Unknown xid' after a lost reply: it was committed, or rolled back, or forgotten; only its marker tells."""
    visible = BranchedParticipant._visible_branches

    def invented(self: XaParticipant, session: Any, ledger: Ledger, plan: Any, fence: Fence) -> Any:
        found = visible(self, session, ledger, plan, fence)
        for part in self._slices(plan):
            marker = Marker(fence.installation, Outcome.COMMITTED, 1, 1, plan.digest, part.rows, {})
            found.setdefault(part.label, marker)
        return found

    change(XaParticipant, "_visible_branches", invented)


@defect(XA_MYSQL, "I7")
def head_locked_by_every_branch(change: Change) -> None:
    """The first design: MySQL keeps the shared lock through XA PREPARE, and nobody can raise the head any more."""
    write = Ledger.write_marker

    def locked(self: Ledger, plan: Any, fence: Fence, outcome: Any, counts: Any, detail: Any, branch: str = "") -> None:
        if branch and outcome is Outcome.COMMITTED:
            self.head(shared=True)
        write(self, plan, fence, outcome, counts, detail, branch)

    change(Ledger, "write_marker", locked)


@defect(ABORTED, "I7", seed=14, at=662)
def tombstone_of_the_whole_alone(change: Change) -> None:
    """An abort that leaves the places of the branches free: one that was on its way is prepared, and stays."""
    change(XaParticipant, "_labels", lambda self: ())


@defect(LOST, "I2 I6")
def whole_marker_before_all_branches_stand(change: Change) -> None:
    def none_missing(self: BranchedParticipant, plan: Any, fence: Fence, missing: Any, opened: Any) -> None:
        deliver(self, plan, fence, missing[:1], opened)

    def whatever(self: BranchedParticipant, session: Any, plan: Any, fence: Fence, expected: Any, detail: Any) -> Any:
        visible = self._visible_branches(session, self._ledger(plan.pipeline), plan, fence)
        return conclude(self, session, plan, fence, [label for label in expected if label in visible], detail)

    deliver, conclude = BranchedParticipant._deliver_branches, BranchedParticipant._conclude_in
    change(BranchedParticipant, "_deliver_branches", none_missing)
    change(BranchedParticipant, "_conclude_in", whatever)


@defect(LOST_RUNS, "I5")
def branches_that_do_not_lock_the_head(change: Change) -> None:
    """A lost branch is delivered: the head is read, and may be raised before the rows of the branch are committed."""

    def unlocked(session: Any, ledger: Ledger, fence: Fence, nonce: str, *, shared: bool = False) -> Any:
        if not shared:
            return guarded_head(session, ledger, fence, nonce)
        return still_named(ledger.on(session).head(), fence, nonce)

    change(branches, "guarded_head", unlocked)


@defect(LOST_RUNS, "I2 I6")
def branch_delivered_again_under_a_place_that_is_taken(change: Change) -> None:
    """A branch that is visible is sent again with those that were lost, whatever holds the place of its marker."""
    take, deliver = Ledger.take_place, BranchedParticipant._deliver_branches

    def all_of_them(self: BranchedParticipant, plan: Any, fence: Fence, _: Any, opened: Any) -> None:
        deliver(self, plan, fence, self._slices(plan), opened)

    change(Ledger, "take_place", lambda *args: take(*args) or True)
    change(BranchedParticipant, "_deliver_branches", all_of_them)
