"""What the Thrift gateway, its tables and families must be, and the columns that row keys and cells can hold."""

from __future__ import annotations

from collections.abc import Generator
from functools import partial

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.model import ParticipantPlan
from airflow_ft.sinks.base.keyed import judged
from airflow_ft.sinks.base.requirements import ASK_SECONDS, Finding, Requirement
from airflow_ft.sinks.hbase import rows
from airflow_ft.sinks.hbase.participant import Documents
from airflow_ft.sinks.hbase.server import (
    Client,
    address,
    has_namespace,
    ledger_table,
    literal,
    namespace_of,
    no_namespace,
    opened,
    require_ledger,
    require_table,
    translated,
)
from airflow_ft.sinks.hbase.spec import HBaseSink


def required(pipeline: str, plan: ParticipantPlan, connection: ConnectionInfo) -> Generator[Requirement]:
    """Yield what must be there before `prepare`: the sink's own table, or its place; and the tables of the sinks.

    Raises:
        SinkUnavailableError, SinkAccessError: the gateway cannot be asked now.
    """
    asking = translated(connection, participant=plan.name)
    with opened(connection, ASK_SECONDS, participant=plan.name) as client:
        yield Requirement("ledger", asking(partial(_ledger, client, pipeline, plan, connection)))
        for name, sink in HBaseSink.all_of(plan).items():
            yield Requirement(f"table {sink.table}", asking(partial(_table, client, sink, connection)), name)


def _ledger(client: Client, pipeline: str, plan: ParticipantPlan, connection: ConnectionInfo) -> Finding:
    table = ledger_table(connection)
    if not require_ledger(client, address(connection), table):
        text = f"missing; the first `prepare` creates table {table}"
        namespace = namespace_of(table)
        if namespace and not (exists := has_namespace(client, namespace)):
            if exists is False:
                raise no_namespace(address(connection), namespace)
            text += f", if `list_namespace` in the HBase shell shows {namespace}"
        return Finding(text, owner="")
    head = Documents(client, connection, plan.name).read(pipeline)[0].head()
    return Finding(f"exists as table {table}", owner="" if head is None else head.installation)


def _table(client: Client, sink: HBaseSink, connection: ConnectionInfo) -> Finding:
    expiring = require_table(client, address(connection), sink.table, sink.families)
    warnings = [
        (
            f"cells of family {family} expire after {seconds} s, so delivered rows disappear",
            f"Nothing, if that is meant. Else run in the HBase shell: alter '{sink.table}',"
            f" {{NAME => {literal(family)}, TTL => 'FOREVER'}}.",
        )
        for family, seconds in expiring.items()
    ]
    return Finding(f"exists, with the families {', '.join(sink.families)}", warnings=warnings)


schema_problems = partial(judged, HBaseSink, rows.schema_problems)
