"""Would the tables take rows of these schemas? Asked before Spark computes any."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from airflow_ft.core.errors import AirflowFtError
from airflow_ft.core.model import ParticipantPlan
from airflow_ft.core.ports import ConnectionInfo
from airflow_ft.sinks.sqlite.columns import misfits as misfits_of_table
from airflow_ft.sinks.sqlite.columns import read_columns
from airflow_ft.sinks.sqlite.file import SqliteFile
from airflow_ft.sinks.sqlite.spec import SqliteSink


def misfits(
    plan: ParticipantPlan, connection: ConnectionInfo, schemas: Mapping[str, pa.Schema]
) -> Sequence[AirflowFtError]:
    """See `airflow_ft.sinks.fitting`."""
    found: list[AirflowFtError] = []
    with SqliteFile.of(connection).opened(participant=plan.name) as db:
        for name, schema in schemas.items():
            sink = SqliteSink.from_settings(plan.name, plan.sinks[name])
            columns = read_columns(db, sink.table) if db is not None else {}
            will_be_made = not columns and sink.create
            found += misfits_of_table(sink.table, None if will_be_made else columns, schema, name)
    return found
