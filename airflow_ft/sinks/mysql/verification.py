"""What a table really holds of the log's rows, compared by the server itself.

The log's rows are loaded once more, into a temporary table whose columns are the target's own, by the very code that
delivers. So both sides have gone through the same types (a FLOAT, a DATETIME without fractions, a CHAR, JSON), and a
difference is one of rows, never of formats; only ENUM and SET are text there (`plain_text`). An error of the encoding
itself would be on both sides, and is for the encoder's tests. The server then compares SHA-256 digests of the delivered
columns as multisets, each table read once: memory stays bounded on both ends, the work lies on the server's disk, and
all of it vanishes with the session. It takes no lock on the target (READ COMMITTED). Needs SELECT on the target and
CREATE TEMPORARY TABLES. What replaces rows by key is compared by key: `upsert_verification`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TypeVar

import pyarrow as pa
import pymysql

from airflow_ft.core.errors import SinkAccessError, SinkUnavailableError
from airflow_ft.core.model import ParticipantPlan, Segment
from airflow_ft.core.ports import ColumnStatistics, ConnectionInfo, SegmentReader, WalFile, WalReader
from airflow_ft.core.verify import SAMPLES, Delivered, Difference, SinkReport, expected_rows, sample
from airflow_ft.sinks.mysql.catalog import read_table
from airflow_ft.sinks.mysql.digest import digest
from airflow_ft.sinks.mysql.failures import failure
from airflow_ft.sinks.mysql.load import ONE_BY_ONE, Loader
from airflow_ft.sinks.mysql.naming import TableName, quote
from airflow_ft.sinks.mysql.plain_text import definitions, in_order, without_labels
from airflow_ft.sinks.mysql.session import Limits, Session
from airflow_ft.sinks.mysql.spec import MySqlSink
from airflow_ft.sinks.mysql.upsert_verification import verify_upserts
from airflow_ft.sinks.mysql.validation import Target

T = TypeVar("T")
LIMITS = Limits(answer=6 * 3600)  # one statement reads a whole table
_ROWS, _NEED, _HAVE, _MISSING = (f"airflow_ft_verify_{name}" for name in ("rows", "need", "have", "missing"))


@dataclass(frozen=True, slots=True)
class _OneFile:
    """A view of a segment that shows one file of one sink; a `SegmentReader`."""

    reader: SegmentReader
    file: WalFile

    @property
    def segment(self) -> Segment:
        return self.reader.segment

    def sinks(self) -> Sequence[str]:
        return self.reader.sinks()

    def schema(self, sink: str) -> pa.Schema:
        return self.reader.schema(sink)

    def files(self, sink: str) -> Sequence[WalFile]:
        return [self.file]

    def statistics(self, sink: str) -> Mapping[str, ColumnStatistics]:
        return self.reader.statistics(sink)

    def batches(self, sink: str, file: WalFile) -> Iterator[pa.RecordBatch]:
        return self.reader.batches(sink, file)


@dataclass(frozen=True, slots=True)
class _Part:
    """One file of the log, delivered under `number`."""

    number: int
    view: _OneFile


def verify(
    delivered: Sequence[Delivered], plan: ParticipantPlan, connection: ConnectionInfo, wal: WalReader
) -> list[SinkReport]:
    """One report a sink. SinkUnavailableError, SinkAccessError, WalCorruptError: nothing could be compared."""
    reports = []
    for name, given in plan.sinks.items():
        sink = MySqlSink.from_settings(plan.name, plan.strategy, dict(given))
        reports.append(_translated(sink.table, lambda n=name, s=sink: _verify(delivered, plan, n, s, connection, wal)))  # type: ignore[misc]
    return reports


def read_target(session: Session, name: str, sink: MySqlSink) -> Target:
    """The sink's table as the server describes it."""
    row = session.row("SELECT DATABASE()")
    where = TableName.parse(sink.table).within((row[0] or "") if row else "")
    if not where.schema:
        raise SinkAccessError(
            f"neither the connection nor the sink names the schema of table {where.name!r}.",
            remedy="set the connection's schema, or write 'schema.table'.",
            sink=name,
        )
    late = session.is_mariadb and session.version >= (11, 5, 1)
    return Target(name, read_table(session, where), sink.columns, late, session.max_allowed_packet)


def _translated(table: str, step: Callable[[], T]) -> T:
    try:
        return step()
    except pymysql.err.MySQLError as error:
        found = failure(error, f"comparing table {table}")
        if isinstance(found, SinkAccessError):
            found.remedy = f"GRANT SELECT on {table} and CREATE TEMPORARY TABLES on its schema. {found.remedy}"
        raise found.located() from error


def _verify(
    delivered: Sequence[Delivered],
    plan: ParticipantPlan,
    name: str,
    sink: MySqlSink,
    connection: ConnectionInfo,
    wal: WalReader,
) -> SinkReport:
    numbers = tuple(each.plan.number for each in delivered)
    report = SinkReport(plan.name, name, sink.table, numbers, expected_rows(delivered, name))
    with closing(Session(connection, LIMITS)) as session:
        target = read_target(session, name, sink)
        report = replace(report, target=str(target.table.name))
        if plan.strategy == "upsert":
            return verify_upserts(report, session, target, sink, delivered, plan, wal, LIMITS)
        for columns, parts in _by_columns(delivered, target, wal).items():
            report = _compare(report, session, target, columns, parts)
        row = session.row(f"SELECT COUNT(*) FROM {target.table.name.sql}")
        assert row is not None
        there = int(row[0]) - (report.expected - report.missing) - report.repeated
        return replace(report, other=max(0, there))


def _by_columns(delivered: Sequence[Delivered], target: Target, wal: WalReader) -> dict[tuple[str, ...], list[_Part]]:
    """The files, by the columns that were delivered of them: a job may have added one."""
    parts: dict[tuple[str, ...], list[_Part]] = {}
    for each in delivered:
        for segment in each.plan.segments:
            reader = in_order(wal.open(segment), target)
            if target.sink not in reader.sinks() or not reader.files(target.sink):
                continue
            columns = tuple(column.name for column in target.written(reader.schema(target.sink)))
            files = [_Part(each.plan.number, _OneFile(reader, file)) for file in reader.files(target.sink)]
            parts.setdefault(columns, []).extend(files)
    return parts


def _compare(
    report: SinkReport, session: Session, target: Target, columns: tuple[str, ...], parts: Sequence[_Part]
) -> SinkReport:
    schema = target.table.name.schema
    rows, need, have, missing = (TableName(schema, name).sql for name in (_ROWS, _NEED, _HAVE, _MISSING))
    for table in (rows, need, have, missing):
        session.run(f"DROP TEMPORARY TABLE IF EXISTS {table}")
    listed = ", ".join(quote(column) for column in columns)
    session.run(
        f"CREATE TEMPORARY TABLE {rows} ({definitions(target, columns)}"
        "airflow_ft_row BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,"
        " airflow_ft_part INT NOT NULL DEFAULT 0) ENGINE=InnoDB"
        f" SELECT {listed} FROM {target.table.name.sql} WHERE 1 = 0"
    )
    _load(session, target, parts, rows)
    described = [column for name in columns if (column := target.table.column(name)) is not None]
    counted = "(h BINARY(32) NOT NULL PRIMARY KEY, n BIGINT NOT NULL) ENGINE=InnoDB"
    session.run(
        f"CREATE TEMPORARY TABLE {need} {counted}"
        f" SELECT {digest('r', described)} AS h, COUNT(*) AS n FROM {rows} r GROUP BY 1"
    )
    session.run(
        f"CREATE TEMPORARY TABLE {have} {counted} SELECT n.h AS h, COUNT(*) AS n FROM {target.table.name.sql} t"
        f" STRAIGHT_JOIN {need} n ON n.h = {digest('t', described)} GROUP BY n.h"
    )
    row = session.row(f"SELECT COALESCE(SUM(GREATEST(h.n - n.n, 0)), 0) FROM {need} n JOIN {have} h ON h.h = n.h")
    session.run(
        f"CREATE TEMPORARY TABLE {missing} {counted} SELECT n.h AS h, n.n - COALESCE(h.n, 0) AS n"
        f" FROM {need} n LEFT JOIN {have} h ON h.h = n.h WHERE n.n > COALESCE(h.n, 0)"
    )
    lacking = session.row(f"SELECT COALESCE(SUM(n), 0) FROM {missing}")
    assert row is not None and lacking is not None
    differences = _differences(session, rows, missing, digest("r", described), listed, parts) if lacking[0] else ()
    return replace(
        report,
        missing=report.missing + int(lacking[0]),
        repeated=report.repeated + int(row[0]),
        differences=(*report.differences, *differences),
    )


def _load(session: Session, target: Target, parts: Sequence[_Part], rows: str) -> None:
    """The log's rows into the temporary table, which looks like the target; a row's part is the column's default."""
    plain = without_labels(target)
    like = replace(plain, table=replace(plain.table, name=TableName(target.table.name.schema, _ROWS)))
    loader = Loader(session, LIMITS, ONE_BY_ONE)
    for index, part in enumerate(parts):
        session.run(f"ALTER TABLE {rows} ALTER COLUMN airflow_ft_part SET DEFAULT {index}")
        loaded = loader.send(part.view, like)
        if loaded != part.view.file.rows:
            raise SinkUnavailableError(f"{loaded} of {part.view.file.rows} rows of the log could be loaded to compare.")


def _differences(
    session: Session, rows: str, missing: str, digest: str, listed: str, parts: Sequence[_Part]
) -> Iterator[Difference]:
    by_part = session.rows(
        f"SELECT r.airflow_ft_part, COUNT(*) FROM {rows} r JOIN {missing} m ON m.h = {digest}"
        " GROUP BY r.airflow_ft_part ORDER BY 1"
    )
    for index, count in by_part:
        samples = session.rows(
            f"SELECT {listed} FROM {rows} r JOIN {missing} m ON m.h = {digest} WHERE r.airflow_ft_part = %s"
            f" ORDER BY r.airflow_ft_row LIMIT {SAMPLES}",
            (index,),
        )
        part = parts[int(index)]
        yield Difference(part.number, part.view.file.path, int(count), tuple(map(sample, samples)))
