"""The strategy `xa` with branches that other processes load (docs/adr/0038-mapped-delivery.md).

All processes of an announced attempt use the same xids. A server accepts an xid once, so a branch is loaded once. A
process finds it prepared, or in a session of another process, or free. It may end that session, because the other
process may have stopped. It does so only in its first try, so that two processes never end each other's sessions
forever.

Nothing is rolled back here, because a process cannot know whether a vote counts what is prepared under these xids. An
attempt that comes later rolls it back, or an abort.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any

import pymysql

from airflow_ft.protocol.errors import SinkUnavailableError
from airflow_ft.protocol.model import Fence, Plan
from airflow_ft.protocol.votes import Vote
from airflow_ft.sinks.base.memory import check_owner
from airflow_ft.sinks.base.prepared import voted
from airflow_ft.sinks.mysql.branches import BranchedParticipant
from airflow_ft.sinks.mysql.failures import DUPLICATE_XID, code_of, describe
from airflow_ft.sinks.mysql.fencing import hold_lock, kill, lock_holders, take_lock
from airflow_ft.sinks.mysql.ledger import Ledger
from airflow_ft.sinks.mysql.session import Session
from airflow_ft.sinks.mysql.xa import XaParticipant
from airflow_ft.sinks.mysql.xid import Xid, lock_of, recover

log = logging.getLogger(__name__)

SESSION = "session"
"""The note with the digest of the nonce that the head names for an announced attempt. The nonce itself stays in the
head: on MySQL anyone who knows an xid may end the branch, and notes travel through XCom."""


def digest_of(nonce: str) -> str:
    """Return what shows that a nonce is the same, without telling it."""
    return hashlib.sha256(nonce.encode()).hexdigest()[:32]


class SharedXaParticipant(XaParticipant):
    """See `airflow_ft.protocol.participant.Branching`."""

    def __init__(self, *opened: Any) -> None:
        super().__init__(*opened)
        self._own: set[int] = set()  # connections in which this process has started branches

    def branches(self, plan: Plan) -> Sequence[str]:
        """Return the labels of a plan's branches."""
        return [part.label for part in self._slices(plan)]

    def announce(self, plan: Plan, fence: Fence) -> Mapping[str, Any]:
        """Raise the head and judge the rows; the head then names the nonce of all branches."""

        def announce() -> Mapping[str, Any]:
            notes, readers = self._first_look(plan, fence)
            if readers is None:
                return {}
            return {**notes, **BranchedParticipant._vote(self, plan, fence, readers), SESSION: digest_of(self._nonce)}

        return self._persist("announcing", announce, fence, plan)

    def load(self, plan: Plan, fence: Fence, notes: Mapping[str, Any], branch: str) -> bool:
        """Store one branch, or find it among the prepared ones."""
        with self._explaining():
            step = partial(self._join, plan, fence, notes, [branch])
            return self._persist(f"loading branch {branch}", step, fence, plan) is not None

    def conclude(self, plan: Plan, fence: Fence, notes: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Load what is missing; when it returns notes, all branches are durable and no session works on one."""

        def conclude() -> Mapping[str, Any] | None:
            slices = self._slices(plan)
            there = self._join(plan, fence, notes, [part.label for part in slices])
            if there is None:
                return None
            kept = {name: note for name, note in notes.items() if name != SESSION}
            return voted({**kept, "epoch": fence.epoch}, slices, there)

        return self._persist("preparing", conclude, fence, plan)

    # --- a branch of an announced attempt -------------------------------------------------------------------------

    def _join(self, plan: Plan, fence: Fence, notes: Mapping[str, Any], labels: Collection[str]) -> list[str] | None:
        """Prepare those of these branches that are not there. None: the head no longer names the announcement.

        Returns branches that were committed by hand. FencedError when a newer attempt begins meanwhile.
        """
        ledger, opening = self._ledger(plan.pipeline), self._opening(plan)
        self._given = Vote(self.name, fence.attempt, 0, None, notes)
        with closing(self._open()) as session:
            head = ledger.on(session).head()
            # Newer: an attempt at this number, or at another one. Or a request of the announcement came late, and the
            # head names another nonce of it.
            if head is not None and head.installation == fence.installation and head.rank > fence.rank:
                return None
            check_owner(head, fence)
            assert head is not None  # check_owner raises
            if head.rank != fence.rank or digest_of(head.session) != notes[SESSION]:
                return None
            self._nonce = head.session
            there = self._there_already(plan, fence)  # behind the head: a later `commit` makes branches visible, too
            slices = self._slices(plan, opening.result())
            lacks = [part for part in slices if part.label in labels and part.label not in there]
            parts = self._parts(plan, fence, lacks)
            self._end_sessions(session, ledger, fence, list(parts))
            lacking = sorted(set(parts) - self._listed(session, ledger, fence).xids)
            if lacking:
                self._fitting(session, plan, opening.result(), judge=True)
        self._prepare_side_by_side(plan, fence, parts, lacking)
        return there

    def _end_sessions(self, session: Session, ledger: Ledger, fence: Fence, xids: Sequence[Xid]) -> None:
        """End sessions of other processes that work on these branches, and lost ones of this process."""
        locks = [lock_of(ledger, fence.installation, xid) for xid in xids]
        for holder in lock_holders(session, locks) if locks else ():
            if holder is not None and (self._tries == 1 or holder in self._own):
                kill(session, holder, fence.rank)

    def _start(self, session: Session, ledger: Ledger, fence: Fence, xid: Xid) -> bool:
        """XA START. False: another process has prepared the branch. Waits for one that works on it."""
        deadline = time.monotonic() + self._limits.head_wait
        self._own.add(session.id)
        is_held = not take_lock(session, lock_of(ledger, fence.installation, xid))
        is_said = False
        while True:
            try:
                session.run(f"XA START {xid.sql}")
                if not is_held:  # the session that worked on the branch had it, and has just ended
                    hold_lock(session, ledger, fence, xid.nonce, xid.branch, 1)
                return True
            except pymysql.err.MySQLError as error:
                if code_of(error) != DUPLICATE_XID:
                    raise
                if xid in recover(session).xids:
                    return False
                if time.monotonic() > deadline:
                    raise SinkUnavailableError(
                        f"another session has loaded branch {xid.branch} for {self._limits.head_wait:.0f} s:"
                        f" {describe(error)}",
                        code="branch_taken",
                        remedy="Do nothing: the next retry looks for it again.",
                        branch=xid.branch,
                    ) from error
            if not is_said:
                is_said = True
                log.info("%s: another session loads branch %s; waiting for it", self.name, xid.branch)
            time.sleep(0.2)
