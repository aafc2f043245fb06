"""The strategy `local`: marker and all rows of all tables of a database in one transaction (ATOMIC).

It locks the head's row first, so that the order of ranks is the order of transactions
(`airflow_ft.sinks.base.one_transaction`). A process that dies leaves nothing. A process that is suspended in its
transaction keeps that lock. A successor whose wait times out (SQLSTATE 55P03, which itself proves nothing) ends the
sessions of older attempts, by their application_name, and retries. That only helps progress: a session that is not
ended keeps its successor waiting, and finds a newer head when it continues.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

import psycopg2

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import AirflowFtError, SinkAccessError
from airflow_ft.protocol.model import Fence, Plan
from airflow_ft.protocol.orphans import Orphan, PreparedEnding
from airflow_ft.protocol.votes import Proof, Vote
from airflow_ft.protocol.write_ahead_log import SegmentReader, WalReader
from airflow_ft.sinks.base.memory import check_epoch, check_owner
from airflow_ft.sinks.base.one_transaction import OneTransactionParticipant
from airflow_ft.sinks.postgres.catalog import Table
from airflow_ft.sinks.postgres.failures import (
    FEATURE_NOT_SUPPORTED,
    Meaning,
    Unanswered,
    describe,
    failure,
    meaning,
    shown,
)
from airflow_ft.sinks.postgres.gid import end_older_sessions, label_of
from airflow_ft.sinks.postgres.held import Held, targets_of, voted_targets
from airflow_ft.sinks.postgres.ledger import Ledger, ledger_of
from airflow_ft.sinks.postgres.load import Load, declining
from airflow_ft.sinks.postgres.orphans import Prepared
from airflow_ft.sinks.postgres.requirements import check_server, schema_problems_of
from airflow_ft.sinks.postgres.session import Limits, Session
from airflow_ft.sinks.postgres.spec import PostgresSink
from airflow_ft.sinks.refused import Refused, require_rows_at_fault

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass
class LocalParticipant(OneTransactionParticipant[Session]):
    """The strategy `local`. See `airflow_ft.protocol.participant.Participant`."""

    name: str
    sinks: Mapping[str, PostgresSink]
    connection: ConnectionInfo
    wal: WalReader
    limits: Limits
    _kept: list[Session] = field(default_factory=list, repr=False)
    _voted: Mapping[str, Any] = field(default_factory=dict, repr=False)
    prepares: ClassVar[bool] = False

    # --- transactions --------------------------------------------------------------------------------------------

    @contextmanager
    def _writing(
        self, fence: Fence, plan: Plan | None = None, *, create: bool = False, keep: bool = True
    ) -> Iterator[tuple[Session, Ledger]]:
        with self._session(fence) as session:
            ledger = self._ledger(session, fence.pipeline)
            ledger.open(fence, create=create)
            session.begin()
            ledger.lock()
            yield session, ledger
            if keep:
                self._end(session)

    def _end(self, session: Session, sql: str = "COMMIT") -> None:
        """End a transaction. DeclinedError: a deferred check refuses rows.

        `_insert` has run such checks before, but triggers may defer them again.
        """
        try:
            with self._declining():
                session.end(sql)
        except psycopg2.Error as error:
            if error.pgcode != FEATURE_NOT_SUPPORTED:
                raise
            raise SinkAccessError(
                f"the server cannot prepare the transaction: {describe(error)}",
                code="prepare_unsupported",
                remedy="Choose strategy 'local', or drop the trigger that uses NOTIFY or a temporary table.",
            ) from error

    def _declining(self) -> AbstractContextManager[None]:
        return declining(next(iter(self.sinks)) if len(self.sinks) == 1 else "")

    @contextmanager
    def _reading(self, pipeline: str, plan: Plan | None = None) -> Iterator[Ledger | None]:
        with self._session() as session:
            ledger = self._ledger(session, pipeline)
            yield ledger if ledger.exists() else None

    @contextmanager
    def _session(self, fence: Fence | None = None) -> Iterator[Session]:
        """The connection of the step before, or a new one. It is kept when all went well and no transaction is open."""
        label = label_of(fence, self.name) if fence is not None else "airflow_ft"
        try:
            session = self._kept.pop()
        except IndexError:  # threads of branches ask too
            session = Session(self.connection, self.limits, label)
        try:
            session.label = label
            yield session
        except BaseException:
            session.close()
            raise
        if self._kept or not session.is_free:
            session.close()
        else:
            self._kept.append(session)

    def close(self) -> None:
        """Ends the connection that is kept between steps."""
        while self._kept:
            self._kept.pop().close()

    def _ledger(self, session: Session, pipeline: str) -> Ledger:
        return ledger_of(session, self.sinks, pipeline, self.name)

    def _persist(self, doing: str, step: Callable[[], T], fence: Fence | None = None, plan: Plan | None = None) -> T:
        """Runs a step, again on a new connection when an answer was lost or a lock was not had (bounded)."""
        deadline, lost = time.monotonic() + self.limits.head_wait, 0
        while True:
            try:
                return step()
            except (psycopg2.Error, Unanswered) as error:
                found, text = meaning(error), failure(error, doing)
                lost += found is Meaning.LOST
                again = lost < self.limits.tries if found is Meaning.LOST else found is Meaning.BUSY
                if not again or time.monotonic() > deadline:
                    raise text.located(**self._where(plan)) from shown(error)
                log.warning("%s: %s; trying again", self.name, text.what)
                if found is Meaning.BUSY and fence is not None:
                    self._clear_the_way(fence, plan)
                time.sleep(0.1 * 4 ** min(lost, 3))
            except AirflowFtError as error:
                raise error.located(**self._where(plan)) from error.__cause__

    def _clear_the_way(self, fence: Fence, plan: Plan | None) -> None:
        """Clear the way after a lock time-out: stop if a newer attempt works, else end the sessions of older ones."""
        try:
            with self._session(fence) as session:
                ledger = self._ledger(session, fence.pipeline)
                head = ledger.head() if ledger.exists() else None
                if head is not None and plan is not None:
                    check_owner(head, fence)
                elif head is not None and head.installation == fence.installation:
                    check_epoch(head, fence)
                for installation in {fence.installation, *([head.installation] if head else [])}:
                    end_older_sessions(session, fence, self.name, installation)
                if plan is not None and head is not None:
                    Prepared(ledger, self.limits.head_wait).refuse(fence.installation)
        except psycopg2.Error as error:
            log.warning("%s: cannot find out who holds the lock: %s", self.name, describe(error))
        except AirflowFtError as error:
            raise error.located(**self._where(plan)) from error.__cause__

    # --- the steps -----------------------------------------------------------------------------------------------

    def _preflight(self) -> dict[str, Any]:
        unsafe = any(sink.allow_unsafe_durability for sink in self.sinks.values())
        with self._session() as session:
            warnings = check_server(session, allow_unsafe_durability=unsafe, prepares=self.prepares)
            return {
                "postgres": session.product,
                "database": session.value("SELECT current_database()"),
                "warnings": warnings,
            }

    def _schema_problems(self, db: Session, readers: Sequence[SegmentReader], make: bool) -> Iterator[AirflowFtError]:
        for name, sink in self.sinks.items():
            for schema in dict.fromkeys(reader.schema(name) for reader in readers if name in reader.sinks()):
                yield from schema_problems_of(db, sink, schema, name)

    def _vote(self, plan: Plan, fence: Fence, readers: Sequence[SegmentReader]) -> dict[str, Any]:
        self._voted = {}
        with self._session(fence) as session:
            notes = {"targets": targets_of(session, self.sinks, readers)}
        return notes | super()._vote(plan, fence, readers)

    def _commit(self, plan: Plan, fence: Fence, vote: Vote | None, set_aside: bool) -> Proof:
        self._voted = voted_targets(vote)
        return super()._commit(plan, fence, vote, set_aside)

    def _insert(
        self, db: Session, plan: Plan, readers: Sequence[SegmentReader], dead_letters: Refused | None
    ) -> dict[str, int]:
        # Constraints that wait for COMMIT would fail there, where it is too late to say which row it was.
        if dead_letters is not None:
            db.run("SET CONSTRAINTS ALL IMMEDIATE")
        db.allow(sum(each.segment.rows.get(name, 0) for each in readers for name in self.sinks))
        counts = dict.fromkeys(self.sinks, 0)
        own = {name: [each for each in readers if name in each.sinks()] for name in self.sinks}
        held = Held.of(db, self.sinks, own, self._voted)
        for name, table in held.tables.items():
            counts[name] = self._send(db, plan, name, table, own[name], dead_letters)
            if dead_letters is not None and not counts[name]:
                require_rows_at_fault(dead_letters.reasons(name), name, str(table.name))
        with self._declining():
            db.run("SET CONSTRAINTS ALL IMMEDIATE")
        held.check_again()
        return counts

    def _send(
        self,
        db: Session,
        plan: Plan,
        name: str,
        table: Table,
        readers: Sequence[SegmentReader],
        dead_letters: Refused | None,
    ) -> int:
        """The rows of one sink; how many went in."""
        return sum(Load(db, name, table, reader, dead_letters).all() for reader in readers)

    # --- what former owners have left ----------------------------------------------------------------------------

    def _orphans(self, pipeline: str, installation: str) -> list[Orphan]:
        with self._reading(pipeline) as ledger:
            return Prepared(ledger, self.limits.head_wait).find(installation) if isinstance(ledger, Ledger) else []

    def _end_orphans(self, fence: Fence, ending: PreparedEnding | None, make_way: bool) -> None:
        with self._reading(fence.pipeline) as there:
            if there is None:
                return
        with self._writing(fence) as (_, ledger):
            self._shut_out(ledger, fence, make_way)
        with self._session(fence) as session:
            prepared = Prepared(self._ledger(session, fence.pipeline), self.limits.head_wait)
            prepared.end_of_others(fence, ending, roll_back_own=not make_way)
        if make_way:
            super()._end_orphans(fence, ending, make_way=True)
