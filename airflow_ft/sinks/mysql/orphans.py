"""Orphans of former owners of a pipeline on a server: listed, and ended as a person decides.

Former owners are those that the pipeline's head or its ledger rows name. Prepared branches are found by the hash of
exactly those installations: no other branch is touched (I8). The head names the former owner until all is ended, so a
crash in between loses nothing: the next adoption finds the same.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pymysql

from airflow_ft.protocol.errors import ForeignOwnerError, StateConflictError
from airflow_ft.protocol.model import Fence
from airflow_ft.protocol.orphans import Orphan, OrphanKind, PreparedEnding
from airflow_ft.protocol.votes import Outcome
from airflow_ft.sinks.base.memory import Marker, check_adopter
from airflow_ft.sinks.base.prepared import PROBE_NUMBER, marked_orphans, rank_to_keep
from airflow_ft.sinks.base.slices import labels
from airflow_ft.sinks.base.sql_sink import MAX_BRANCHES
from airflow_ft.sinks.mysql.failures import NO_SUCH_TABLE, code_of, describe
from airflow_ft.sinks.mysql.fencing import kill, older_sessions
from airflow_ft.sinks.mysql.ledger import Head, Ledger
from airflow_ft.sinks.mysql.session import Session
from airflow_ft.sinks.mysql.xid import Listed, Xid, end_branch, may_not_list, owner_of, recover

log = logging.getLogger(__name__)


def find_orphans(session: Session, ledger: Ledger, installation: str) -> list[Orphan]:
    """Branch markers and tombstones past the last delivered number, and prepared branches, all of former owners."""
    listed = _listed(session)  # before the markers: a branch that is committed in between shows there (I6)
    try:
        head = ledger.on(session).head()
        owners = former_owners(session, ledger, installation, head)
    except pymysql.err.MySQLError as error:
        if code_of(error) == NO_SUCH_TABLE:
            return []
        raise
    last = _last(session, ledger)
    found = list(marked_orphans(ledger.on(session).markers_of_others(last, installation)))
    for owner, xid in prepared_by(listed, ledger, owners):
        if _is_undecided(ledger, session, xid, last):
            text = f"branch {xid.branch} is prepared (epoch {xid.epoch}, attempt {xid.attempt}), and keeps its locks"
            statements = f"XA COMMIT {xid.sql}", f"XA ROLLBACK {xid.sql}"
            found.append(Orphan(xid.number, xid.branch, OrphanKind.PREPARED, owner, text, 0, *statements))
    return found


def former_owners(session: Session, ledger: Ledger, installation: str, head: Head | None) -> list[str]:
    """Other installations that the sink knows to have owned the pipeline."""
    return sorted(ledger.on(session).installations() - {installation})


def prepared_by(listed: Listed, ledger: Ledger, owners: Sequence[str]) -> list[tuple[str, Xid]]:
    """The prepared branches of these owners, ascending by number and rank."""
    hashed = {owner_of(ledger, owner): owner for owner in owners}
    return [(hashed[xid.owner], xid) for xid in sorted(listed.xids) if xid.owner in hashed]


def refuse_branches_of_others(session: Session, ledger: Ledger, installation: str) -> None:
    """ForeignOwnerError when a lock was not had and a former owner's prepared branches may hold it.

    Nothing here ends them without a person, so waiting would not help. Asks for the owners only if there are branches.
    """
    mine = owner_of(ledger, installation)
    listed = _listed(session)
    if all(xid.owner == mine for xid in listed.xids):
        return
    found = prepared_by(listed, ledger, former_owners(session, ledger, installation, ledger.on(session).head()))
    if found:
        # Without their nonces: on MySQL any user who knows an xid may end it, and this goes into logs.
        shown = ", ".join(f"{xid.branch} of its checkpoint {xid.number}" for _, xid in found[:4])
        raise ForeignOwnerError(
            f"{len(found)} prepared branches of installation {found[0][0]}, which owned this pipeline before, may hold"
            f" the lock: {shown}{' ...' if len(found) > 4 else ''}.",
            code="prepared_foreign",
            remedy="Run `airflow ft adopt`, which lists them. It ends them with --prepared commit or --prepared"
            " rollback.",
            installation=found[0][0],
            found=len(found),
        )


def end_orphans(
    session: Session,
    ledger: Ledger,
    fence: Fence,
    ending: PreparedEnding | None,
    patience: float,
    *,
    roll_back_own: bool,
) -> bool:
    """Shut a former owner out, and end what it has prepared. Return False if there is no ledger.

    With `roll_back_own` what older attempts of this installation have prepared is rolled back too: of numbers that the
    store has given up. StateConflictError: the head is newer than the fence, or `ending` does not say what to do.
    """
    try:
        _shut_out(session, ledger, fence)
    except pymysql.err.MySQLError as error:
        if code_of(error) != NO_SUCH_TABLE:
            raise
        return False
    _end_prepared(session, ledger, fence, ending, patience)
    for xid in _listed(session).of(owner_of(ledger, fence.installation)) if roll_back_own else ():
        if xid.rank < fence.rank:
            end_branch(session, ledger, fence.installation, xid, "ROLLBACK", patience)
    return True


def _shut_out(session: Session, ledger: Ledger, fence: Fence) -> None:
    """Raises the head above the former owner, who stays named in it, and ends the sessions that the head had named."""
    head = ledger.on(session).head()
    if head is None or head.installation == fence.installation:
        return
    for _ in range(2):  # also what began before the head was raised, and after the first look
        check_adopter(ledger.on(session).head(), fence)
        for connection in older_sessions(session, ledger, fence, head, (), labels(MAX_BRANCHES)):
            kill(session, connection, head.rank)
        ledger.on(session).shut_out(fence, head.installation)


def _end_prepared(
    session: Session, ledger: Ledger, fence: Fence, ending: PreparedEnding | None, patience: float
) -> None:
    """Ends all that former owners have prepared: undecided numbers as `ending` says, others as their markers say.

    Of an undecided number one attempt alone is committed: the one whose branches are visible, else the newest.
    """
    head = ledger.on(session).head()
    last = _last(session, ledger)
    found = prepared_by(_listed(session), ledger, former_owners(session, ledger, fence.installation, head))
    undecided = [xid for _, xid in found if _is_undecided(ledger, session, xid, last)]
    if undecided and ending is None:
        raise StateConflictError(
            f"a former owner has {len(undecided)} prepared branches here, and nothing says how to end them.",
            code="prepared_undecided",
            remedy="Run `airflow ft adopt` again with --prepared commit or --prepared rollback.",
            found=len(undecided),
        )
    for owner, xid in found:
        if xid in undecided:
            kept = ending is PreparedEnding.COMMIT and xid.rank == rank_to_keep(
                xid, ledger.on(session).branch_markers(xid.number).values(), undecided
            )
            verb = "COMMIT" if kept else "ROLLBACK"
        else:
            marker = ledger.on(session).marker(xid.number) if xid.number != PROBE_NUMBER else None
            verb = as_marked(session, ledger, xid, marker)
        log.warning("%s: running XA %s for branch %s of checkpoint %d, which installation %s left prepared",
                    ledger.participant, verb, xid.branch, xid.number, owner)  # fmt: skip
        end_branch(session, ledger, owner, xid, verb, patience)


def _listed(session: Session) -> Listed:
    """XA RECOVER; nothing where this user may not ask, since another strategy does not need that."""
    try:
        return recover(session)
    except pymysql.err.MySQLError as error:
        if not may_not_list(error):
            raise
        log.warning("could not list prepared branches: %s", describe(error))
        return Listed(frozenset(), {})


def _last(session: Session, ledger: Ledger) -> int:
    """The number delivered last, also where the head is gone."""
    head = ledger.on(session).remembered()
    return head.number if head else 0


def _is_undecided(ledger: Ledger, session: Session, xid: Xid, last: int) -> bool:
    """Return whether nothing in the sink says what was to become of it."""
    return xid.number > last and xid.number != PROBE_NUMBER and ledger.on(session).marker(xid.number) is None


def as_marked(session: Session, ledger: Ledger, xid: Xid, marker: Marker | None) -> str:
    """Return how to end a branch that came back: as the marker of its number says.

    Without a marker the number was settled and pruned: its rows are there, or were never to be.
    """
    counted = marker is not None and marker.outcome is Outcome.COMMITTED
    if marker is None or not counted or list(xid.rank) != marker.detail.get("prepared"):
        return "ROLLBACK"
    return "COMMIT" if ledger.on(session).marker(xid.number, xid.branch) is None else "ROLLBACK"
