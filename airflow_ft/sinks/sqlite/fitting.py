"""Would the tables take rows of these schemas? Asked before Spark computes any."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import AirflowFtError
from airflow_ft.protocol.model import ParticipantPlan
from airflow_ft.sinks.sqlite.columns import schema_problems as table_problems_of
from airflow_ft.sinks.sqlite.file import SqliteFile
from airflow_ft.sinks.sqlite.judging import exists, problems
from airflow_ft.sinks.sqlite.spec import SqliteSink


def schema_problems(
    plan: ParticipantPlan, connection: ConnectionInfo, schemas: Mapping[str, pa.Schema]
) -> Sequence[AirflowFtError]:
    """See `airflow_ft.sinks.fitting`."""
    found: list[AirflowFtError] = []
    with SqliteFile.of(connection).opened(participant=plan.name) as db:
        for name, schema in schemas.items():
            sink = SqliteSink.from_settings(plan.name, plan.sinks[name])
            if db is not None and exists(db, sink.table):
                found += problems(db, sink.table, schema, name)
            else:
                found += table_problems_of(sink.table, None if sink.create else {}, schema, name)
    return found
