"""Tables that would take what a job gives: CREATE TABLE for SQLite."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.model import ParticipantPlan
from airflow_ft.sinks.arrow import decoded_type
from airflow_ft.sinks.base.proposal import no_column
from airflow_ft.sinks.sqlite.columns import kind_of, table_of
from airflow_ft.sinks.sqlite.spec import SqliteSink


def propose(plan: ParticipantPlan, connection: ConnectionInfo, columns: Mapping[str, pa.Schema]) -> Iterator[str]:
    """A statement for each sink whose columns are known. A column that SQLite lacks a type for becomes a comment."""
    sinks = SqliteSink.all_of(plan)
    for name, schema in columns.items():
        plain = [field.with_type(decoded_type(field.type)) for field in schema]
        lines = [no_column(field.name, field.type) for field in plain if not kind_of(field.type)]
        if fitting := [field for field in plain if kind_of(field.type)]:
            lines.append(f"{table_of(sinks[name].table, pa.schema(fitting), 'IF NOT EXISTS ')};")
        yield "\n".join(lines)
