"""Set up a PostgreSQL participant before its first delivery: statements for a DBA, or the created ledger."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from itertools import count

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.model import ParticipantPlan
from airflow_ft.sinks.base.sql_ledger import HEAD, LEDGER, PRIVILEGES
from airflow_ft.sinks.base.sql_names import TABLES_FIRST, quoted
from airflow_ft.sinks.postgres.catalog import SEQUENCES
from airflow_ft.sinks.postgres.failures import translated_errors
from airflow_ft.sinks.postgres.ledger import create_schema, ddl_of, ledger_of
from airflow_ft.sinks.postgres.naming import TableName
from airflow_ft.sinks.postgres.session import Limits, Session
from airflow_ft.sinks.postgres.spec import PostgresSink


def describe(pipeline: str, plan: ParticipantPlan, connection: ConnectionInfo) -> Iterator[str]:
    """SQL that lets the connection's user deliver without the right to create tables. Asks nothing of the server."""
    sinks = PostgresSink.all_of(plan)
    schema = next((sink.ledger_schema for sink in sinks.values() if sink.ledger_schema), "")
    user, database = quoted(connection.login or "<user>"), _database(connection)
    names = {TableName.parse(sink.table) for sink in sinks.values()}
    yield f"-- Connection {plan.name}: run this in its database, as a user who may create tables and grant privileges."
    if not schema or not all(name.schema for name in names):
        yield "-- The user's search path resolves names without a schema: SET search_path to the same first."
    schemas = sorted({schema, *(name.schema for name in names)} - {""})
    for each in schemas:
        yield f"{create_schema(each)};"
    for statement in ddl_of(schema):
        yield f"{statement};"
    yield TABLES_FIRST
    for each in schemas:
        yield f"GRANT USAGE ON SCHEMA {quoted(each)} TO {user};"
    for table in (HEAD, LEDGER):
        yield f"GRANT {', '.join(PRIVILEGES)} ON {TableName(schema, table).sql} TO {user};"
    for sink in sinks.values():
        yield f"GRANT {', '.join(sink.privileges)} ON {TableName.parse(sink.table).sql} TO {user};"
    for sink in sinks.values():
        yield _grant_sequences(TableName.parse(sink.table).sql, user)
    if plan.strategy == "upsert":
        yield f"GRANT TEMPORARY ON DATABASE {database} TO {user};"
    if plan.strategy == "prepared":
        yield "-- If it is 0: ALTER SYSTEM SET max_prepared_transactions = 20; and restart the server."
    yield "-- For `airflow ft verify`:"
    for statement in verify_grants(names, connection):
        yield f"{statement};"


def verify_grants(tables: Iterable[TableName], connection: ConnectionInfo) -> Sequence[str]:
    """Return the statements that `airflow ft verify` needs beside those of a delivery."""
    user = quoted(connection.login or "<user>")
    return [
        *(f"GRANT SELECT ON {table} TO {user}" for table in sorted(table.sql for table in tables)),
        f"GRANT TEMPORARY ON DATABASE {_database(connection)} TO {user}",
    ]


def _database(connection: ConnectionInfo) -> str:
    """Return the quoted name of the database; libpq's own default is the user's name."""
    return quoted(connection.schema or connection.login or "<database>")


def _grant_sequences(table: str, user: str) -> str:
    """Sequences that fill columns which rows leave out (serial), as far as the table is there."""
    name = table.replace("'", "''")
    found = " ".join(SEQUENCES.split()).format(table=f"'{name}'")
    program = (
        f"DECLARE each text; BEGIN FOR each IN SELECT sequence FROM ({found}) AS filling"
        f" LOOP EXECUTE 'GRANT USAGE ON SEQUENCE ' || each || ' TO {user.replace(chr(39), chr(39) * 2)}'; END LOOP; END"
    )
    mark = next(mark for more in count() if (mark := f"$ft{more or ''}$") not in program)  # a name may have the others
    return f"DO {mark} {program} {mark};"


def create(pipeline: str, plan: ParticipantPlan, connection: ConnectionInfo) -> str:
    """Makes the ledger with the connection's own user, as its first prepare would; "" when it was there.

    SinkAccessError: that user may not, or lacks a privilege on the ledger.
    """
    with (
        translated_errors("creating the ledger", participant=plan.name),
        closing(Session(connection, Limits())) as session,
    ):
        ledger = ledger_of(session, PostgresSink.all_of(plan), pipeline, plan.name)
        was_there = ledger.exists()
        ledger.create()
        return "" if was_there else f"{HEAD} and {LEDGER} in schema {ledger.schema}"
