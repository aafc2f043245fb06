"""What is done to a head and its markers apart from a checkpoint's delivery: reading, adopting, pruning.

The functions that write leave their transaction open: the caller ends it, since only it knows what a lost answer means.
"""

from __future__ import annotations

from dataclasses import replace

import pymysql

from airflow_ft.core.model import Fence, SinkHead
from airflow_ft.sinks.base.memory import check_adopter, check_epoch, check_owner, refuse_to_adopt
from airflow_ft.sinks.mysql.failures import NO_SUCH_TABLE, code_of
from airflow_ft.sinks.mysql.ledger import Ledger
from airflow_ft.sinks.mysql.session import Session


def read_head(session: Session, ledger: Ledger) -> SinkHead | None:
    """The committed head, whoever owns it; None where the sink has never seen the pipeline."""
    try:
        head = ledger.head(session)
    except pymysql.err.MySQLError as error:
        if code_of(error) == NO_SUCH_TABLE:
            return None
        raise
    return None if head is None else head.told


def adopt_head(session: Session, ledger: Ledger, fence: Fence, number: int) -> None:
    """Makes the head this installation's; waits for what the old owner has open: its COMMIT comes before, or never.

    Raises:
        StateConflictError: the old owner has marked a number above `number` since that was read.
        FencedError: somebody else has adopted it since.
    """
    session.begin()
    head = ledger.head(session, lock=True)
    check_adopter(head, fence)
    marked = [found[0] for found in ledger.markers_of_others(session, number, fence.installation)]
    refuse_to_adopt(head.told if head else None, marked, fence.installation, number)
    ledger.adopt_head(session, fence, number)


def make_way(session: Session, ledger: Ledger, fence: Fence) -> None:
    """Drops what former owners have marked past the last delivered number: rows stay, and the places are free again."""
    session.begin()
    head = ledger.head(session, lock=True)
    check_owner(head, replace(fence, epoch=head.epoch, attempt=head.attempt) if head else fence)
    assert head is not None  # check_owner raises
    ledger.drop_markers_of_others(session, head.last_delivered, fence.installation)


def prune_markers(session: Session, ledger: Ledger, fence: Fence, floor: int, limit: int) -> bool:
    """Raises the floor and deletes up to `limit` markers at or below it; whether more may be left (R13)."""
    session.begin()
    check_epoch(ledger.head(session, lock=True), fence)
    ledger.raise_floor(session, floor)
    return ledger.prune(session, floor, limit) == limit
