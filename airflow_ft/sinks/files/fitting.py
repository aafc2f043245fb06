"""Would the folder take rows of these schemas? Asked before Spark computes any."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import AirflowFtError
from airflow_ft.protocol.model import ParticipantPlan
from airflow_ft.sinks.files.columns import schema_problems as column_problems_of
from airflow_ft.sinks.files.failures import telling
from airflow_ft.sinks.files.ledger import Ledger
from airflow_ft.sinks.files.spec import FilesSink


def schema_problems(
    plan: ParticipantPlan, connection: ConnectionInfo, schemas: Mapping[str, pa.Schema]
) -> Sequence[AirflowFtError]:
    """See `airflow_ft.sinks.fitting`."""
    found: list[AirflowFtError] = []
    for name, schema in schemas.items():
        sink = FilesSink.from_settings(plan.name, plan.sinks[name])
        with telling(sink.folder, participant=plan.name):
            before = Ledger.of(sink.folder, connection).newest_layout()
        found += column_problems_of(sink, schema, before, name)
    return found
