"""Set up a MySQL participant before its first delivery: statements for a DBA, or the created ledger."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.protocol.model import ParticipantPlan
from airflow_ft.sinks.base.sql_ledger import PRIVILEGES
from airflow_ft.sinks.base.sql_names import TABLES_FIRST
from airflow_ft.sinks.mysql.failures import translated_errors
from airflow_ft.sinks.mysql.ledger import Ledger
from airflow_ft.sinks.mysql.limits import Limits
from airflow_ft.sinks.mysql.naming import TableName, literal, quote
from airflow_ft.sinks.mysql.requirements import ensure_ledger
from airflow_ft.sinks.mysql.session import Session
from airflow_ft.sinks.mysql.spec import MySqlSink


def statements(pipeline: str, plan: ParticipantPlan, connection: ConnectionInfo) -> Sequence[str]:
    """SQL, statement by statement, that lets the connection's user deliver without the right to create tables.

    Nothing is asked of the server. ConfigurationError: no schema is named for the ledger or for a table.
    """
    ledger, sinks = _ledger(pipeline, plan, connection), MySqlSink.all_of(plan)
    account = _account(connection)
    granted: dict[str, Sequence[str]] = dict.fromkeys((ledger.table, ledger.head_table), PRIVILEGES)
    for sink in sinks.values():
        table = TableName.parse(sink.table).within(connection.schema)
        if not table.schema:
            raise _lacking(plan, f"table {table}")
        granted[table.sql] = tuple(dict.fromkeys((*granted.get(table.sql, ()), *sink.privileges)))
    found = [*ledger.ddl(), *(f"GRANT {', '.join(what)} ON {where} TO {account}" for where, what in granted.items())]
    if plan.strategy == "xa":
        # A comment for MariaDB, which asks for no privilege here and does not know this one.
        found.append(f"/*!80000 GRANT XA_RECOVER_ADMIN ON *.* TO {account} */")
    return found


def describe(pipeline: str, plan: ParticipantPlan, connection: ConnectionInfo) -> Iterator[str]:
    """`statements` as a text to be reviewed and run."""
    yield f"-- Connection {plan.name}: run these as a user who may create tables and grant privileges."
    yield TABLES_FIRST
    yield "-- Replace '%' by the hosts of the workers."
    for statement in statements(pipeline, plan, connection):
        yield f"{statement};"
    yield "-- For `airflow ft verify`:"
    tables = (TableName.parse(sink.table).within(connection.schema) for sink in MySqlSink.all_of(plan).values())
    for statement in verify_grants(dict.fromkeys(tables), connection):
        yield f"{statement};"


def verify_grants(tables: Iterable[TableName], connection: ConnectionInfo) -> Sequence[str]:
    """Return the statements that `airflow ft verify` needs beside those of a delivery."""
    account, tables = _account(connection), list(tables)
    schemas = dict.fromkeys(table.schema for table in tables)
    return [
        *(f"GRANT SELECT ON {table.sql} TO {account}" for table in tables),
        *(f"GRANT CREATE TEMPORARY TABLES ON {quote(schema)}.* TO {account}" for schema in schemas),
    ]


def _account(connection: ConnectionInfo) -> str:
    return f"{literal(connection.login or '<user>')}@'%'"


def create(pipeline: str, plan: ParticipantPlan, connection: ConnectionInfo) -> str:
    """Makes the ledger with the connection's own user, as its first prepare would; "" when it was there.

    SinkAccessError: that user may not, or lacks a privilege on the ledger.
    """
    ledger = _ledger(pipeline, plan, connection)
    with (
        translated_errors("making the ledger", participant=plan.name),
        closing(Session(connection, Limits())) as session,
    ):
        return ensure_ledger(session, ledger)


def _ledger(pipeline: str, plan: ParticipantPlan, connection: ConnectionInfo) -> Ledger:
    schema = next((s.ledger_schema for s in MySqlSink.all_of(plan).values() if s.ledger_schema), connection.schema)
    if not schema:
        raise _lacking(plan, "the ledger")
    return Ledger(schema, pipeline, plan.name)


def _lacking(plan: ParticipantPlan, what: str) -> ConfigurationError:
    return ConfigurationError(
        f"neither the connection nor the sink names the schema of {what}.",
        code="argument_missing",
        remedy=f"Set the schema of connection {plan.name}, or write 'schema.table' and MySqlSink(ledger_schema=...).",
        participant=plan.name,
        argument="schema",
    )
