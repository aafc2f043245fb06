"""The strategy `prepared`: rows and markers are prepared before the decision, and only committed after it (TWO_PHASE).

`airflow_ft.sinks.base.branched` has the steps; here is what PostgreSQL does for them. A transaction that is *prepared*
outlives its process, its connection and a crash of the server. PREPARE TRANSACTION keeps its locks, that of the
marker's key among them.

A number whose predecessor is not delivered yet is tried and rolled back, and sent after the decision. So a pipeline
holds the branches of one number, and all pipelines together at most half of the server's places (`gid.full`).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

import psycopg2

from airflow_ft.protocol.errors import SinkUnavailableError
from airflow_ft.protocol.model import Fence, Plan
from airflow_ft.protocol.votes import Vote
from airflow_ft.protocol.write_ahead_log import SegmentReader
from airflow_ft.sinks.base.branch_system import BranchLedger
from airflow_ft.sinks.base.branched import BranchedParticipant
from airflow_ft.sinks.base.memory import Marker
from airflow_ft.sinks.base.prepared import MAY_WAIT, BranchName, heuristic_text, owner_of
from airflow_ft.sinks.postgres.failures import UNIQUE_VIOLATION, Meaning, is_without_place, meaning
from airflow_ft.sinks.postgres.gid import (
    Gid,
    end_branch_sessions,
    end_prepared,
    full,
    label_of,
    listed,
    new_gid,
    no_place,
)
from airflow_ft.sinks.postgres.held import targets_of, voted_targets
from airflow_ft.sinks.postgres.ledger import Ledger
from airflow_ft.sinks.postgres.local import LocalParticipant
from airflow_ft.sinks.postgres.session import Session

log = logging.getLogger(__name__)


@dataclass
class PreparedParticipant(BranchedParticipant[Session], LocalParticipant):
    """See `airflow_ft.protocol.participant.Participant`, and `Branching` there."""

    prepares: ClassVar[bool] = True
    _ended_sessions: set[tuple[tuple[int, int], str]] = field(default_factory=set, repr=False)

    @property
    def _width(self) -> int:
        return max(sink.branches for sink in self.sinks.values())

    @property
    def _ended(self) -> set[tuple[tuple[int, int], str]]:
        return self._ended_sessions

    # --- sessions ------------------------------------------------------------------------------------------------

    @contextmanager
    def _asking(self, fence: Fence) -> Iterator[tuple[Session, Ledger]]:
        with self._session(fence) as session:
            ledger = self._ledger(session, fence.pipeline)
            ledger.open(fence, create=False)
            yield session, ledger

    @contextmanager
    def _branching(self, fence: Fence, label: str) -> Iterator[tuple[Session, Ledger]]:
        # A connection of its own, which is closed afterwards: others end sessions of that name.
        with closing(Session(self.connection, self.limits, label_of(fence, self.name, label))) as session:
            session.begin()
            yield session, self._ledger(session, fence.pipeline)

    def _prepare_branch(self, db: Session, plan: Plan, fence: Fence, label: str) -> str:
        try:
            self._end(db, f"PREPARE TRANSACTION {new_gid(fence, self.name, plan.number, label).sql}")
        except psycopg2.Error as error:
            if not is_without_place(error):
                raise
            with self._session(fence) as session:
                return no_place(int(session.value("SHOW max_prepared_transactions")))
        return ""

    def _listed(self, db: Session, fence: Fence) -> Sequence[BranchName]:
        return listed(db, owner_of(fence.installation, fence.pipeline, self.name))

    def _end_branch(self, db: Session, name: BranchName, verb: str) -> None:
        end_prepared(db, cast(Gid, name), verb, self.limits.head_wait)

    def _end_sessions(self, db: Session, fence: Fence, label: str) -> None:
        end_branch_sessions(db, fence, self.name, label)

    def _room(self, db: Session, places: int) -> str:
        return full(db, places)

    def _crowded(self, db: Session, names: Collection[BranchName]) -> str:
        return full(db, prepared=[cast(Gid, name) for name in names])

    # --- rows ----------------------------------------------------------------------------------------------------

    def _seen(self, db: Session, readers: Sequence[SegmentReader]) -> dict[str, Any]:
        rows = {name: sum(each.segment.rows.get(name, 0) for each in readers) for name in self.sinks}
        return {"rows": rows, "targets": targets_of(db, self.sinks, readers)}

    def _remember(self, vote: Vote | None) -> None:
        self._voted = voted_targets(vote)

    def _try(self, plan: Plan, fence: Fence, readers: Sequence[SegmentReader]) -> None:
        """Rows that an earlier number has prepared may lock the keys of these: then only the columns were judged."""
        try:
            with self._writing(fence, plan, keep=False) as (session, _):
                self._insert(session, plan, readers, None)
        except psycopg2.Error as error:
            if meaning(error) is not Meaning.BUSY:
                raise
            log.info("%s: did not try the rows of checkpoint %d, because an earlier checkpoint locks their keys",
                     self.name, plan.number)  # fmt: skip

    def _is_place_taken(self, error: Exception) -> bool:
        return isinstance(error, psycopg2.Error) and error.pgcode == UNIQUE_VIOLATION

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        try:
            yield
        except SinkUnavailableError as error:
            # The cause may be withheld, since it quotes rows.
            if self._width > 1 and error.code == "lock_timeout" and "sqlstate" in error.fields:
                error.remedy += MAY_WAIT
            raise error.located() from error.__cause__

    def _heuristic_text(self, ledger: BranchLedger, plan: Plan, found: Mapping[str, Marker]) -> str:
        assert isinstance(ledger, Ledger)
        where = (
            f"FROM {ledger.tables[1]} WHERE pipeline = '{ledger.pipeline}'"
            f" AND participant = '{ledger.participant.replace(chr(39), chr(39) * 2)}' AND number = {plan.number}"
        )
        tables = [sink.table for sink in self.sinks.values()]
        return heuristic_text(found, tables, "COMMIT PREPARED", "ROLLBACK PREPARED", where)
