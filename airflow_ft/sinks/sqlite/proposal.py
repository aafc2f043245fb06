"""Tables that would take what a job gives: CREATE TABLE for SQLite."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.model import ParticipantPlan
from airflow_ft.sinks.sqlite.columns import table_of
from airflow_ft.sinks.sqlite.spec import SqliteSink


def propose(plan: ParticipantPlan, connection: ConnectionInfo, columns: Mapping[str, pa.Schema]) -> Iterator[str]:
    """A statement for each sink whose columns are known."""
    sinks = SqliteSink.all_of(plan)
    for name, schema in columns.items():
        yield f"{table_of(sinks[name].table, schema, 'IF NOT EXISTS ')};"
