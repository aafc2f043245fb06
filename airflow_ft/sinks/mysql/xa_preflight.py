"""Check whether prepared branches are safe on this server: by its version, and by really preparing one branch.

| refused | because |
| --- | --- |
| MariaDB before 10.5.2 | a disconnect rolls a prepared branch back |
| MySQL before 8.0.30 | prepared branches and the binary log can disagree after a crash |
| Galera (wsrep_on) | it has no XA |
| MySQL with prepared branches of other formatIDs | a restart forgets acknowledged ones [tried, 9.7.4] |
| no right to XA RECOVER (MySQL: XA_RECOVER_ADMIN) | checkpoints in doubt could not be found |
| the branch of the test does not survive its connection, or no other connection can commit it | for any reason |

There is no limit of prepared transactions to check: neither server has one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any

import pymysql

from airflow_ft.protocol.errors import AirflowFtError, SinkAccessError, SinkUnavailableError
from airflow_ft.protocol.model import Fence
from airflow_ft.sinks.base.memory import check_owner
from airflow_ft.sinks.base.prepared import PROBE_NUMBER
from airflow_ft.sinks.mysql.failures import describe
from airflow_ft.sinks.mysql.fencing import hold_lock, new_nonce
from airflow_ft.sinks.mysql.ledger import Ledger
from airflow_ft.sinks.mysql.limits import Limits
from airflow_ft.sinks.mysql.session import Session
from airflow_ft.sinks.mysql.session_settings import is_on
from airflow_ft.sinks.mysql.xid import Listed, Xid, end_branch, may_not_list, owner_of, recover

log = logging.getLogger(__name__)

SAFE_MARIADB = (10, 5, 2)
SAFE_MYSQL = (8, 0, 30)
_TRIES = 3


def check_xa(
    open_session: Callable[[], Session], session: Session, ledger: Ledger, fence: Fence, nonce: str, limits: Limits
) -> Mapping[str, Any]:
    """Refuse a server on which prepared branches are not safe; returns notes. The ledger must be there.

    Prepares a branch that leaves nothing behind, disconnects, finds it by XA RECOVER and commits it. `nonce` is 24
    unused hex digits. A process that dies in between leaves a branch of number 0, which locks nothing and is rolled
    back by the next attempt.

    Raises:
        SinkAccessError: with the reason and what to do.
        FencedError: a newer attempt has ended the branch of this one.
    """
    check_listing(session)
    for _ in range(_TRIES):
        began = time.monotonic()
        if _try_branch(open_session, session, ledger, fence, nonce, limits, "COMMIT"):
            return {"prepared, found and committed a branch in ms": round((time.monotonic() - began) * 1000, 1)}
        head = ledger.on(session).head()  # a newer attempt ends the branch before it raises the head
        if head is not None:
            check_owner(head, fence)
    raise _vanished()


def try_xa(
    open_session: Callable[[], Session], session: Session, ledger: Ledger, installation: str, limits: Limits
) -> float:
    """As `check_xa`, for reads only: it takes no epoch, and rolls the branch back. Returns the milliseconds it took.

    Its rank is below every attempt's, so the next `prepare` would roll back a leftover. A running one may do so too,
    so it is tried again before a conclusion.
    """
    check_listing(session)
    fence = Fence(ledger.pipeline, installation, 0, 0)
    for _ in range(_TRIES):
        began = time.monotonic()
        if _try_branch(open_session, session, ledger, fence, new_nonce(), limits, "ROLLBACK"):
            return round((time.monotonic() - began) * 1000, 1)
    raise _vanished()


def _try_branch(
    open_session: Callable[[], Session],
    session: Session,
    ledger: Ledger,
    fence: Fence,
    nonce: str,
    limits: Limits,
    verb: str,
) -> bool:
    """Prepares a branch on one connection and ends it from another; False: it vanished in between.

    After any failure the branch is rolled back: a server must not gather the branches of preflights.
    """
    xid = Xid(owner_of(ledger, fence.installation), PROBE_NUMBER, fence.epoch, fence.attempt, "test", nonce)
    try:
        _prepare(open_session, ledger, fence, xid)
        return _end_from_here(session, ledger, fence, xid, limits, verb)
    except BaseException:
        _clean_up(open_session, ledger, fence, xid, limits)
        raise


def _clean_up(open_session: Callable[[], Session], ledger: Ledger, fence: Fence, xid: Xid, limits: Limits) -> None:
    """Rolls the branch back on a connection of its own, if that can be done now."""
    try:
        with closing(open_session()) as session:
            if xid in recover(session).xids:
                end_branch(session, ledger, fence.installation, xid, "ROLLBACK", limits.head_wait)
    except (AirflowFtError, pymysql.err.MySQLError) as error:
        log.warning("could not roll back the branch of a preflight; the next preflight does it: %s", error)


def _prepare(open_session: Callable[[], Session], ledger: Ledger, fence: Fence, xid: Xid) -> None:
    """A prepared branch that leaves nothing behind; the connection that prepared it is closed."""
    with closing(open_session()) as other:
        hold_lock(other, ledger, fence, xid.nonce, xid.branch)  # lets others end it if this process is stopped
        other.run(f"XA START {xid.sql}")
        ledger.on(other).touch(fence, xid.nonce)
        other.run(f"XA END {xid.sql}")
        other.run(f"XA PREPARE {xid.sql}")


def check_listing(session: Session) -> None:
    """The part of it that only looks: versions, the right to list branches, foreign ones. Raises SinkAccessError."""
    _check_version(session)
    listed = _listed(session)
    if listed.foreign and not session.is_mariadb:
        found = ", ".join(f"{count} of formatID {format_id}" for format_id, count in sorted(listed.foreign.items()))
        raise SinkAccessError(
            f"other applications have prepared branches on this server ({found}). MySQL can lose acknowledged branches"
            " at a restart when formatIDs are mixed.",
            code="prepared_foreign",
            remedy="End them (XA RECOVER CONVERT XID lists them), let that application use formatID 1, or choose"
            " strategy 'local'.",
            format_ids=dict(sorted(listed.foreign.items())),
        )


def _check_version(session: Session) -> None:
    safe = SAFE_MARIADB if session.is_mariadb else SAFE_MYSQL
    if session.version < safe:
        raise SinkAccessError(
            f"{session.product} does not keep prepared branches safely. Version {'.'.join(map(str, safe))} is the first"
            " that is known to.",
            code="server_version",
            remedy=f"Upgrade the server to {'.'.join(map(str, safe))} or later, or use strategy 'local'.",
            version=session.product,
        )
    if is_on(session.variables.get("wsrep_on", "OFF")):
        raise SinkAccessError(
            "the server is a Galera node, which has no XA.",
            code="server_unsupported",
            remedy="Use strategy 'local'.",
            setting="wsrep_on",
        )


def _listed(session: Session) -> Listed:
    try:
        return recover(session)
    except pymysql.err.MySQLError as error:
        if not may_not_list(error):
            raise
        raise SinkAccessError(
            f"the connection's user may not list prepared branches: {describe(error)}",
            code="privilege_missing",
            remedy="Run GRANT XA_RECOVER_ADMIN ON *.* to the connection's user.",
            grant="GRANT XA_RECOVER_ADMIN ON *.*",
        ) from error


def _end_from_here(session: Session, ledger: Ledger, fence: Fence, xid: Xid, limits: Limits, verb: str) -> bool:
    """As a recovery would: the connection that prepared it is gone. False: the branch is not listed (any more)."""
    if xid not in recover(session).xids:
        return False
    try:
        return end_branch(session, ledger, fence.installation, xid, verb, limits.head_wait)
    except SinkUnavailableError as error:
        raise SinkAccessError(
            f"another connection cannot end a prepared branch: {error.what}",
            code="server_unsupported",
            remedy="Use strategy 'local'.",
        ) from error


def _vanished() -> SinkAccessError:
    return SinkAccessError(
        "a branch was prepared, and is gone since its connection was closed. A proxy, a pool or the server itself does"
        " not keep prepared branches.",
        code="prepared_lost",
        remedy="Connect to the server without a proxy or pool, or use strategy 'local'.",
    )
