"""What the tables really hold of the log's rows, compared as multisets on disk (`airflow_ft.sinks.multiset`)."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

from airflow_ft.core.errors import SinkUnavailableError
from airflow_ft.core.model import ParticipantPlan
from airflow_ft.core.ports import ConnectionInfo, SegmentReader, WalFile, WalReader
from airflow_ft.core.verify import SAMPLES, Delivered, Difference, SinkReport, sample
from airflow_ft.sinks.multiset import Multiset
from airflow_ft.sinks.set_aside import DeliveredLog
from airflow_ft.sinks.sqlite.columns import quoted, read_columns, values
from airflow_ft.sinks.sqlite.file import SqliteFile
from airflow_ft.sinks.sqlite.spec import SqliteSink

_BATCH = 10_000
_Sent = tuple[Delivered, str]  # a delivery to one of its sinks
_Row = tuple[Any, ...]


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
    sent: dict[str, list[_Sent]] = {}
    for each in delivered:
        for name, given in each.plan.participant(plan.name).sinks.items():
            sent.setdefault(SqliteSink.from_settings(plan.name, given).table.lower(), []).append((each, name))
    with SqliteFile.of(connection).opened(participant=plan.name) as db:
        if db is None:
            raise SinkUnavailableError("its file is not there.", remedy="bring it back.", participant=plan.name)
        return [_verify(of_table, plan.name, table, db, log) for table, of_table in sent.items()]


def _verify(
    sent: Sequence[_Sent], participant: str, table: str, db: sqlite3.Connection, log: DeliveredLog
) -> SinkReport:
    delivered = list({each.plan.number: each for each, _ in sent}.values())
    report = SinkReport.begun(participant, (name for _, name in sent), table, delivered)
    readers = [
        (each.plan.number, name, reader)
        for each, name in sent
        for reader in map(log.open, each.plan.segments)
        if name in reader.sinks()
    ]
    written = {tuple(field.name.lower() for field in reader.schema(name)) for _, name, reader in readers}
    there = read_columns(db, table)
    if lacking := sorted({column for columns in written for column in columns} - there.keys()):
        what = f"it has no column {lacking[0]!r}" if there else "there is no such table"
        return replace(report, error=what)
    if len(written) != 1:
        return replace(report, error="the columns of the rows have changed: compare the checkpoints one by one")
    [columns] = written
    with closing(Multiset()) as rows:
        parts: list[tuple[int, str, SegmentReader, WalFile]] = []
        for number, name, reader in readers:
            for file in reader.files(name):
                for some in _in_log(reader, name, file):
                    rows.expect(len(parts), [_digest(row) for row in some])
                parts.append((number, name, reader, file))
        found = db.execute(f"SELECT {', '.join(map(quoted, columns))} FROM {quoted(table)}")
        while some := found.fetchmany(_BATCH):
            rows.found([_digest(row) for row in some])
        differences = tuple(
            Difference(parts[i][0], parts[i][3].path, count, _samples(rows, *parts[i][1:]))
            for i, count in rows.missing_by_part().items()
        )
        return replace(report, missing=rows.missing, repeated=rows.repeated, other=rows.other, differences=differences)


def _in_log(reader: SegmentReader, name: str, file: WalFile) -> Iterator[list[_Row]]:
    for batch in reader.batches(name, file):
        yield list(zip(*values(batch), strict=True))


def _digest(row: _Row) -> bytes:
    """Of values and their kinds; -0.0 is 0.0 to SQLite."""
    plain = [0.0 if isinstance(value, float) and value == 0 else value for value in row]
    return hashlib.blake2b(repr(plain).encode(), digest_size=20).digest()


def _samples(rows: Multiset, name: str, reader: SegmentReader, file: WalFile) -> tuple[str, ...]:
    found: list[str] = []
    for some in _in_log(reader, name, file):
        found += [sample(some[index]) for index in rows.lacking([_digest(row) for row in some])]
        if len(found) >= SAMPLES:
            break
    return tuple(found[:SAMPLES])
