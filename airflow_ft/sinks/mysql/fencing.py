"""Fencing: the head is raised and the writing session announced before any transaction opens (I5).

A delivery is two steps. `announce` is one autocommitted statement: it raises the head to (epoch, attempt) and writes
the nonce of the session that is about to work. That session holds the user-level lock named after the nonce. Only then
does the transaction open. It locks the head and continues only while the head still names its nonce (`guarded_head`).

So a session that holds the head's row lock for longer than a statement is the one that the *committed* head names,
with its rank. The lock's name is derived from installation, pipeline, participant, rank and nonce. A successor whose
wait times out reads the head. If the rank there is older than its own, IS_USED_LOCK returns the connection of that
session. Exactly this connection is killed: never a newer one, never a stranger's. If an attempt works in several
sessions, a branch each, each holds a lock named after the nonce and its branch. Connection ids are not reused while
the server runs, and when it restarts the killer's own connection ends too.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
import time
from collections.abc import Collection, Sequence

import pymysql

from airflow_ft.protocol.errors import FencedError, SinkUnavailableError
from airflow_ft.protocol.model import Fence
from airflow_ft.sinks.base.memory import check_owner, new_head, refuse_markers_without_head
from airflow_ft.sinks.mysql.failures import LOCK_WAIT_TIMEOUT, NO_SUCH_THREAD, Meaning, code_of, describe, meaning
from airflow_ft.sinks.mysql.ledger import WHOLE, Head, Ledger
from airflow_ft.sinks.mysql.limits import Limits
from airflow_ft.sinks.mysql.session import Session

log = logging.getLogger(__name__)

_LEAVING = 0.2  # seconds until a closed connection that remains counts as stopped
_ROLLING_BACK = 5.0  # seconds to wait for a killed connection; one with a prepared branch rolls nothing back
DETACHING = 0.05
"""Seconds between the moment when a connection frees its user-level locks and when the engine frees what it prepared.
That takes some microseconds of work, but on busy cores the thread may have to wait for its turn."""


def new_nonce() -> str:
    """Return 24 random hexadecimal digits: 96 bits, the most that an xid can hold."""
    return secrets.token_hex(16)[:24]


def lock_name(ledger: Ledger, installation: str, rank: tuple[int, int], nonce: str, branch: str = WHOLE) -> str:
    """Name of the user-level lock that a writing session holds: 51 ASCII characters (the limit is 64)."""
    parts = (installation, ledger.pipeline, ledger.participant, *map(str, rank), nonce, *([branch] if branch else []))
    return "airflow_ft." + hashlib.sha256("\0".join(parts).encode()).hexdigest()[:40]


def announce(
    session: Session,
    ledger: Ledger,
    fence: Fence,
    nonce: str,
    limits: Limits,
    mine: Collection[str] = (),
    *,
    create: bool = False,
    branches: Sequence[str] = (),
) -> tuple[int, ...]:
    """Raises the head to `fence` and names `session` there, waiting for (or ending) an older attempt's transaction.

    `nonce` is 24 hex digits that were never used; `mine` are those that this very process announced before: its own
    lost sessions. With `create` a pipeline's head is created when the sink has never seen the pipeline. `branches` are
    the labels that an attempt's sessions may have. Returns the connections that were killed.

    Raises:
        FencedError: the head is newer.
        ForeignOwnerError: the head belongs to another decision log.
        StoreBehindSinkError: the head is gone, though it was there.
        SinkUnavailableError: the lock on the head was not had within `limits.head_wait` seconds.
    """
    hold_lock(session, ledger, fence, nonce)
    killed: list[int] = []
    deadline = time.monotonic() + limits.head_wait
    while True:
        try:
            if ledger.on(session).announce(fence, nonce):
                return tuple(killed)
        except pymysql.err.MySQLError as error:
            if code_of(error) != LOCK_WAIT_TIMEOUT:
                raise
            # The time-out itself means nothing. The committed head may show who holds the lock.
            head = ledger.on(session).head()
            if head is not None:  # None: its creator is still at it
                check_owner(head, fence)
                for victim in older_sessions(session, ledger, fence, head, mine, branches):
                    if victim not in killed and kill(session, victim, head.rank):
                        killed.append(victim)  # rolling back may take it longer than one lock wait
            if time.monotonic() > deadline:
                remedy = f"Find the open transaction on {ledger.head_table} with SHOW PROCESSLIST, and KILL it."
                if session.is_proxied:
                    remedy += " Connect to the server itself for that: behind a proxy the sink ends no sessions."
                raise SinkUnavailableError(
                    f"another session kept the row of {ledger.head_table} locked for {limits.head_wait:.0f} s.",
                    code="lock_timeout",
                    remedy=remedy,
                    table=ledger.head_table,
                    seconds=limits.head_wait,
                ) from error
            continue
        head = ledger.on(session).head()
        if head is None and create:
            _refuse_markers_without_head(session, ledger)
            ledger.on(session).create_head(new_head(fence))
            continue
        check_owner(head, fence)
        if head is not None and head.rank == fence.rank and head.session == nonce:
            return tuple(killed)  # a proxy has sent the statement twice, and the second changed nothing
        if time.monotonic() > deadline:
            raise SinkUnavailableError(
                f"other attempts kept changing the row of {ledger.head_table} for {limits.head_wait:.0f} s.",
                code="lock_timeout",
                remedy="Wait for the retry. If it fails too, look for a second process of the pipeline.",
                table=ledger.head_table,
                seconds=limits.head_wait,
            )


def guarded_head(session: Session, ledger: Ledger, fence: Fence, nonce: str, *, shared: bool = False) -> Head:
    """Lock the head, first in the transaction, and return it if it still names this attempt's sessions.

    `shared`: other branches of this attempt may hold it too; no attempt can raise it before all of them have ended.
    """
    return still_named(ledger.on(session).head(lock=not shared, shared=shared), fence, nonce)


def still_named(head: Head | None, fence: Fence, nonce: str) -> Head:
    """The head, when it names this attempt's sessions; else FencedError, or what `check_owner` raises."""
    check_owner(head, fence)
    assert head is not None  # check_owner raises
    if head.rank != fence.rank or head.session != nonce:
        raise FencedError(
            f"a session of epoch {head.epoch}, attempt {head.attempt}, has taken over from this one.",
            head_epoch=head.epoch,
            head_attempt=head.attempt,
            remedy="Do nothing: the newer attempt finishes the checkpoint.",
        )
    return head


def _refuse_markers_without_head(session: Session, ledger: Ledger) -> None:
    newest = ledger.on(session).newest()
    # The head comes before its first marker: seen now, a newer attempt made both after this one had found no head.
    if newest and ledger.on(session).head() is None:
        refuse_markers_without_head(newest, ledger.head_table)


def take_lock(session: Session, name: str, seconds: int = 0) -> str:
    """Take a user-level lock; returns why the server gave none, or ""."""
    try:
        given = session.row("SELECT GET_LOCK(%s, %s)", (name, seconds)) == (1,)
        return "" if given else "GET_LOCK did not return 1"
    except pymysql.err.MySQLError as error:  # clusters may forbid it
        if meaning(error) is Meaning.LOST:
            raise
        return describe(error)


def hold_lock(
    session: Session, ledger: Ledger, fence: Fence, nonce: str, branch: str = WHOLE, seconds: int = 0
) -> None:
    """Lets a successor prove which connection this is. Not needed for safety: without it a successor has to wait."""
    if refused := take_lock(session, lock_name(ledger, fence.installation, fence.rank, nonce, branch), seconds):
        log.warning(
            "the server gave no user-level lock: %s; if this process stops, the next one waits for time-outs", refused
        )


def older_sessions(
    session: Session, ledger: Ledger, fence: Fence, head: Head, mine: Collection[str], branches: Sequence[str] = ()
) -> list[int]:
    """Return the connections of the sessions that the head names, if they belong to an older attempt or are this
    process's lost ones.

    Empty if they are neither, or if no session holds their locks: then an unknown session has locked the head.
    """
    if head.rank >= fence.rank and head.session not in mine:
        return []
    found = (
        lock_holder(session, lock_name(ledger, head.installation, head.rank, head.session, branch))
        for branch in (WHOLE, *branches)
    )
    return [connection for connection in found if connection is not None]


def lock_holder(session: Session, name: str) -> int | None:
    """Return which other connection holds that user-level lock at this moment; None: none does."""
    return lock_holders(session, [name])[0]


def lock_holders(session: Session, names: Sequence[str]) -> list[int | None]:
    """The same of several locks, by one statement."""
    row = session.row(f"SELECT {', '.join(['IS_USED_LOCK(%s)'] * len(names))}", tuple(names)) or [None] * len(names)
    return [None if holder is None or int(holder) == session.id else int(holder) for holder in row]


def await_end(session: Session, lock: str, rank: tuple[int, int], seconds: float) -> None:
    """Wait on MariaDB for the end of the session that holds `lock`, and end it if it does not leave.

    For a session that has prepared a branch of attempt `rank`, before another one ends that branch. MariaDB releases a
    branch a moment before its storage engine does. XA COMMIT or XA ROLLBACK in that moment succeeds without effect,
    and the branch keeps its locks, unlisted, until the server restarts (docs/traps.md). The lock is released before
    that moment. So this waits until a leaving session has left, and then for DETACHING seconds more, because no query
    shows when the engine has released it.

    Raises:
        SinkUnavailableError: it is still there after `seconds`.
    """
    deadline = time.monotonic() + seconds
    patient_until = time.monotonic() + _LEAVING
    seen: int | None = None
    while (holder := lock_holder(session, lock)) is not None:
        seen = holder
        if time.monotonic() > deadline:
            break
        if time.monotonic() > patient_until and session.can_kill:
            kill(session, holder, rank)
        time.sleep(0.01)
    if holder is not None or (seen is not None and not _has_left(session, seen, deadline)):
        raise SinkUnavailableError(
            f"connection {seen} has prepared a branch of epoch {rank[0]}, attempt {rank[1]}, and does not end.",
            code="session_stuck",
            remedy=f"Run KILL {seen} on the server (SHOW PROCESSLIST shows it).",
            connection=seen,
        )
    time.sleep(DETACHING)


def _has_left(session: Session, connection: int, deadline: float) -> bool:
    """Waits until a connection is no longer listed."""
    while session.row("SELECT 1 FROM information_schema.PROCESSLIST WHERE ID = %s", (connection,)) is not None:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def kill(session: Session, victim: int, rank: tuple[int, int]) -> bool:
    """Ends a connection that was proven to be a session of `rank`; False when it could not be, or had ended.

    Behind a proxy none is ended, because the proxy would take the number for one of its own sessions. On MariaDB,
    returns when the connection has left (`await_end`), unless it has too much to roll back.
    """
    if not session.can_kill:
        log.warning("waiting for connection %d of epoch %d, attempt %d: a proxy is between", victim, *rank)
        return False
    try:
        session.run(f"KILL CONNECTION {victim}")
    except pymysql.err.MySQLError as error:
        if code_of(error) == NO_SUCH_THREAD:  # it ended by itself
            return False
        log.warning("could not kill connection %d of epoch %d, attempt %d: %s", victim, *rank, describe(error))
        return False
    log.warning("killed connection %d of epoch %d, attempt %d, which held a lock", victim, *rank)
    if session.is_mariadb:
        _has_left(session, victim, time.monotonic() + _ROLLING_BACK)
        time.sleep(DETACHING)
    return True
