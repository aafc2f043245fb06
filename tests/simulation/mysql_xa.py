"""Prepared branches of the model of a MySQL server: XA START to XA PREPARE, COMMIT, ROLLBACK and RECOVER.

Where the two servers differ and the product depends on it, so does the model: MariaDB keeps a prepared branch attached
to the connection that prepared it, gives shared locks back at XA PREPARE and can forget an acknowledged XA COMMIT in a
crash (without a binary log); MySQL lets it go at once and keeps its shared locks.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pymysql

from airflow_ft.sinks.base.prepared import PROBE_NUMBER
from tests.simulation.mysql_state import LIMITS, BranchName, Commit, Connection, Lock, Work, error

if TYPE_CHECKING:
    from tests.simulation.mysql_server import MySqlServer

_STATEMENT = re.compile(r"XA (START|END|PREPARE|COMMIT|ROLLBACK) ('[^']*','[^']*',1)")
_OURS = re.compile(r"'aft\.[0-9a-f]+\.([0-9a-f]+)','([0-9a-f]+)\.([0-9a-f]+)\.([0-9a-z]+)\.[0-9a-f]+',1")

XAER_NOTA, XAER_RMFAIL, XAER_OUTSIDE, XA_RBROLLBACK, XAER_DUPID = 1397, 1399, 1400, 1402, 1440


def refused(code: int) -> pymysql.err.MySQLError:
    return error(code, "XAER")


def name_of(xid: str) -> BranchName | None:
    """None: it is somebody else's."""
    found = _OURS.fullmatch(xid)
    if found is None:
        return None
    return BranchName(int(found[1], 16), (int(found[2], 16), int(found[3], 16)), found[4])


class Branches:
    """The prepared branches of a server by xid, and the statements about them."""

    def __init__(self, server: MySqlServer) -> None:
        self._server = server
        self.prepared: dict[str, Work] = {}
        self.were_lost = False  # somebody has ended them by hand, or the server forgot them
        self.by_hand: set[tuple[int, str]] = set()  # number and label of those that somebody has committed
        self.came_back = False  # a crash has taken acknowledged commits back
        self._forgettable: list[tuple[str, Work]] = []

    def names(self) -> list[BranchName]:
        """Of the product's branches that are prepared."""
        return sorted(name for xid in self.prepared if (name := name_of(xid)) is not None)

    def refuse_statement(self, connection: Connection) -> None:
        """Between XA END and the end of the branch nothing else may be said in its connection."""
        if connection.branch_is in ("idle", "prepared"):
            raise refused(XAER_RMFAIL)

    def refuse_transaction(self, connection: Connection) -> None:
        """In a branch there is neither BEGIN nor COMMIT."""
        if connection.branch_is:
            raise refused(XAER_RMFAIL)

    def let_go(self, connection: Connection) -> None:
        """The connection has ended: what it had prepared belongs to nobody now."""
        for work in self.prepared.values():
            if work.connection is connection:
                work.connection = None
        connection.xid = connection.branch_is = ""

    # --- statements -----------------------------------------------------------------------------------------------

    def execute(self, connection: Connection, text: str) -> tuple[int, list[tuple[Any, ...]]]:
        if text.startswith("XA RECOVER"):
            return 0, [self._row(xid) for xid in sorted(self.prepared)]
        found = _STATEMENT.fullmatch(text)
        if found is None:
            raise NotImplementedError(f"the model does not speak: {text}")
        verb, xid = found.groups()
        match verb:
            case "START":
                self._start(connection, xid)
            case "END":
                self._step(connection, xid, "active")
                connection.branch_is = "idle"
            case "PREPARE":
                self._step(connection, xid, "idle")
                self._prepare(connection, xid)
            case _:
                self._finish(connection, xid, commit=verb == "COMMIT")
        return 0, []

    def _row(self, xid: str) -> tuple[Any, ...]:
        """As XA RECOVER answers: in bytes (MariaDB), or with CONVERT XID as hexadecimal digits (MySQL)."""
        one, other = (part.strip("'").encode() for part in xid.split(",")[:2])
        data = one + other
        return (1, len(one), len(other), data if self._server.is_mariadb else f"0x{data.hex()}")

    def _start(self, connection: Connection, xid: str) -> None:
        if connection.xid:
            raise refused(XAER_RMFAIL)
        if connection.in_transaction:
            raise refused(XAER_OUTSIDE)
        taken = {other.xid for other in self._server.connections.values()}
        if xid in self.prepared or xid in taken:
            raise refused(XAER_DUPID)
        connection.xid, connection.branch_is = xid, "active"
        connection.in_transaction = True

    def _step(self, connection: Connection, xid: str, must_be: str) -> None:
        if connection.branch_is != must_be:
            raise refused(XAER_RMFAIL)
        if connection.xid != xid:
            raise refused(XAER_NOTA)

    def _prepare(self, connection: Connection, xid: str) -> None:
        self.nothing_is_forgotten()  # XA PREPARE writes the log through
        work = self.prepared[xid] = connection.work
        connection.work = Work(connection)
        connection.in_transaction = False
        if self._server.is_mariadb:
            connection.branch_is = "prepared"
            for place in [place for place in work.locks if self._server.locks[place].shared]:
                self._server.unlock(work, place)
        else:
            work.connection = None
            connection.xid = connection.branch_is = ""

    def _finish(self, connection: Connection, xid: str, *, commit: bool) -> None:
        if connection.xid == xid and connection.branch_is != "prepared":
            if commit or connection.branch_is == "active":
                raise refused(XAER_RMFAIL)
            self._server.rollback(connection)
            connection.xid = connection.branch_is = ""
            return
        if self._server.is_mariadb and connection.xid != xid and (connection.in_transaction or connection.manual):
            raise refused(XAER_OUTSIDE)  # also when autocommit is off and nothing is open
        if connection.in_transaction or connection.xid not in ("", xid):
            raise refused(XAER_RMFAIL)
        work = self.prepared.get(xid)
        if work is None or self._is_attached(work, connection):
            raise refused(XAER_NOTA)
        is_empty = self._server.is_mariadb and not work.undo and not work.loaded
        self._end(xid, commit=commit)
        if commit and is_empty:
            raise refused(XA_RBROLLBACK)
        connection.xid = connection.branch_is = ""

    def _is_attached(self, work: Work, connection: Connection) -> bool:
        """Whether another connection still has it."""
        holder = work.connection
        if holder is None or holder is connection:
            return False
        if self._server.kernel.clock - holder.used > LIMITS.idle:
            self._server.end(holder)  # wait_timeout
            return False
        return True

    def _end(self, xid: str, *, commit: bool) -> None:
        work = self.prepared.pop(xid)
        if not commit:
            self._server.take_back(work, 0)
            self._server.release(work)
            return
        if self._server.is_mariadb:
            self._forgettable.append((xid, Work(None, list(work.undo), list(work.loaded), set(work.locks))))
        self._server.show(work, name_of(xid))

    # --- what may happen to them ----------------------------------------------------------------------------------

    def lose(self) -> None:
        """Somebody rolls all of them back, or the server forgets them (measured: MySQL 9.7, mixed formatIDs)."""
        self.were_lost = True
        for connection in list(self._server.connections.values()):
            if connection.branch_is == "prepared":
                self._server.end(connection)
        for xid in list(self.prepared):
            self._end(xid, commit=False)

    def end_by_hand(self, *, commit: bool) -> None:
        """Somebody types XA COMMIT, or XA ROLLBACK, for the first that XA RECOVER lists and no connection holds."""
        for xid in sorted(self.prepared):
            name = name_of(xid)
            if self.prepared[xid].connection is not None or name is None or name.number == PROBE_NUMBER:
                continue
            if commit:
                self.by_hand.add((name.number, name.label))
            else:
                self.were_lost = True
            return self._end(xid, commit=commit)

    def take_out(self, number: int) -> None:
        """What HEURISTIC_COMMIT says: what is still prepared is rolled back, markers and rows are deleted."""
        server = self._server
        for xid in [xid for xid in self.prepared if (name := name_of(xid)) is not None and name.number == number]:
            self._end(xid, commit=False)
        ledger = server.tables["airflow_ft_ledger"]
        for key in [key for key, row in ledger.items() if row["number"] == number and row["kind"] == "committed"]:
            del ledger[key]
        self.by_hand = {branch for branch in self.by_hand if branch[0] != number}

    def nothing_is_forgotten(self) -> None:
        """The log was written through: what was acknowledged before is on disk."""
        self._forgettable.clear()

    def forget_commits(self) -> None:
        """A crash of MariaDB without a binary log: the last acknowledged XA COMMITs come back as prepared."""
        server = self._server
        server.restart()
        while self._forgettable:
            xid, work = self._forgettable.pop()
            for place in work.locks:
                server.locks[place] = Lock([work], shared=False)
            for table, item in work.loaded:
                server.visible[table].remove(item)
            self.prepared[xid], self.came_back = work, True
            server.commits.append(
                Commit(server.name, tuple(work.loaded), (), (), None, None, name_of(xid), taken_back=True)
            )
