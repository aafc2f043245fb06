"""Every preflight of a PostgreSQL participant, in words: nothing stays, no head is raised, no row is sent."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial

import psycopg2

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.doctor import Check, Examination
from airflow_ft.protocol.errors import AirflowFtError
from airflow_ft.protocol.model import Fence, ParticipantPlan
from airflow_ft.protocol.numbers import count_text
from airflow_ft.protocol.write_ahead_log import SegmentReader
from airflow_ft.sinks.base.prepared import PROBE_NUMBER
from airflow_ft.sinks.base.requirements import text_of
from airflow_ft.sinks.base.slices import label
from airflow_ft.sinks.postgres.catalog import closed_sequences, read_table, unpreparable
from airflow_ft.sinks.postgres.changes import Changes, version_of
from airflow_ft.sinks.postgres.failures import translated_errors
from airflow_ft.sinks.postgres.gid import end_prepared, listed, new_gid, places
from airflow_ft.sinks.postgres.ledger import Ledger
from airflow_ft.sinks.postgres.naming import TableName
from airflow_ft.sinks.postgres.requirements import requirements_of, schema_problems_of
from airflow_ft.sinks.postgres.session import Limits, Session
from airflow_ft.sinks.postgres.spec import PostgresSink

log = logging.getLogger(__name__)

_SECONDS = 10.0
_CONNECTIONS = 2


def examine(
    pipeline: str,
    plan: ParticipantPlan,
    connection: ConnectionInfo,
    rows: Sequence[SegmentReader],
    installation: str | None = None,
) -> list[Check]:
    """Return the checks of one database. `rows` are published segments, whose columns are judged as `prepare` would.

    Without `installation` (the decision log cannot be read) nothing is prepared, because its owner would be unknown.
    """
    exam = Examination(f"connection {plan.name}")
    sinks = exam.attempt("settings", lambda: PostgresSink.all_of(plan))
    session = exam.attempt("connect", translated_errors("connecting")(lambda: Session(connection, Limits())))
    if sinks is None or session is None:
        return exam.checks
    with closing(session):
        width = max(sink.branches for sink in sinks.values())
        exam.attempt("server", translated_errors("checking the server")(lambda: _server(exam, session, width)))
        for requirement in requirements_of(session, pipeline, plan, partial(_created, session)):
            if requirement.report(exam) and requirement.sink:
                name, sink = requirement.sink, sinks[requirement.sink]
                exam.attempt(
                    requirement.name,
                    translated_errors("reading the table")(partial(_table, exam, session, name, sink, rows)),
                )
        if plan.strategy == "prepared":
            look = translated_errors("checking the server")(partial(_room, exam, session, width))
            exam.attempt("branches", look)
        if plan.strategy == "prepared" and installation is not None:
            fence = Fence(pipeline, installation, 0, 0)
            took = exam.attempt(
                "prepared transactions",
                translated_errors("preparing a transaction")(lambda: _try(session, connection, fence, plan)),
            )
            if took is not None:
                exam.ok("prepared transactions", f"prepared, found and rolled back one in {took:.0f} ms")
    return exam.checks


def _server(exam: Examination, session: Session, branches: int) -> None:
    user, database = session.rows("SELECT current_user, current_database()")[0]
    exam.ok("connect", f"PostgreSQL {session.product}, database {database}, as {user}")
    needed = max(_CONNECTIONS, branches + 1)
    limited = session.rows(
        "SELECT what, number FROM (SELECT format('ROLE %%I', rolname), rolconnlimit FROM pg_roles WHERE rolname ="
        " session_user AND NOT rolsuper UNION ALL SELECT format('DATABASE %%I', datname), datconnlimit FROM pg_database"
        " WHERE datname = current_database() AND NOT (SELECT rolsuper FROM pg_roles WHERE rolname = session_user))"
        " AS limits (what, number) WHERE number BETWEEN 0 AND %s",
        (needed - 1,),
    )
    for what, number in limited:
        exam.problem(
            "connections",
            f"{what} may open {count_text(number, 'connection')}; a task needs {needed} while it"
            " loads branches or ends older sessions",
            f"Run `ALTER {what} CONNECTION LIMIT -1`, or allow {needed} for each concurrent task.",
        )


def _room(exam: Examination, session: Session, branches: int) -> None:
    """Warn where a checkpoint's branches never find room: its rows are then sent after the decision."""
    limit, share = places(session)
    if limit and branches > share:
        exam.warn(
            "branches",
            f"branches={branches}, and all pipelines may hold {share} of max_prepared_transactions = {limit}. So a"
            " checkpoint with as many branches is not prepared: its rows are sent after the decision, by one process",
            f"Run `ALTER SYSTEM SET max_prepared_transactions = {branches * 2}` or more, and restart the server.",
        )


def _created(session: Session, ledger: Ledger) -> None:
    """Create the ledger and undo it, because an event trigger may refuse it."""
    with _undone(session):
        ledger.create()


def _try(session: Session, connection: ConnectionInfo, fence: Fence, plan: ParticipantPlan) -> float:
    """Prepares a transaction that changes nothing; the milliseconds until it was rolled back.

    It is rolled back also if a step fails; where the server is gone, the next `prepare` rolls it back.
    """
    began = time.monotonic()
    gid = new_gid(fence, plan.name, PROBE_NUMBER, label(1))
    try:
        session.begin()
        session.value("SELECT txid_current()")
        session.run(f"PREPARE TRANSACTION {gid.sql}")
        if gid not in listed(session, gid.owner) or not end_prepared(session, gid, "ROLLBACK", _SECONDS):
            log.info("a running task rolled back the probe")
    except BaseException:
        with suppress(psycopg2.Error, AirflowFtError), closing(Session(connection, Limits())) as other:
            end_prepared(other, gid, "ROLLBACK", _SECONDS)
        with suppress(psycopg2.Error):
            session.run("ROLLBACK")
        raise
    return (time.monotonic() - began) * 1000


@contextmanager
def _undone(session: Session) -> Iterator[None]:
    """A transaction that is rolled back."""
    session.begin()
    try:
        yield
    finally:
        if not session.is_free:
            with suppress(psycopg2.Error):
                session.end("ROLLBACK")


def _table(exam: Examination, session: Session, name: str, sink: PostgresSink, rows: Sequence[SegmentReader]) -> None:
    table = read_table(session, TableName.parse(sink.table), name)
    if sink.strategy == "prepared":
        for trigger, function in unpreparable(session, table):
            exam.problem(
                f"table {table.name}",
                f"trigger {trigger} calls {function}, which seems to use NOTIFY or a temporary table: the server cannot"
                " prepare such a transaction",
                "Choose strategy 'local', or drop the trigger.",
            )
    if sink.strategy == "upsert":
        with _undone(session):
            version = version_of(table, sink, name)
            names = [column for column in table.columns if column != version]
            changes = Changes.of(session, sink, table, names, name)
            changes.create()  # an event trigger may refuse it
            changes.drop()
    judged = [reader for reader in rows if name in reader.sinks()]
    for reader in judged:
        problems = list(schema_problems_of(session, sink, reader.schema(name), name))
        for problem in problems:
            exam.problem(f"rows for {table.name}", text_of(problem), problem.remedy, problem.code, problem.sink)
        if not problems:
            exam.ok(f"rows for {table.name}", f"the columns of checkpoint {reader.segment.number} fit")
    if not judged:
        for column, sequence in closed_sequences(session, table):
            exam.warn(
                f"table {table.name}",
                f"column {column!r} is filled by sequence {sequence}, which this user may not use",
                f"Run `GRANT USAGE ON SEQUENCE {sequence} TO ...` for this user, unless the rows have that column.",
            )
        exam.ok(f"rows for {table.name}", "no published rows, so the columns were not compared")
