"""Whether a server could be delivered into now; see `airflow_ft.sinks.ready`."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import AirflowFtError
from airflow_ft.protocol.model import ParticipantPlan
from airflow_ft.sinks.fitting import ASK_SECONDS
from airflow_ft.sinks.redis.server import address, opened, requirements
from airflow_ft.sinks.redis.spec import RedisSink


def lacks(pipeline: str, plan: ParticipantPlan, connection: ConnectionInfo) -> Sequence[AirflowFtError]:
    """Raise what `prepare` would: no server, no login, a cluster, a replica, unsafe settings."""
    unsafe = any(sink.allow_unsafe_durability for sink in RedisSink.all_of(plan).values())
    with opened(connection, ASK_SECONDS, participant=plan.name) as client:
        requirements(client, address(connection), unsafe=unsafe)
    return []
