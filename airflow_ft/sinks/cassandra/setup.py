"""What a Cassandra participant needs before its first delivery: statements, or the table itself."""

from __future__ import annotations

from collections.abc import Iterator

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.model import ParticipantPlan
from airflow_ft.sinks.base.sql_names import TABLES_FIRST, quoted
from airflow_ft.sinks.cassandra.privileges import PERMISSIONS, grant
from airflow_ft.sinks.cassandra.server import (
    create_documents,
    documents_exist,
    documents_sql,
    keyspace_of,
    keyspace_sql,
    opened,
)
from airflow_ft.sinks.cassandra.spec import DOCUMENTS, CassandraSink


def describe(pipeline: str, plan: ParticipantPlan, connection: ConnectionInfo) -> Iterator[str]:
    """CQL that lets the connection's user deliver and verify. Asks nothing of the server."""
    own = keyspace_of(connection)
    yield f"-- Connection {plan.name}: run this with cqlsh, as a role that may create tables and grant permissions."
    tables = {(own, DOCUMENTS), *(sink.place(own) for sink in CassandraSink.all_of(plan).values())}
    yield "-- Replicas as the cluster has nodes: 3 for each datacenter, but 1 if there is a single node."
    for keyspace in sorted({keyspace for keyspace, _ in tables}):
        yield f"{keyspace_sql(keyspace)};"
    yield f"{documents_sql(own)};"
    yield TABLES_FIRST
    for keyspace, name in sorted(tables):
        for permission in PERMISSIONS:
            yield f"{grant(permission, f'{quoted(keyspace)}.{quoted(name)}', connection.login)};"
    yield f"{grant('SELECT', 'system_views.settings', connection.login)};"
    yield "-- In cassandra.yaml of each node: commitlog_sync: batch (or group)"


def create(pipeline: str, plan: ParticipantPlan, connection: ConnectionInfo) -> str:
    """Create the sink's own table, as its first prepare would; "" when it was there."""
    own = keyspace_of(connection)
    with opened(connection, participant=plan.name) as session:
        if documents_exist(session, own):
            return ""
        create_documents(session, own)
    return f"{own}.{DOCUMENTS}"
