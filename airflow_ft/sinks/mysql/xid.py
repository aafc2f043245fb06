"""The names of prepared branches, and the statements that list and end them.

    'aft.<owner>.<number>','<epoch>.<attempt>.<branch>.<nonce>',1

`owner` is a hash of installation, pipeline and participant (I8: nothing else is ever touched). Numbers are
hexadecimal. `nonce` is the 96-bit random name of the attempt's sessions, because on MySQL any user who knows an xid may
finish it. At most 53 + 62 bytes of the 64 + 64 that XA allows, all ASCII.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import Any

import pymysql

from airflow_ft.protocol.errors import SinkUnavailableError
from airflow_ft.sinks.base import prepared
from airflow_ft.sinks.base.prepared import BranchName
from airflow_ft.sinks.mysql.failures import Meaning, code_of, describe, meaning
from airflow_ft.sinks.mysql.fencing import await_end, lock_name
from airflow_ft.sinks.mysql.ledger import Ledger
from airflow_ft.sinks.mysql.session import Session

FORMAT_ID = 1
"""XA START's default. MySQL 9.7.4 forgets acknowledged branches at a restart if prepared ones have different formatIDs.
So it is best to have the one that other users of plain XA statements have."""

XAER_NOTA = 1397
XAER_RMERR = 1401
"""MySQL's message for a missing privilege for XA RECOVER."""

_GLOBAL = re.compile(rb"aft\.([0-9a-f]{32})\.([0-9a-f]{1,16})")
_BRANCH = re.compile(rb"([0-9a-f]{1,16})\.([0-9a-f]{1,16})\.([0-9a-z]{1,4})\.([0-9a-f]{24})")


@dataclass(frozen=True, slots=True, order=True)
class Xid(BranchName):
    """One branch of this package."""

    nonce: str

    @property
    def sql(self) -> str:
        """As the XA statements take it."""
        return f"'aft.{self.owner}.{self.number:x}','{self.epoch:x}.{self.attempt:x}.{self.branch}.{self.nonce}',1"


@dataclass(frozen=True, slots=True)
class Listed:
    """Result of XA RECOVER: the branches of this package, and how many there are of each foreign formatID."""

    xids: frozenset[Xid]
    foreign: dict[int, int]

    def of(self, owner: str) -> list[Xid]:
        """Return the branches of one owner, ascending by number and rank."""
        return sorted(xid for xid in self.xids if xid.owner == owner)


def owner_of(ledger: Ledger, installation: str) -> str:
    """Return the owner hash of a decision log's branches."""
    return prepared.owner_of(installation, ledger.pipeline, ledger.participant)


def parse(format_id: int, global_part: bytes, branch_part: bytes) -> Xid | None:
    """The xid, when it is one of this package; others may hold any bytes."""
    found, branch = _GLOBAL.fullmatch(global_part), _BRANCH.fullmatch(branch_part)
    if format_id != FORMAT_ID or found is None or branch is None:
        return None
    owner, number = found[1].decode(), int(found[2], 16)
    return Xid(owner, number, int(branch[1], 16), int(branch[2], 16), branch[3].decode(), branch[4].decode())


def recover(session: Session) -> Listed:
    """XA RECOVER: all branches that are prepared on the server now, attached or not."""
    xids, foreign = set(), dict[int, int]()
    # MariaDB answers in bytes; MySQL in text, which other people's bytes may not be: there as hexadecimal digits.
    for row in session.rows("XA RECOVER" if session.is_mariadb else "XA RECOVER CONVERT XID"):
        format_id, length, data = int(row[0]), int(row[1]), _bytes(row[3], session.is_mariadb)
        xid = parse(format_id, data[:length], data[length:])
        if xid is not None:
            xids.add(xid)
        elif format_id != FORMAT_ID:
            foreign[format_id] = foreign.get(format_id, 0) + 1
    return Listed(frozenset(xids), foreign)


def may_not_list(error: pymysql.err.MySQLError) -> bool:
    """Return whether XA RECOVER was refused since a privilege is lacking."""
    return code_of(error) == XAER_RMERR or meaning(error) is Meaning.ACCESS


def lock_of(ledger: Ledger, installation: str, xid: Xid) -> str:
    """The user-level lock of the session that has prepared a branch."""
    return lock_name(ledger, installation, xid.rank, xid.nonce, xid.branch)


def end_branch(
    session: Session, ledger: Ledger, installation: str, xid: Xid, verb: str, patience: float, *, is_free: bool = False
) -> bool:
    """Run XA COMMIT or XA ROLLBACK until the branch is no longer listed. False: another session has ended it.

    'Unknown' (1397) proves nothing: it may have been ended, or (MariaDB) the connection that prepared it may still
    exist, perhaps stopped. `is_free`: that one is known to have left DETACHING seconds ago.

    Raises:
        SinkUnavailableError: it is listed and cannot be ended for `patience` seconds.
    """
    deadline = time.monotonic() + patience
    while True:
        if session.is_mariadb and not is_free:
            await_end(session, lock_of(ledger, installation, xid), xid.rank, patience)
        try:
            session.run(f"XA {verb} {xid.sql}")
            return True
        except pymysql.err.MySQLError as error:
            if code_of(error) != XAER_NOTA:
                raise
            if xid not in recover(session).xids:
                return False
            if time.monotonic() > deadline:
                raise SinkUnavailableError(
                    f"a prepared branch of epoch {xid.epoch}, attempt {xid.attempt} cannot be ended: {describe(error)}",
                    code="session_stuck",
                    remedy="Find the connection that prepared it with SHOW PROCESSLIST, and KILL it.",
                    number=xid.number,
                ) from error
        time.sleep(0.2)  # it leaves without a visible lock, so wait for that moment to pass


def _bytes(data: Any, raw: bool) -> bytes:
    if raw:
        return data if isinstance(data, bytes) else str(data).encode("utf-8", "surrogateescape")
    return bytes.fromhex((data.decode() if isinstance(data, bytes) else str(data)).removeprefix("0x"))
