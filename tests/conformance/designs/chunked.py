"""Deliver each file of the log in a transaction of its own, with a note; the marker comes after the last one."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import Any

from airflow_ft.protocol.errors import together
from airflow_ft.protocol.model import Fence, Plan
from airflow_ft.protocol.set_aside import detail as set_aside_detail
from airflow_ft.protocol.votes import Outcome, Proof
from airflow_ft.protocol.write_ahead_log import SegmentReader, WalFile
from airflow_ft.sinks.refused import Refused
from airflow_ft.sinks.sqlite.columns import read_columns
from airflow_ft.sinks.sqlite.participant import _Load
from airflow_ft.sinks.sqlite.verify import verify as verify
from airflow_ft.sinks.view import OneFile
from tests.conformance.designs.beside import BesideParticipant

_NOTES = """
CREATE TABLE IF NOT EXISTS chunks (
    pipeline TEXT, participant TEXT, number INTEGER, sink TEXT, segment INTEGER, file TEXT, rows INTEGER,
    PRIMARY KEY (pipeline, participant, number, sink, segment, file))
"""
_MINE = "pipeline = ? AND participant = ? AND number = ?"


class ChunkedParticipant(BesideParticipant):
    """See the module."""

    created = _NOTES

    def _deliver(self, plan: Plan, fence: Fence, set_aside: bool, more: Mapping[str, Any]) -> Proof:
        readers = [self.wal.open(segment) for segment in plan.segments]
        parts = [(name, reader, file) for name in self.sinks for reader in readers for file in reader.files(name)]
        if not set_aside:  # else in one transaction with the marker, which names the dead letters
            for part in parts:
                with self._writing(fence, plan) as (db, ledger):
                    if self._is_settled(ledger, self._raised(ledger, fence), plan, fence, exactly=True):
                        return self._current_proof(ledger, plan)
                    self._put(db, plan, *part, None)
        dead_letters = Refused(self.wal.dead_letters(plan)) if set_aside else None
        with self._writing(fence, plan) as (db, ledger):
            if self._is_settled(ledger, self._raised(ledger, fence), plan, fence, exactly=True):
                return self._current_proof(ledger, plan)
            counts = dict.fromkeys(self.sinks, 0)
            for name, reader, file in parts:
                counts[name] += self._put(db, plan, name, reader, file, dead_letters)
            detail = self._detail(plan, fence) | (
                set_aside_detail(dead_letters.write()) if dead_letters is not None else {}
            )
            ledger.write_marker(plan, fence, Outcome.COMMITTED, counts, detail)
            ledger.deliver_head(plan.number)
            db.execute(f"DELETE FROM chunks WHERE {_MINE}", (plan.pipeline, self.name, plan.number))
        return Proof(self.name, plan.number, Outcome.COMMITTED, plan.digest, fence.epoch, counts, detail)

    def _put(
        self,
        db: sqlite3.Connection,
        plan: Plan,
        name: str,
        reader: SegmentReader,
        file: WalFile,
        dead_letters: Refused | None,
    ) -> int:
        """Return how many rows of the file are in the table; put them in unless a note says that they are."""
        key = (plan.pipeline, self.name, plan.number, name, reader.segment.number, file.path)
        sql = f"SELECT rows FROM chunks WHERE {_MINE} AND sink = ? AND segment = ? AND file = ?"
        for (rows,) in db.execute(sql, key):
            return int(rows)
        if wrong := list(self._changed(db, name, [reader])):
            raise together(wrong)
        table = self.sinks[name].table
        count = _Load(name, table, OneFile(reader, file), dead_letters, db, read_columns(db, table)).all()
        db.execute("INSERT INTO chunks VALUES (?, ?, ?, ?, ?, ?, ?)", (*key, count))
        return count


open_participant = ChunkedParticipant.opened
