"""What HBase needs before the first delivery: tables, families and grants, for an administrator."""

from __future__ import annotations

from collections.abc import Iterator

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.model import ParticipantPlan
from airflow_ft.sinks.hbase.server import FAMILY, creation, ledger_table, literal, make_ledger, namespace_of, opened
from airflow_ft.sinks.hbase.spec import HBaseSink


def describe(pipeline: str, plan: ParticipantPlan, connection: ConnectionInfo) -> Iterator[str]:
    """Commands that create what is missing, and let the gateway's user deliver and verify. Asks nothing of HBase."""
    ledger = ledger_table(connection)
    tables: dict[str, set[str]] = {}
    for sink in HBaseSink.all_of(plan).values():
        tables.setdefault(sink.table, set()).update(sink.families)
    yield f"# Connection {plan.name}: run this in the HBase shell, as a user who may create tables."
    for namespace in sorted(filter(None, {connection.schema, *map(namespace_of, tables)})):
        yield f"create_namespace {literal(namespace)}  # unless it exists"
    yield f"create {literal(ledger)}, {{NAME => '{FAMILY}', VERSIONS => 1, TTL => 'FOREVER'}}"
    for table, families in sorted(tables.items()):
        yield "# If the table exists, `alter` instead of `create`; docs/hbase.md says why."
        yield creation(table, [*families])
    yield "# Where HBase checks permissions, put the gateway's user for USER. C lets it read the families:"
    for table in (ledger, *sorted(tables)):
        yield f"grant 'USER', 'RWC', {literal(table)}"


def create(pipeline: str, plan: ParticipantPlan, connection: ConnectionInfo) -> str:
    """Create the sink's own table where it is missing. Return its name; "": it was there."""
    with opened(connection, participant=plan.name) as client:
        return f"table {ledger_table(connection)}" if make_ledger(client, connection) else ""
