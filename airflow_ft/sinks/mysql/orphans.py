"""Prepared branches of the owners of a pipeline, as `airflow_ft.sinks.base.orphans` lists and ends them."""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import cast

import pymysql

from airflow_ft.protocol.model import Fence
from airflow_ft.protocol.votes import Outcome
from airflow_ft.sinks.base.memory import Marker, check_shut_out
from airflow_ft.sinks.base.orphans import PreparedOfOwners
from airflow_ft.sinks.base.prepared import PROBE_NUMBER, BranchName
from airflow_ft.sinks.base.slices import labels
from airflow_ft.sinks.base.sql_sink import MAX_BRANCHES
from airflow_ft.sinks.mysql.failures import describe
from airflow_ft.sinks.mysql.fencing import kill, older_sessions
from airflow_ft.sinks.mysql.ledger import Ledger
from airflow_ft.sinks.mysql.session import Session
from airflow_ft.sinks.mysql.xid import Xid, end_branch, may_not_list, owner_of, recover

log = logging.getLogger(__name__)


class Prepared(PreparedOfOwners):
    """`seconds` bound the wait for a session that keeps a branch."""

    def __init__(self, session: Session, ledger: Ledger, seconds: float) -> None:
        self._session, self._seconds = session, seconds
        self.ledger: Ledger = ledger.on(session)

    def of(self, owners: Collection[str]) -> list[tuple[str, BranchName]]:
        try:
            listed = sorted(recover(self._session).xids)
        except pymysql.err.MySQLError as error:
            if not may_not_list(error):
                raise
            log.warning("could not list prepared branches: %s", describe(error))
            return []  # another strategy does not need that privilege
        hashed = {owner_of(self.ledger, owner): owner for owner in owners}
        return [(hashed[xid.owner], xid) for xid in listed if xid.owner in hashed]

    def sql(self, name: BranchName, verb: str) -> str:
        return f"XA {verb} {cast(Xid, name).sql}"

    def end(self, owner: str, name: BranchName, verb: str) -> None:
        end_branch(self._session, self.ledger, owner, cast(Xid, name), verb, self._seconds)

    def settled(self, name: BranchName) -> str:
        """As the markers of its number say."""
        marker = self.ledger.marker(name.number) if name.number != PROBE_NUMBER else None
        return as_marked(self._session, self.ledger, cast(Xid, name), marker)


def shut_out(session: Session, ledger: Ledger, fence: Fence, *, make_way: bool) -> None:
    """Raises the head above its owner, who stays named in it, and ends the sessions that the head had named."""
    head = ledger.on(session).head()
    if head is None or not check_shut_out(head, fence, make_way=make_way):
        return
    for _ in range(2):  # also what began before the head was raised, and after the first look
        check_shut_out(ledger.on(session).head(), fence, make_way=make_way)
        for connection in older_sessions(session, ledger, fence, head, (), labels(MAX_BRANCHES)):
            kill(session, connection, head.rank)
        ledger.on(session).shut_out(fence, head.installation)


def as_marked(session: Session, ledger: Ledger, xid: Xid, marker: Marker | None) -> str:
    """Return how to end a branch that came back: as the marker of its number says.

    Without a marker the number was settled and pruned: its rows are there, or were never to be.
    """
    counted = marker is not None and marker.outcome is Outcome.COMMITTED
    if marker is None or not counted or list(xid.rank) != marker.detail.get("prepared"):
        return "ROLLBACK"
    return "COMMIT" if ledger.on(session).marker(xid.number, xid.branch) is None else "ROLLBACK"
