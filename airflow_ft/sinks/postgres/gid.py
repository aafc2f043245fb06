"""Names of an attempt's sessions and prepared transactions, so that others can find and end them.

    aft.<owner>.<number>.<epoch>.<attempt>.<branch>.<nonce>  a prepared transaction (at most 200 bytes; this has 102)
    aft.<owner>.<epoch>.<attempt>                            the application_name of a session (at most 63 bytes)

A session that works on a branch has `.<branch>` at the end of its application_name.
`owner` is a hash of installation, pipeline and participant (I8: nothing else is ever touched), numbers are hexadecimal.
The nonce makes each try's name a new one. Only the user who has prepared a transaction, or a superuser, can end it.
"""

from __future__ import annotations

import logging
import re
import secrets
import time
from collections.abc import Collection
from dataclasses import dataclass

import psycopg2

from airflow_ft.protocol.errors import SinkAccessError, SinkUnavailableError
from airflow_ft.protocol.model import Fence
from airflow_ft.sinks.base.prepared import BranchName, owner_of
from airflow_ft.sinks.postgres.failures import (
    INSUFFICIENT_PRIVILEGE,
    NOT_IN_PREREQUISITE_STATE,
    UNDEFINED_OBJECT,
    describe,
)
from airflow_ft.sinks.postgres.session import Session

log = logging.getLogger(__name__)

_HEX = r"([0-9a-f]{1,16})"
_GID = re.compile(rf"aft\.([0-9a-f]{{32}})\.{_HEX}\.{_HEX}\.{_HEX}\.([0-9]{{4}})\.([0-9a-f]{{8}})")
_LABEL = re.compile(rf"aft\.[0-9a-f]{{20}}\.{_HEX}\.{_HEX}(\.[0-9]{{4}})?")


@dataclass(frozen=True, slots=True, order=True)
class Gid(BranchName):
    """A prepared transaction of this package."""

    nonce: str

    @property
    def sql(self) -> str:
        """As a literal."""
        return f"'aft.{self.owner}.{self.number:x}.{self.epoch:x}.{self.attempt:x}.{self.branch}.{self.nonce}'"


def new_gid(fence: Fence, participant: str, number: int, branch: str) -> Gid:
    """One that was never used."""
    owner = owner_of(fence.installation, fence.pipeline, participant)
    return Gid(owner, number, fence.epoch, fence.attempt, branch, secrets.token_hex(4))


def label_of(fence: Fence, participant: str, branch: str = "") -> str:
    """Return the label of an attempt's sessions, or of those that work on a branch."""
    label = f"{_prefix(fence.installation, fence.pipeline, participant)}{fence.epoch:x}.{fence.attempt:x}"
    return f"{label}.{branch}" if branch else label


def _prefix(installation: str, pipeline: str, participant: str) -> str:
    return f"aft.{owner_of(installation, pipeline, participant)[:20]}."


def listed(session: Session, owner: str) -> list[Gid]:
    """Return what the owner has prepared in this database, by number and rank."""
    rows = session.rows("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()")
    matches = [match for (gid,) in rows if (match := _GID.fullmatch(gid)) is not None]
    found = (Gid(m[1], int(m[2], 16), int(m[3], 16), int(m[4], 16), m[5], m[6]) for m in matches)
    return sorted(gid for gid in found if gid.owner == owner)


def places(session: Session) -> tuple[int, int]:
    """Return max_prepared_transactions, and how many of them all pipelines of this package may hold.

    That is half of them, and at least one, in all databases of a server together. So other software is not locked out.
    """
    limit = int(session.value("SELECT current_setting('max_prepared_transactions')"))
    return limit, max(1, limit // 2)


def full(session: Session, more: int = 0, prepared: Collection[Gid] = ()) -> str:
    """Return why `more` transactions (or those that are `prepared`) may not be held now; "": there is room.

    No pipeline waits for a place.
    """
    limit, share = places(session)
    rows = session.rows("SELECT gid FROM pg_prepared_xacts ORDER BY prepared, gid")
    if more and len(rows) + more > limit:
        return no_place(limit)
    held = [text for (text,) in rows if _GID.fullmatch(text)]
    own = {gid.sql.strip("'") for gid in prepared}
    wanted = len(held) + more if more else max((at for at, text in enumerate(held, 1) if text in own), default=0)
    if wanted <= share:
        return ""
    return (
        f"all pipelines may hold {share} of the server's {limit} prepared transactions, and {wanted} would be needed:"
        " the rows are sent after the decision"
    )


def no_place(limit: int) -> str:
    """Return why no transaction is prepared where other software has taken the places that are left."""
    return f"all {limit} prepared transactions of the server are in use: the rows are sent after the decision"


def end_prepared(session: Session, gid: Gid, verb: str, seconds: float) -> bool:
    """Run COMMIT PREPARED or ROLLBACK PREPARED until it is no longer listed. False: another session has ended it.

    SQLSTATE 42704 proves nothing: it comes after a commit and after a rollback alike (I6).

    Raises:
        SinkAccessError: another user has prepared it.
        SinkUnavailableError: another session has been ending it for `seconds`.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            session.run(f"{verb} PREPARED {gid.sql}")
            return True
        except psycopg2.Error as error:
            if error.pgcode == UNDEFINED_OBJECT:
                return False
            if error.pgcode == INSUFFICIENT_PRIVILEGE:
                raise SinkAccessError(
                    f"this user cannot end a transaction prepared for checkpoint {gid.number}: {describe(error)}",
                    code="prepared_foreign",
                    remedy="Deliver as the user who prepared it (column owner of pg_prepared_xacts) until it is ended,"
                    f" or run `{verb} PREPARED {gid.sql}` as a superuser.",
                    number=gid.number,
                ) from error
            if error.pgcode != NOT_IN_PREREQUISITE_STATE:
                raise
            if time.monotonic() > deadline:
                raise SinkUnavailableError(
                    f"cannot end a prepared transaction within {seconds:.0f} s: {describe(error)}",
                    code="lock_timeout",
                    remedy="Look in pg_stat_activity for the session that is ending it.",
                ) from error
        time.sleep(0.05)  # another session is ending it


def end_branch_sessions(session: Session, fence: Fence, participant: str, branch: str) -> None:
    """End other sessions of this attempt that work on a branch: their process may have stopped."""
    label = label_of(fence, participant, branch)
    sql = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
        " AND pid <> pg_backend_pid() AND application_name = %s"
    )
    try:
        if session.rows(sql, (label,)):
            log.warning("ended a session that worked on branch %s, because its process may have stopped", branch)
    except psycopg2.Error as error:
        log.warning("cannot end a session that works on branch %s: %s", branch, describe(error))


def end_older_sessions(session: Session, fence: Fence, participant: str, installation: str) -> None:
    """End the sessions that older attempts of a decision log left, since they may hold locks.

    Never ends a session whose attempt is not older. The server requires the same user, or pg_signal_backend.
    """
    rows = session.rows(
        "SELECT pid, application_name FROM pg_stat_activity WHERE datname = current_database()"
        " AND pid <> pg_backend_pid() AND starts_with(application_name, %s)",
        (_prefix(installation, fence.pipeline, participant),),
    )
    ended = []
    for pid, label in rows:
        match = _LABEL.fullmatch(label)
        if match is None or (int(match[1], 16), int(match[2], 16)) >= fence.rank:
            continue
        try:
            if session.rows(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = %s AND application_name = %s",
                (pid, label),
            ):
                ended.append(pid)
        except psycopg2.Error as error:
            log.warning("cannot end session %d of an older attempt: %s", pid, describe(error))
    if ended:
        log.warning("ended sessions %s of older attempts, because they may hold locks", ended)
