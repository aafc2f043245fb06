"""Permissions of the connection's role. They are tried by statements that do nothing: they name no key, or no type.

A node checks the permission before it looks for keys and types. This needs no right to list permissions. It is right
for roles, for superusers, and for nodes that allow everything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from cassandra import InvalidRequest, Unauthorized
from cassandra.cluster import Session
from cassandra.protocol import SyntaxException

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import AirflowFtError
from airflow_ft.sinks.base.failures import ServerFault
from airflow_ft.sinks.base.sql_names import quoted
from airflow_ft.sinks.cassandra.server import address, documents_sql
from airflow_ft.sinks.cassandra.spec import DOCUMENTS
from airflow_ft.sinks.cassandra.table import Table

_NO_TYPE = "airflow_ft: no such type"
PERMISSIONS = ("SELECT", "MODIFY")


def grant(permission: str, table: str, login: str | None) -> str:
    """Return the statement that grants a permission. `table` is written as in a statement, with its quotes."""
    return f"GRANT {permission} ON TABLE {table} TO {quoted(login or '<role>')}"


def lacking(
    session: Session, connection: ConnectionInfo, table: Table, permissions: Iterable[str] = PERMISSIONS
) -> Iterator[tuple[str, AirflowFtError]]:
    """Yield each permission that a node refuses, with the error. Where the server does not say, yield nothing."""
    nothing = " AND ".join(f"{quoted(column)} IN ()" for column in table.partition)
    doing = {"SELECT": f"SELECT {quoted(table.key[0])}", "MODIFY": "DELETE"}
    for permission in permissions:
        try:
            session.execute(f"{doing[permission]} FROM {table.cql} WHERE {nothing}")
        except Unauthorized as error:
            server = address(connection)
            remedy = f"Run `{grant(permission, table.cql, connection.login)};`."
            if permission == "MODIFY":
                remedy += " If the table has materialized views, grant also SELECT on it, and MODIFY on each view."
            place = f"{table.keyspace}.{table.name}"
            found = ServerFault.PRIVILEGE.error(
                f"Cassandra at {server}", f"{error}".rstrip("."), remedy, server=server, table=place
            )
            yield permission, found
        except (InvalidRequest, SyntaxException):  # a server that knows no empty IN; the delivery finds out
            continue


def require_creation(session: Session, connection: ConnectionInfo, keyspace: str) -> None:
    """SinkAccessError: the role may not create the sink's own table in this keyspace."""
    table = f"{quoted(keyspace)}.{quoted(DOCUMENTS)}"
    try:
        session.execute(f"CREATE TABLE {table} (pipeline text PRIMARY KEY, document {quoted(_NO_TYPE)})")
    except Unauthorized as error:
        server = address(connection)
        remedy = (
            f"Let an administrator run `{documents_sql(keyspace)};`, and grant SELECT and MODIFY on it (`airflow ft"
            " setup PIPELINE --print`). Or run"
            f" `GRANT CREATE ON KEYSPACE {quoted(keyspace)} TO {quoted(connection.login or '<role>')};`."
        )
        place = f"{keyspace}.{DOCUMENTS}"
        raise ServerFault.PRIVILEGE.error(
            f"Cassandra at {server}", f"{error}".rstrip("."), remedy, server=server, table=place
        ) from None
    except (InvalidRequest, SyntaxException):  # there is no such type: the permission is there
        pass
