"""Write rows by key in one transaction: a higher number wins, and a delete leaves a tombstone with its number.

Numbers of two pipelines say nothing of each other, so the first delivery refuses a table whose rows have higher ones.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import AirflowFtError
from airflow_ft.protocol.model import ParticipantPlan, Plan
from airflow_ft.protocol.participant import Participant
from airflow_ft.protocol.write_ahead_log import SegmentReader, WalReader
from airflow_ft.sinks.base.changes import versions_ahead
from airflow_ft.sinks.base.load import Load, load_all
from airflow_ft.sinks.base.sql_names import quoted
from airflow_ft.sinks.refused import Refused
from airflow_ft.sinks.sqlite import columns as sqlite_columns
from airflow_ft.sinks.sqlite.columns import Column, read_columns, refused, values
from airflow_ft.sinks.sqlite.file import SqliteFile, is_of_a_row
from airflow_ft.sinks.sqlite.participant import SqliteParticipant
from airflow_ft.sinks.sqlite.spec import SqliteSink

CHANGE = "op"


def open_participant(plan: ParticipantPlan, connection: ConnectionInfo, wal: WalReader) -> Participant:
    """See `airflow_ft.protocol.participant.Participant`."""
    return KeyedParticipant(plan.name, SqliteSink.all_of(plan), SqliteFile.of(connection), wal)


class KeyedParticipant(SqliteParticipant):
    """See the module. The table has the columns `id` (its key), `version` and `deleted`."""

    def _schema_problems(
        self, db: sqlite3.Connection, readers: Sequence[SegmentReader], make: bool
    ) -> Iterator[AirflowFtError]:
        for name, sink in self.sinks.items():
            columns = read_columns(db, sink.table)
            for schema in (reader.schema(name) for reader in readers if name in reader.sinks()):
                written = pa.schema([column for column in schema if column.name != CHANGE])
                if written.names:
                    yield from sqlite_columns.schema_problems(sink.table, columns, written, name)
            if make and readers:
                yield from _ahead(db, sink.table, readers[-1].segment.number, name)

    def _insert(
        self, db: sqlite3.Connection, plan: Plan, readers: Sequence[SegmentReader], dead_letters: Refused | None
    ) -> dict[str, int]:
        def load(name: str, reader: SegmentReader) -> Load:
            table = self.sinks[name].table
            return _Load(name, table, reader, dead_letters, db, read_columns(db, table), plan.number)

        return load_all(self.sinks, readers, load)


def _ahead(db: sqlite3.Connection, table: str, number: int, sink: str) -> Iterator[AirflowFtError]:
    if db.execute(f"SELECT 1 FROM {quoted(table)} WHERE version >= ?", (number,)).fetchone():
        yield versions_ahead(table, "version", number, sink)


@dataclass
class _Load(Load):
    db: sqlite3.Connection
    columns: dict[str, Column]
    number: int

    def unfit(self, rows: pa.RecordBatch) -> Mapping[int, str]:
        return refused(self._written(rows), self.columns)

    def insert(self, rows: pa.RecordBatch) -> str:
        written = self._written(rows)
        kinds = rows.column(CHANGE).to_pylist() if CHANGE in rows.schema.names else ["insert"] * rows.num_rows
        names = [*written.schema.names, "version", "deleted"]
        changed = ", ".join(f"{quoted(name)} = excluded.{quoted(name)}" for name in names)
        sql = (
            f"INSERT INTO {quoted(self.table)} ({', '.join(map(quoted, names))})"
            f" VALUES ({', '.join('?' * len(names))}) ON CONFLICT (id) DO UPDATE SET {changed}"
            f" WHERE excluded.version >= {quoted(self.table)}.version"
        )
        self.db.execute("SAVEPOINT changes")
        why = ""
        try:
            changes = zip(zip(*values(written), strict=True), kinds, strict=True)
            self.db.executemany(sql, ([*row, self.number, kind == "delete"] for row, kind in changes))
        except (sqlite3.Error, OverflowError) as error:
            if not is_of_a_row(error):
                raise
            why = str(error)
            self.db.execute("ROLLBACK TO changes")
        self.db.execute("RELEASE changes")
        return why

    def _written(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        return rows.select([name for name in rows.schema.names if name != CHANGE])
