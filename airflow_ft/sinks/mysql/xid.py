"""The names of prepared branches, and the statements about them.

    'aft.<owner>.<number>','<epoch>.<attempt>.<branch>.<nonce>',1

`owner` is a hash of installation, pipeline and participant (I8: nothing else is ever touched), numbers are hexadecimal,
`nonce` is the 96-bit random name of the attempt's sessions: on MySQL whoever knows an xid may finish it, without any
privilege. At most 53 + 62 bytes of the 64 + 64 that XA allows, all ASCII.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Any

from airflow_ft.sinks.mysql.ledger import Ledger
from airflow_ft.sinks.mysql.session import Session

FORMAT_ID = 1
"""What XA START takes when it is not given one. MySQL 9.7.4 forgets acknowledged branches at a restart when prepared
ones of different formatIDs are there: so it is best to have the one that other users of plain XA statements have."""

PROBE_NUMBER = 0
"""The number of a preflight's branch; checkpoints count from 1."""

XAER_NOTA = 1397
XAER_RMERR = 1401
"""How MySQL says that the privilege for XA RECOVER is lacking."""

_GLOBAL = re.compile(rb"aft\.([0-9a-f]{32})\.([0-9a-f]{1,16})")
_BRANCH = re.compile(rb"([0-9a-f]{1,16})\.([0-9a-f]{1,16})\.([0-9a-z]{1,4})\.([0-9a-f]{24})")


@dataclass(frozen=True, slots=True, order=True)
class Xid:
    """One branch of this package."""

    owner: str
    number: int
    epoch: int
    attempt: int
    branch: str
    nonce: str

    @property
    def rank(self) -> tuple[int, int]:
        """Compared with `Fence.rank`."""
        return (self.epoch, self.attempt)

    @property
    def sql(self) -> str:
        """As the XA statements take it."""
        return f"'aft.{self.owner}.{self.number:x}','{self.epoch:x}.{self.attempt:x}.{self.branch}.{self.nonce}',1"


@dataclass(frozen=True, slots=True)
class Listed:
    """What XA RECOVER shows: the branches of this package, and how many there are of each foreign formatID."""

    xids: frozenset[Xid]
    foreign: dict[int, int]

    def of(self, owner: str) -> list[Xid]:
        """Those of one owner, ascending by number and rank."""
        return sorted(xid for xid in self.xids if xid.owner == owner)


def owner_of(ledger: Ledger, installation: str) -> str:
    """32 hexadecimal digits that stand for installation, pipeline and participant."""
    text = "\0".join((installation, ledger.pipeline, ledger.participant))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


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


def _bytes(data: Any, raw: bool) -> bytes:
    if raw:
        return data if isinstance(data, bytes) else str(data).encode("utf-8", "surrogateescape")
    return bytes.fromhex((data.decode() if isinstance(data, bytes) else str(data)).removeprefix("0x"))
