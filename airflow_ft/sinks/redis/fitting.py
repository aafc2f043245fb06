"""Whether rows of these columns could be written; see `airflow_ft.sinks.fitting`. Asks nothing of the server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import AirflowFtError
from airflow_ft.protocol.model import ParticipantPlan
from airflow_ft.sinks.redis import rows
from airflow_ft.sinks.redis.spec import RedisSink


def schema_problems(
    plan: ParticipantPlan, connection: ConnectionInfo, schemas: Mapping[str, pa.Schema]
) -> Sequence[AirflowFtError]:
    """Return why rows with these columns do not fit."""
    sinks = RedisSink.all_of(plan)
    return [each for name, schema in schemas.items() for each in rows.schema_problems(sinks[name], schema, name)]
