"""A table's rows against those of the log, as multisets on disk (`airflow_ft.sinks.multiset`)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_ft.protocol.model import ParticipantPlan
from airflow_ft.protocol.verify import SAMPLES, Delivered, Difference, Sent, SinkReport, by_target, once, sample
from airflow_ft.protocol.write_ahead_log import SegmentReader, WalFile, WalReader
from airflow_ft.sinks.base.sql_ledger import DbApi
from airflow_ft.sinks.multiset import Multiset
from airflow_ft.sinks.set_aside import DeliveredLog

if TYPE_CHECKING:
    import pyarrow as pa

Row = tuple[Any, ...]
InLog = Callable[[SegmentReader, str, WalFile], Iterator[list[Row]]]
"""The rows of one file of the log, some at a time, with values as the table gives them back."""


def rows_of(db: DbApi, sql: str, at_once: int = 10_000) -> Iterator[Sequence[Row]]:
    """Return the rows of a query in batches."""
    cursor = db.cursor()
    cursor.execute(sql)
    return iter(partial(cursor.fetchmany, at_once), [])


def compare_tables(
    delivered: Sequence[Delivered],
    plan: ParticipantPlan,
    wal: WalReader,
    *,
    table: Callable[[Mapping[str, Any]], str],
    columns: Callable[[str], Collection[str]],
    found: Callable[[str, Sequence[str]], Iterable[Sequence[Row]]],
    values: Callable[[pa.RecordBatch], Iterable[Row]],
    fold: Callable[[str], str] = str,
) -> list[SinkReport]:
    """Return one report for each table, also if its plans and sinks were renamed: the result of `verify`.

    Args:
        delivered: what went into the participant, and was asked for.
        plan: the newest one of the participant.
        wal: the log.
        table: its name, by the settings of a sink; one table has one name.
        columns: those that it has, folded; none: there is no such table.
        found: the values of these columns in all its rows, some rows at a time.
        values: rows of the log, with values as the table gives them back.
        fold: what is one name to the system becomes one (`str.lower`).
    """
    log = DeliveredLog.of(wal, delivered)

    def in_log(reader: SegmentReader, sink: str, file: WalFile) -> Iterator[list[Row]]:
        for batch in reader.batches(sink, file):
            yield list(values(batch))

    def report(name: str, sent: Sequence[Sent]) -> SinkReport:
        begun = SinkReport.begun(plan.name, (sink for _, sink in sent), name, once(sent))
        readers = log.readers(sent)
        written = {tuple(fold(field.name) for field in reader.schema(sink)) for _, sink, reader in readers} - {()}
        if not written:  # the job has returned nothing at all for it, so it need not have a table
            return begun
        there = columns(name)
        if lacking := sorted({column for each in written for column in each} - set(there)):
            what = f"it has no column {lacking[0]!r}" if there else "there is no such table"
            return replace(begun, error=what)
        if len(written) != 1:
            return replace(begun, error="the columns of the rows have changed: compare the checkpoints one by one")
        return compare(begun, readers, in_log, found(name, written.pop()))

    return [report(name, sent) for name, sent in by_target(delivered, plan.name, table).items()]


def compare(
    report: SinkReport, sent: Iterable[tuple[int, str, SegmentReader]], in_log: InLog, found: Iterable[Sequence[Row]]
) -> SinkReport:
    """The report, with what it finds. `sent`: number, sink and segment of each delivery; `found`: the table's rows."""
    with closing(Multiset()) as rows:
        parts: list[tuple[int, str, SegmentReader, WalFile]] = []
        for number, name, reader in sent:
            for file in reader.files(name):
                for some in in_log(reader, name, file):
                    rows.expect(len(parts), [_digest(row) for row in some])
                parts.append((number, name, reader, file))
        for each in found:
            rows.found([_digest(row) for row in each])
        differences = tuple(
            Difference(
                parts[i][0], parts[i][3].path, count, _samples(rows, in_log(parts[i][2], parts[i][1], parts[i][3]))
            )
            for i, count in rows.missing_by_part().items()
        )
        return replace(report, missing=rows.missing, repeated=rows.repeated, other=rows.other, differences=differences)


def _digest(row: Row) -> bytes:
    """Return the digest of values and their kinds; -0.0 counts as 0.0."""
    plain = [0.0 if isinstance(value, float) and value == 0 else value for value in row]
    return hashlib.blake2b(repr(plain).encode(), digest_size=20).digest()


def _samples(rows: Multiset, in_log: Iterator[list[Row]]) -> tuple[str, ...]:
    found: list[str] = []
    for some in in_log:
        found += [sample(some[index]) for index in rows.lacking([_digest(row) for row in some])]
        if len(found) >= SAMPLES:
            break
    return tuple(found[:SAMPLES])
