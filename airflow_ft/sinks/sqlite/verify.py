"""What the tables really hold of the log's rows."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import replace

from airflow_ft.core.errors import SinkUnavailableError
from airflow_ft.core.model import ParticipantPlan
from airflow_ft.core.ports import ConnectionInfo, SegmentReader, WalFile, WalReader
from airflow_ft.core.verify import Delivered, Sent, SinkReport, by_target
from airflow_ft.sinks.base.comparison import Row, compare
from airflow_ft.sinks.set_aside import DeliveredLog
from airflow_ft.sinks.sqlite.columns import quoted, read_columns, values
from airflow_ft.sinks.sqlite.file import SqliteFile
from airflow_ft.sinks.sqlite.spec import SqliteSink

_BATCH = 10_000


def verify(
    delivered: Sequence[Delivered],
    plan: ParticipantPlan,
    connection: ConnectionInfo,
    wal: WalReader,
    *,
    full: bool = False,
) -> list[SinkReport]:
    """One report a table, whatever its plans and sinks were called; other rows are counted in any case.

    SinkUnavailableError, SinkAccessError, WalCorruptError: nothing could be compared.
    """
    log = DeliveredLog.of(wal, delivered)
    sent = by_target(delivered, plan.name, lambda given: SqliteSink.from_settings(plan.name, given).table.lower())
    with SqliteFile.of(connection).opened(participant=plan.name) as db:
        if db is None:
            raise SinkUnavailableError("its file is not there.", remedy="bring it back.", participant=plan.name)
        return [_verify(of_table, plan.name, table, db, log) for table, of_table in sent.items()]


def _verify(
    sent: Sequence[Sent], participant: str, table: str, db: sqlite3.Connection, log: DeliveredLog
) -> SinkReport:
    delivered = list({each.plan.number: each for each, _ in sent}.values())
    report = SinkReport.begun(participant, (name for _, name in sent), table, delivered)
    readers = log.readers(sent)
    written = {tuple(field.name.lower() for field in reader.schema(name)) for _, name, reader in readers}
    there = read_columns(db, table)
    if lacking := sorted({column for columns in written for column in columns} - there.keys()):
        what = f"it has no column {lacking[0]!r}" if there else "there is no such table"
        return replace(report, error=what)
    if len(written) != 1:
        return replace(report, error="the columns of the rows have changed: compare the checkpoints one by one")
    [columns] = written
    found = db.execute(f"SELECT {', '.join(map(quoted, columns))} FROM {quoted(table)}")
    return compare(report, readers, _in_log, iter(lambda: found.fetchmany(_BATCH), []))


def _in_log(reader: SegmentReader, name: str, file: WalFile) -> Iterator[list[Row]]:
    for batch in reader.batches(name, file):
        yield list(zip(*values(batch), strict=True))
