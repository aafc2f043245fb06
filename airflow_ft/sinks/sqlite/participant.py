"""Marker and all rows of all tables of a file in one transaction (ATOMIC).

SQLite has one writer at a time: `BEGIN IMMEDIATE` waits for the holder of the file. So the order of ranks is the order
of transactions. A transaction checks that the head is not newer, whether the number is settled, and that the head fits
the plan. Then it writes the rows, the marker and the head, and commits.

A process that dies before leaves nothing: the next one that opens the file rolls back. A process that is suspended in
its transaction keeps the file, and its successor reports that. When it continues it either commits under its own rank,
before any newer attempt, or finds a newer head.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import (
    AirflowFtError,
    SinkAccessError,
    SinkUnavailableError,
    UnfitTargetError,
    together,
)
from airflow_ft.protocol.model import Fence, ParticipantPlan, Plan
from airflow_ft.protocol.numbers import count_text
from airflow_ft.protocol.participant import Participant
from airflow_ft.protocol.write_ahead_log import SegmentReader, WalReader
from airflow_ft.sinks.base.load import Load, load_all
from airflow_ft.sinks.base.one_transaction import OneTransactionParticipant, TransactionLedger
from airflow_ft.sinks.refused import NullFound, Refused
from airflow_ft.sinks.sqlite.columns import (
    Column,
    create_table,
    read_columns,
    refused,
    schema_problems,
    table_of,
    values,
)
from airflow_ft.sinks.sqlite.file import SqliteFile, is_of_a_row
from airflow_ft.sinks.sqlite.ledger import Ledger
from airflow_ft.sinks.sqlite.requirements import exists, insert_statement, problems
from airflow_ft.sinks.sqlite.spec import SqliteSink


def open_participant(plan: ParticipantPlan, connection: ConnectionInfo, wal: WalReader) -> Participant:
    """The participant of a plan; it opens the file at the first call. ConfigurationError: there is no file's name."""
    return SqliteParticipant(plan.name, SqliteSink.all_of(plan), SqliteFile.of(connection), wal)


@dataclass
class SqliteParticipant(OneTransactionParticipant[sqlite3.Connection]):
    """One file with all tables that a pipeline writes there. See `airflow_ft.protocol.participant.Participant`."""

    name: str
    sinks: Mapping[str, SqliteSink]
    file: SqliteFile
    wal: WalReader
    _filled: set[str] = field(default_factory=set, init=False)
    """The sinks that have had rows, when the vote began."""

    def _preflight(self) -> dict[str, Any]:
        return {"sqlite": sqlite3.sqlite_version, "file": str(self.file.path)}

    def _begin(self, ledger: TransactionLedger, plan: Plan, fence: Fence) -> None:
        super()._begin(ledger, plan, fence)
        assert isinstance(ledger, Ledger)
        self._filled = ledger.filled(plan.pipeline)
        former = plan.participant(self.name).former
        if former is not None and plan.participant(self.name).predecessor == 0:
            self._filled |= ledger.filled(former.pipeline)
            ledger.keep_filled(self._filled)

    def _schema_problems(
        self, db: sqlite3.Connection, readers: Sequence[SegmentReader], make: bool
    ) -> Iterator[AirflowFtError]:
        """All that speaks against staged rows. Makes the table of a sink that has had no rows."""
        for name, sink in self.sinks.items():
            for schema in dict.fromkeys(reader.schema(name) for reader in readers if name in reader.sinks()):
                if not schema.names:  # the job returned nothing for this sink
                    continue
                if exists(db, sink.table):
                    yield from problems(db, sink.table, schema, name)
                    continue
                known = name in self._filled
                if known or not sink.create:
                    reason = "rows were delivered into it before" if known else "create=False"
                    yield UnfitTargetError(
                        f"{self.file.path} has no table {sink.table!r}, and the sink does not create it: {reason}.",
                        code="table_missing",
                        remedy=f"Restore the table, or, if it never existed, run `{table_of(sink.table, schema)}`.",
                        sink=name,
                        path=str(self.file.path),
                        table=sink.table,
                    )
                    return
                found = list(schema_problems(sink.table, None, schema, name))
                if not found:
                    create_table(db, sink.table, schema, name)
                yield from found

    def _insert(
        self, db: sqlite3.Connection, plan: Plan, readers: Sequence[SegmentReader], dead_letters: Refused | None
    ) -> dict[str, int]:
        """All rows; how many went into each sink's table. DeclinedError for rows that the file refuses."""
        wrong = [problem for name in self.sinks for problem in self._changed(db, name, readers)]
        if wrong:  # the table may have changed since the vote
            raise together(wrong)

        def load(name: str, reader: SegmentReader) -> Load:
            table = self.sinks[name].table
            columns = read_columns(db, table)
            return _Load(name, table, reader, dead_letters, db, columns)

        return load_all(self.sinks, readers, load)

    def _changed(self, db: sqlite3.Connection, name: str, readers: Sequence[SegmentReader]) -> Iterator[AirflowFtError]:
        """Judge a sink's table again, in the transaction that delivers: no one can change it until COMMIT."""
        table = self.sinks[name].table
        for schema in dict.fromkeys(reader.schema(name) for reader in readers if name in reader.sinks()):
            if schema.names and not exists(db, table):
                yield UnfitTargetError(
                    f"{self.file.path} no longer has the table {table!r}.",
                    code="table_missing",
                    remedy=f"Restore the table {table!r}. The staged rows wait for it.",
                    sink=name,
                    path=str(self.file.path),
                    table=table,
                )
            elif schema.names:
                yield from problems(db, table, schema, name)

    @contextmanager
    def _writing(
        self, fence: Fence, plan: Plan | None = None, *, create: bool = False, keep: bool = True
    ) -> Iterator[tuple[sqlite3.Connection, Ledger]]:
        """Open one transaction. Commits it if the block ends without an error and `keep` is true."""
        there = self.file.mark()
        with self.file.opened(create=create, **self._where(plan)) as db:
            if db is None:
                raise SinkAccessError(
                    f"the file {self.file.path} is gone.",
                    code="file_missing",
                    remedy=f"Restore {self.file.path}. If it is gone for good, create an empty file with this name:"
                    " the pipeline then halts, and the remedy says how it continues.",
                    path=str(self.file.path),
                )
            db.execute("BEGIN IMMEDIATE")
            there = there or self.file.mark()
            ledger = Ledger(db, fence.pipeline, self.name)
            ledger.open(fence, create=create)
            yield db, ledger
            db.execute("COMMIT" if keep else "ROLLBACK")
            if self.file.mark() != there:
                raise SinkUnavailableError(
                    f"{self.file.path} was replaced or removed while rows were written into the former file.",
                    code="file_replaced",
                    remedy="Do nothing: the retry reads the ledger of the file that has this path now.",
                    path=str(self.file.path),
                )

    @contextmanager
    def _reading(self, pipeline: str, plan: Plan | None = None) -> Iterator[Ledger | None]:
        """None: the file, or its ledger, is not there."""
        with self.file.opened(**self._where(plan)) as db:
            ledger = Ledger(db, pipeline, self.name) if db is not None else None
            yield ledger if ledger is not None and ledger.exists() else None


@dataclass
class _Load(Load):
    """See `airflow_ft.sinks.base.load`."""

    db: sqlite3.Connection
    columns: dict[str, Column]

    def unfit(self, rows: pa.RecordBatch) -> Mapping[int, str]:
        return refused(rows, self.columns)

    def insert(self, rows: pa.RecordBatch) -> str:
        sql = insert_statement(self.table, rows.schema.names)
        self.db.execute("SAVEPOINT airflow_ft_rows")
        try:
            lacking = rows.num_rows - self.db.executemany(sql, zip(*values(rows), strict=True)).rowcount
            why = f"a trigger left out {count_text(lacking, 'row')}" if lacking else ""
        except (sqlite3.Error, OverflowError) as error:
            if not is_of_a_row(error):
                raise
            if not self.db.in_transaction:
                raise self.declined(f"{error}, and a trigger has rolled everything back") from error
            is_null = getattr(error, "sqlite_errorname", "") == "SQLITE_CONSTRAINT_NOTNULL"
            why = NullFound(error) if is_null else str(error)
        if why:
            self.db.execute("ROLLBACK TO airflow_ft_rows")
        self.db.execute("RELEASE airflow_ft_rows")
        return why
