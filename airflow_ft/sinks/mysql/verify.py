"""Find out which of the log's rows a table really holds. The server itself compares them.

The log's rows are loaded once more, into a temporary table whose columns are the target's own, by the very code that
delivers. So both sides have gone through the same types (a FLOAT, a DATETIME without fractions, a CHAR, JSON), and a
difference is one of rows, never of formats. Only ENUM and SET are text there (`plain_text`). An error of the encoding
itself would be on both sides, and is for the encoder's tests. The server then finds the rows by SHA-256 digests of the
delivered columns (`comparison`). Memory stays bounded on both ends, the work lies on the server's disk, and all of it
vanishes with the session. It takes no lock on the target (READ COMMITTED). It needs SELECT on the target and CREATE
TEMPORARY TABLES. The strategy `upsert` is compared by key: `upsert_verify`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace

import pymysql

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import AirflowFtError, DeclinedError, SinkAccessError, UnfitTargetError
from airflow_ft.protocol.model import ParticipantPlan, canonical_json
from airflow_ft.protocol.verify import Delivered, SinkReport, once
from airflow_ft.protocol.write_ahead_log import WalReader
from airflow_ft.sinks.base.columns import Objection
from airflow_ft.sinks.base.keyed_verify import may_delete
from airflow_ft.sinks.mysql.comparison import Comparison, Part, usable_key
from airflow_ft.sinks.mysql.failures import PRIVILEGE_MISSING, failure
from airflow_ft.sinks.mysql.ledger import ledger_of
from airflow_ft.sinks.mysql.limits import Limits
from airflow_ft.sinks.mysql.naming import TableName
from airflow_ft.sinks.mysql.plain_text import in_order
from airflow_ft.sinks.mysql.server_texts import Repertoire
from airflow_ft.sinks.mysql.session import Session
from airflow_ft.sinks.mysql.setup import verify_grants
from airflow_ft.sinks.mysql.spec import MySqlSink
from airflow_ft.sinks.mysql.upsert_verify import verify_upserts
from airflow_ft.sinks.mysql.vote import Target, read_target, unfit_rows
from airflow_ft.sinks.set_aside import DeliveredLog
from airflow_ft.sinks.view import OneFile

LIMITS = Limits(answer=6 * 3600)  # one statement reads a whole table
_Sent = tuple[Delivered, str, MySqlSink]  # a delivery to one of its sinks, as its plan describes it


def verify(
    delivered: Sequence[Delivered], plan: ParticipantPlan, connection: ConnectionInfo, wal: WalReader
) -> list[SinkReport]:
    """Return one report for each table. Other rows are not counted if a key leads to the rows of the log.

    SinkUnavailableError, SinkAccessError, WalCorruptError: nothing could be compared.
    """
    log = DeliveredLog.of(wal, delivered)
    groups = _by_target(delivered, plan.name, connection.schema)
    return [_report(sent, plan.name, connection, log) for sent in groups]


def _by_target(delivered: Sequence[Delivered], participant: str, schema: str) -> list[list[_Sent]]:
    """Compare what went into one table under any names of plans and sinks. Upserts are compared separately."""
    groups: dict[tuple[str, str], list[_Sent]] = {}
    for each in delivered:
        plan = each.plan.participant(participant)
        for name, given in plan.sinks.items():
            sink = MySqlSink.from_settings(plan.name, plan.strategy, dict(given))
            by_key = canonical_json([name, dict(given)]) if plan.strategy == "upsert" else ""
            groups.setdefault((_table(sink.table, schema), by_key), []).append((each, name, sink))
    return list(groups.values())


def _table(name: str, schema: str) -> str:
    return TableName.parse(name).within(schema).sql


def _report(sent: Sequence[_Sent], participant: str, connection: ConnectionInfo, log: DeliveredLog) -> SinkReport:
    """Report on a table; one that cannot be read has a report, too, so that the others are compared."""
    table = TableName.parse(sent[-1][2].table).within(connection.schema)
    found: AirflowFtError
    try:
        return _verify(sent, participant, connection, log)
    except DeclinedError as error:  # the table was altered since, and no longer holds each value
        report = _begun(sent, participant, table)
        return replace(report, error=f"cannot compare the table: {error.what}", error_code=error.code)
    except SinkAccessError as error:
        found = error
    except pymysql.err.MySQLError as error:
        found = failure(error, f"comparing table {table}")
        if found.code != PRIVILEGE_MISSING:
            raise found.located() from error
        found.remedy = f"Run `{'; '.join(verify_grants([table], connection))}`."
    if found.code != PRIVILEGE_MISSING and not isinstance(found, UnfitTargetError):
        raise found
    found = found.located(participant=participant)
    return replace(_begun(sent, participant, table), error=f"{found}", error_code=found.code)


def _begun(sent: Sequence[_Sent], participant: str, table: TableName) -> SinkReport:
    return SinkReport.begun(participant, (name for _, name, _ in sent), str(table), _delivered(sent))


def _delivered(sent: Sequence[_Sent]) -> list[Delivered]:
    return once((each, name) for each, name, _ in sent)


def _verify(sent: Sequence[_Sent], participant: str, connection: ConnectionInfo, log: DeliveredLog) -> SinkReport:
    delivered, (_, newest, sink) = _delivered(sent), sent[-1]
    with closing(Session(connection, LIMITS)) as session:
        target = read_target(session, newest, sink, connection.schema)
        report = _begun(sent, participant, target.table.name)
        if sink.strategy == "upsert":
            ledger = ledger_of({newest: sink}, connection.schema, delivered[-1].plan.pipeline, participant)
            table = _table(sink.table, connection.schema)
            deletes = may_delete(delivered, participant, lambda given: _table(given["table"], connection.schema), table)
            return verify_upserts(report, session, target, sink, delivered, ledger, log, LIMITS, deletes)
        parts = _parts(sent, target, log)
        key = usable_key(session, target.table, {part.columns for part in parts})
        report = Comparison(session, target.table, key).report(report, parts)
        if not key and not report.error:
            rows = int(session.value(f"SELECT COUNT(*) FROM {target.table.name.sql}"))
            other = max(0, rows - (report.expected - report.missing) - report.repeated)
            report = replace(report, other=other)
        repertoires = target.to_judge(session).repertoires
    if report.is_complete and (why := _unheld(parts, repertoires)):  # the session may be over: the rows are read
        return replace(report, error=f"the table cannot hold the rows as they were delivered: {why}")
    return report


def _unheld(parts: Sequence[Part], repertoires: Mapping[str, Repertoire]) -> str:
    """Return why the table, as it is now, cannot hold a row that was delivered; "": it can.

    ALTER TABLE has converted such rows, and would convert the copy that they are compared with in the same way.
    """
    for part in parts:
        judging = replace(part.target, repertoires=repertoires)
        schema = part.view.schema(judging.sink)
        for written in judging.written(schema):
            column = judging.table.columns[written.name.lower()]
            verdict = judging.judge(schema.field(written.source).type, column, written.source)
            if isinstance(verdict, Objection):
                return f"{verdict.found} ({judging.table.name}.{column.name})"
        for batch in part.view.batches(judging.sink, part.view.file):
            for reason in unfit_rows(judging, batch).values():
                return f"{reason} (checkpoint {part.number}, {part.view.file.path})"
    return ""


def _parts(sent: Sequence[_Sent], target: Target, log: DeliveredLog) -> list[Part]:
    """The files of the log, each with the columns that were delivered of it: a job may have added one."""
    parts: list[Part] = []
    for each, name, _ in sent:
        for segment in each.plan.segments:
            reader = log.open(segment)
            if name not in reader.sinks() or not reader.files(name):
                continue
            own = replace(target, sink=name)
            columns = frozenset(column.name for column in own.written(reader.schema(name)))
            ordered = in_order(reader, own)
            parts += [Part(each.plan.number, OneFile(ordered, file), own, columns) for file in reader.files(name)]
    return parts
