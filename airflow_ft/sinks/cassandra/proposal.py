"""Tables that would take what a job gives: CREATE TABLE for Cassandra."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.model import ParticipantPlan
from airflow_ft.sinks.base.proposal import no_column
from airflow_ft.sinks.base.sql_names import quoted
from airflow_ft.sinks.cassandra.columns import IN_KEYS, TYPES, fits
from airflow_ft.sinks.cassandra.spec import CassandraSink
from airflow_ft.sinks.cassandra.table import written

_KEY = "-- Correct PRIMARY KEY: its columns must be those by which rows replace each other. The rows do not say which."
_OTHERS = [kind for kind in TYPES if kind not in ("ascii", "uuid", "timeuuid")]
"""The narrowest come first. Texts become `text`."""


def propose(plan: ParticipantPlan, connection: ConnectionInfo, columns: Mapping[str, pa.Schema]) -> Iterator[str]:
    """A statement for each sink whose columns are known. Its key is a guess: the first column that can be one."""
    sinks = CassandraSink.all_of(plan)
    for name, schema in columns.items():
        yield _create_table(sinks[name], connection.schema or "<keyspace>", schema)


def _create_table(sink: CassandraSink, own: str, schema: pa.Schema) -> str:
    comments, kinds = [_KEY], dict[str, str]()
    for column in written(sink, schema.names):
        given = schema.field(column).type
        kind = next((each for each in _OTHERS if fits(given, each)), "")
        if kind:
            kinds[column] = kind
        else:
            comments.append(no_column(column, given))
    key = next((column for column, kind in kinds.items() if kind in IN_KEYS), "<key>")
    lines = [f"{quoted(column)} {kind}" for column, kind in kinds.items()] + [f"PRIMARY KEY ({quoted(key)})"]
    body = ",\n".join(f"  {line}" for line in lines)
    table = ".".join(map(quoted, sink.place(own)))
    return "\n".join([*comments, f"CREATE TABLE IF NOT EXISTS {table} (\n{body}\n);"])
