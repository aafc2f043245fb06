"""The base of designs that keep a table of their own in the target's SQLite file."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar, Self

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.model import Fence, ParticipantPlan, Plan
from airflow_ft.protocol.write_ahead_log import WalReader
from airflow_ft.sinks.sqlite.file import SqliteFile
from airflow_ft.sinks.sqlite.ledger import Ledger
from airflow_ft.sinks.sqlite.participant import SqliteParticipant
from airflow_ft.sinks.sqlite.spec import SqliteSink


class BesideParticipant(SqliteParticipant):
    """SQLite's participant, with one more table that is created with the ledger."""

    created: ClassVar[str]
    """CREATE TABLE IF NOT EXISTS of that table."""

    @classmethod
    def opened(cls, plan: ParticipantPlan, connection: ConnectionInfo, wal: WalReader) -> Self:
        """See `airflow_ft.protocol.participant.Participant`."""
        sinks = {name: SqliteSink(conn_id=plan.name, **settings) for name, settings in plan.sinks.items()}
        return cls(plan.name, sinks, SqliteFile.of(connection), wal)

    @contextmanager
    def _writing(
        self, fence: Fence, plan: Plan | None = None, *, create: bool = False, keep: bool = True
    ) -> Iterator[tuple[sqlite3.Connection, Ledger]]:
        with super()._writing(fence, plan, create=create, keep=keep) as (db, ledger):
            if create:
                db.execute(self.created)
            yield db, ledger
