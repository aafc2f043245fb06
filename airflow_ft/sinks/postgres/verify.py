"""Find out which of the log's rows a table really holds. The server itself compares them.

The log's rows are loaded once more, into a temporary table whose columns are the target's own, by the very code that
delivers. So both sides have gone through the same types, and a difference is one of rows, never of formats. They are
compared as multisets of digests of the delivered columns: memory stays bounded on both ends, and all of it vanishes
with the session. Needs SELECT on the target and TEMPORARY on the database.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import psycopg2
import pyarrow as pa

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import DeclinedError, SinkAccessError
from airflow_ft.protocol.model import ParticipantPlan
from airflow_ft.protocol.numbers import count_text
from airflow_ft.protocol.verify import SAMPLES, Delivered, Difference, Sent, SinkReport, by_target, once, sample
from airflow_ft.protocol.write_ahead_log import SegmentReader, WalFile, WalReader
from airflow_ft.sinks.base.keyed_verify import blind_through, may_delete
from airflow_ft.sinks.base.sql_names import quoted
from airflow_ft.sinks.postgres.catalog import Table, read_table
from airflow_ft.sinks.postgres.changes import Changes
from airflow_ft.sinks.postgres.encoding import fits
from airflow_ft.sinks.postgres.failures import failure
from airflow_ft.sinks.postgres.ledger import ledger_of
from airflow_ft.sinks.postgres.load import Load
from airflow_ft.sinks.postgres.naming import TableName
from airflow_ft.sinks.postgres.session import Limits, Session
from airflow_ft.sinks.postgres.setup import verify_grants
from airflow_ft.sinks.postgres.spec import PostgresSink
from airflow_ft.sinks.set_aside import DeliveredLog
from airflow_ft.sinks.view import OneFile

LIMITS = Limits(answer=6 * 3600)  # one statement reads a whole table
_LOG = TableName("pg_temp", "airflow_ft_log")
_COUNTED = """
CREATE TEMPORARY TABLE airflow_ft_counted ON COMMIT DROP AS
SELECT digest, coalesce(expected, 0) AS expected, coalesce(there, 0) AS there
FROM (SELECT {digest} AS digest, count(*) AS expected FROM {log} AS r GROUP BY 1) AS log
FULL JOIN (SELECT {digest} AS digest, count(*) AS there FROM {target} AS r GROUP BY 1) AS target USING (digest)
"""


def verify(
    delivered: Sequence[Delivered], plan: ParticipantPlan, connection: ConnectionInfo, wal: WalReader
) -> list[SinkReport]:
    """Return one report for each table, also if its plans and sinks were renamed.

    SinkUnavailableError, SinkAccessError, WalCorruptError: nothing could be compared.
    """
    log = DeliveredLog.of(wal, delivered)
    sent = by_target(delivered, plan.name, lambda given: _table(plan, given))
    return [_translated(of_table, plan.name, table, connection, log) for table, of_table in sent.items()]


def _table(plan: ParticipantPlan, given: Mapping[str, Any]) -> str:
    return PostgresSink.from_settings(plan.name, plan.strategy, given).table


def _translated(
    sent: Sequence[Sent], participant: str, name: str, connection: ConnectionInfo, log: DeliveredLog
) -> SinkReport:
    try:
        with closing(Session(connection, LIMITS)) as session:
            return _verify(sent, participant, name, session, log)
    except DeclinedError as error:  # a type was altered since, and no longer holds each value
        return replace(_begun(sent, participant, name), error=f"cannot compare the table: {error.what}")
    except psycopg2.Error as error:
        found = failure(error, f"comparing table {name}")
        if found.code != "privilege_missing":
            raise found.located(participant=participant) from None
        found.remedy = f"Run `{'; '.join(verify_grants([TableName.parse(name)], connection))}`."
        found = found.located(participant=participant)
        return replace(_begun(sent, participant, name), error=f"{found}", error_code=found.code)


def _begun(sent: Sequence[Sent], participant: str, name: str) -> SinkReport:
    return SinkReport.begun(participant, (sink for _, sink in sent), name, once(sent))


def _verify(sent: Sequence[Sent], participant: str, name: str, session: Session, log: DeliveredLog) -> SinkReport:
    report = _begun(sent, participant, name)
    try:
        table = read_table(session, TableName.parse(name), "")
    except SinkAccessError as error:
        return replace(report, error=error.what, error_code=error.code)
    # Of an optional sink for which the job returned nothing there are no columns.
    readers = [each for each in log.readers(sent) if each[2].schema(each[1]).names]
    newest, newest_sink = sent[-1]
    last = newest.plan.participant(participant)
    sink_of = PostgresSink.from_settings(last.name, last.strategy, last.sinks[newest_sink])
    written = {
        tuple(field.name for field in reader.schema(sink) if field.name != sink_of.change_column)
        for _, sink, reader in readers
    }
    if lacking := sorted({column for columns in written for column in columns if table.column(column) is None}):
        return replace(report, error=f"the table has no column {lacking[0]!r}")
    if not readers:
        return report
    if changed := sorted({why for _, sink, reader in readers for why in _inexact(table, reader.schema(sink), sink_of)}):
        return replace(report, error=changed[0])
    if len(written) != 1:
        return replace(
            report, error="the columns of the rows changed between checkpoints: compare the checkpoints one by one"
        )
    columns = [column.name for column in table.columns_of(written.pop())]
    session.begin()
    session.run("SET LOCAL idle_in_transaction_session_timeout = 0")  # reading the log may take long
    if sink_of.strategy == "upsert":
        blind = 0
        if may_delete(once(sent), participant, lambda given: _table(last, given), name):
            ledger = ledger_of(session, {newest_sink: sink_of}, newest.plan.pipeline, participant)
            head = ledger.head() if ledger.exists() else None
            blind = blind_through(once(sent), head.last_delivered if head is not None else None)
        return _verify_keys(report, session, sink_of, table, readers, blind)
    listed = ", ".join(map(quoted, columns))
    session.run(
        f"CREATE TEMPORARY TABLE airflow_ft_log ON COMMIT DROP AS SELECT {listed} FROM {table.name.sql} LIMIT 0"
    )
    session.run("ALTER TABLE pg_temp.airflow_ft_log ADD COLUMN airflow_ft_part bigint")
    like = replace(table, name=_LOG)
    files = _in_parts(session, _LOG.name, readers, lambda sink, part: Load(session, sink, like, part, None).all())
    digest = f"sha256(convert_to(ROW({', '.join(f'r.{quoted(column)}' for column in columns)})::text, 'UTF8'))"
    session.run(_COUNTED.format(digest=digest, log=_LOG.sql, target=table.name.sql))
    missing, repeated, other = session.rows(
        "SELECT coalesce(sum(greatest(expected - there, 0)), 0)::bigint,"
        " coalesce(sum(there - expected) FILTER (WHERE expected BETWEEN 1 AND there), 0)::bigint,"
        " coalesce(sum(there) FILTER (WHERE expected = 0), 0)::bigint FROM airflow_ft_counted"
    )[0]
    lacking_rows = (
        f"FROM {_LOG.sql} AS r JOIN airflow_ft_counted AS c ON c.digest = {digest} WHERE c.expected > c.there"
    )
    parts = session.rows(f"SELECT airflow_ft_part, count(*) {lacking_rows} GROUP BY 1 ORDER BY 1") if missing else []
    differences = []
    for part, count in parts:
        number, file = files[part]
        texts = ", ".join(f"r.{quoted(column)}::text" for column in columns)
        shown = session.rows(f"SELECT {texts} {lacking_rows} AND airflow_ft_part = {int(part)} LIMIT {SAMPLES}")
        differences.append(Difference(number, file.path, count, tuple(sample(row) for row in shown)))
    return replace(report, missing=missing, repeated=repeated, other=other, differences=tuple(differences))


def _inexact(table: Table, schema: pa.Schema, sink: PostgresSink) -> Iterator[str]:
    """Yield altered columns that no longer hold the log's values as they are.

    Loaded through the same type, the log's rows would be changed like those of the table, and look the same.
    """
    for field in schema:
        column = table.column(field.name) if field.name != sink.change_column else None
        if column is not None and not fits(field.type, column):
            yield f"column {column.name!r} is {column.declared}, which does not hold {field.type} exactly"


def _verify_keys(
    report: SinkReport,
    session: Session,
    sink: PostgresSink,
    table: Table,
    readers: Sequence[tuple[int, str, SegmentReader]],
    blind: int,
) -> SinkReport:
    """The last change of each key against the row with that key. A row of a higher version is another checkpoint's.

    Such a checkpoint may have deleted a row of a number up to `blind`.
    """
    name = readers[0][1]
    changes = Changes.of(session, sink, table, readers[0][2].schema(name).names, name)
    changes.create(", ADD airflow_ft_part bigint")

    def load(name: str, reader: SegmentReader) -> int:
        return replace(changes, name=name).load(reader)

    files = _in_parts(session, "airflow_ft_changes", readers, load)
    version = changes.version
    # Keys that are equal may differ as texts: by a collation that ignores case, or 1.0 and 1.00. The row keeps its own.
    others = [quoted(each) for each in changes.columns if each not in changes.keys]
    values = [f"ROW({', '.join(f'{of}.{each}' for each in others)})::text" for of in ("there", "change")]
    numbers = ", ".join(f"({part}, {number})" for part, (number, _) in enumerate(files)) or "(0, 0)"
    compared = (
        f"FROM ({changes.last}) AS change JOIN (VALUES {numbers}) AS of (part, number) ON of.part = airflow_ft_part"
        f" LEFT JOIN {table.name.sql} AS there ON {changes.same}"
    )
    absent = f"there.{quoted(changes.keys[0])} IS NULL"
    unknown = f"({absent} AND NOT {changes.deletes} AND of.number <= {blind})"
    wrong = (
        f"CASE WHEN {unknown} THEN false WHEN {changes.deletes} THEN NOT {absent} AND coalesce({version}, 0)"
        f" <= of.number ELSE {version} IS NULL OR {version} < of.number"
        f" OR ({version} = of.number AND {' <> '.join(values)}) END"
    )
    later = session.value(f"SELECT count(*) {compared} WHERE {unknown} OR {version} > of.number")
    parts = session.rows(f"SELECT airflow_ft_part, count(*) {compared} WHERE {wrong} GROUP BY 1 ORDER BY 1")
    differences = []
    for part, count in parts:
        texts = ", ".join(f"change.{quoted(column)}::text" for column in changes.columns)
        found = session.rows(f"SELECT {texts} {compared} WHERE {wrong} AND airflow_ft_part = {part} LIMIT {SAMPLES}")
        differences.append(Difference(files[part][0], files[part][1].path, count, tuple(map(sample, found))))
    what = f"not compared: {count_text(later, 'key')} that a later checkpoint has changed or may have deleted"
    missing = sum(count for _, count in parts)
    return replace(report, missing=missing, differences=tuple(differences), notes=(what,) if later else ())


def _in_parts(
    session: Session, log: str, readers: Sequence[tuple[int, str, SegmentReader]], load: Callable[[str, OneFile], int]
) -> list[tuple[int, WalFile]]:
    """The log's rows into that temporary table, a file at a time; of each part its number and file."""
    files: list[tuple[int, WalFile]] = []
    for number, sink, reader in readers:
        for file in reader.files(sink):
            session.run(f"ALTER TABLE pg_temp.{log} ALTER airflow_ft_part SET DEFAULT {len(files)}")
            load(sink, OneFile(reader, file))
            files.append((number, file))
    return files
