"""Put rows into tables of their own at the vote (TWO_PHASE), and move them when the decision has fallen."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_ft.protocol.errors import DeclinedError
from airflow_ft.protocol.model import Fence, Plan
from airflow_ft.protocol.orphans import PreparedEnding
from airflow_ft.protocol.votes import Outcome, Proof, Vote
from airflow_ft.protocol.write_ahead_log import SegmentReader
from airflow_ft.sinks.base.prepared import counted, owner_of
from airflow_ft.sinks.base.sql_names import quoted
from airflow_ft.sinks.sqlite.columns import values
from airflow_ft.sinks.sqlite.requirements import insert_statement
from airflow_ft.sinks.sqlite.verify import verify as verify
from tests.conformance.designs.beside import BesideParticipant

_STAGED = """
CREATE TABLE IF NOT EXISTS staged (
    pipeline TEXT, participant TEXT, number INTEGER, epoch INTEGER, attempt INTEGER, sink TEXT, side TEXT PRIMARY KEY)
"""
_MINE = "pipeline = ? AND participant = ?"


class StagedParticipant(BesideParticipant):
    """See the module."""

    created = _STAGED

    def _vote(self, plan: Plan, fence: Fence, readers: Sequence[SegmentReader]) -> dict[str, Any]:
        with self._writing(fence, plan) as (db, ledger):
            if self._is_settled(ledger, self._raised(ledger, fence), plan, fence, exactly=False):
                return {}
            db.execute("SAVEPOINT trial")
            self._insert(db, plan, readers, None)
            db.execute("ROLLBACK TO trial")
            db.execute("RELEASE trial")
            self._drop(db, plan.pipeline, plan.number)
            owner = owner_of(plan.installation, plan.pipeline, self.name)
            for name in self.sinks:
                for reader in readers:
                    if name in reader.sinks() and reader.schema(name).names:
                        side = f"staged_{owner}_{plan.number}_{reader.segment.number}_{name}"
                        self._stage(db, side, name, reader)
                        row = (plan.pipeline, self.name, plan.number, *fence.rank, name, side)
                        db.execute("INSERT INTO staged VALUES (?, ?, ?, ?, ?, ?, ?)", row)
        return {"epoch": fence.epoch}

    def _stage(self, db: sqlite3.Connection, side: str, name: str, reader: SegmentReader) -> None:
        columns = ", ".join(map(quoted, reader.schema(name).names))
        table = quoted(self.sinks[name].table)
        db.execute(f"CREATE TABLE {quoted(side)} AS SELECT {columns} FROM {table} WHERE 0")
        for file in reader.files(name):
            for batch in reader.batches(name, file):
                sql = insert_statement(side, batch.schema.names)
                db.executemany(sql, zip(*values(batch), strict=True))

    def _drop(self, db: sqlite3.Connection, pipeline: str, number: int) -> None:
        """Drop what any attempt has staged of this number and of earlier ones."""
        key = (pipeline, self.name, number)
        for (side,) in db.execute(f"SELECT side FROM staged WHERE {_MINE} AND number <= ?", key).fetchall():
            db.execute(f"DROP TABLE IF EXISTS {quoted(side)}")
        db.execute(f"DELETE FROM staged WHERE {_MINE} AND number <= ?", key)

    def _commit(self, plan: Plan, fence: Fence, vote: Vote | None, set_aside: bool) -> Proof:
        if set_aside or vote is None:
            return self._deliver(plan, fence, set_aside, {})
        with self._writing(fence, plan) as (db, ledger):
            if self._is_settled(ledger, self._raised(ledger, fence), plan, fence, exactly=True):
                return self._current_proof(ledger, plan)
            sql = f"SELECT sink, side FROM staged WHERE {_MINE} AND number = ? AND epoch = ? AND attempt = ?"
            sides = db.execute(sql, (plan.pipeline, self.name, plan.number, *counted(vote))).fetchall()
            if not sides:  # a later attempt has dropped them, or there are no rows
                counts = self._insert(db, plan, [self.wal.open(segment) for segment in plan.segments], None)
            else:
                counts = dict.fromkeys(self.sinks, 0)
                for name, side in sides:
                    counts[name] += self._move(db, name, side)
            self._drop(db, plan.pipeline, plan.number)
            detail = self._detail(plan, fence)
            ledger.write_marker(plan, fence, Outcome.COMMITTED, counts, detail)
            ledger.deliver_head(plan.number)
        return Proof(self.name, plan.number, Outcome.COMMITTED, plan.digest, fence.epoch, counts, detail)

    def _move(self, db: sqlite3.Connection, name: str, side: str) -> int:
        found = db.execute("SELECT name FROM pragma_table_info(?)", (side,)).fetchall()
        columns = ", ".join(quoted(column) for (column,) in found)
        table = quoted(self.sinks[name].table)
        try:
            sql = f"INSERT INTO {table} ({columns}) SELECT {columns} FROM {quoted(side)} ORDER BY rowid"
            return db.execute(sql).rowcount
        except sqlite3.IntegrityError as error:
            raise DeclinedError(f"{table} refuses rows: {error}.", remedy="mend the table.", sink=name) from error

    def _abort(self, plan: Plan, fence: Fence, detail: Mapping[str, Any]) -> Proof:
        proof = super()._abort(plan, fence, detail)
        with self._writing(fence, plan) as (db, ledger):
            self._raised(ledger, fence)
            self._drop(db, plan.pipeline, plan.number)
        return proof

    def _end_orphans(self, fence: Fence, ending: PreparedEnding | None, make_way: bool) -> None:
        super()._end_orphans(fence, ending, make_way)
        with self._reading(fence.pipeline) as there:
            if there is None:
                return
        with self._writing(fence) as (db, ledger):
            head = ledger.head()
            if head is not None and head.rank <= fence.rank:
                self._drop(db, fence.pipeline, 1 << 62)


open_participant = StagedParticipant.opened
