"""Requirements on a Redis server, and the columns that its keys and values can hold."""

from __future__ import annotations

from collections.abc import Generator
from functools import partial

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.model import ParticipantPlan
from airflow_ft.sinks.base.failures import shown
from airflow_ft.sinks.base.keyed import judged
from airflow_ft.sinks.base.requirements import ASK_SECONDS, Finding, Requirement
from airflow_ft.sinks.redis import rows
from airflow_ft.sinks.redis.server import ANSWER_SECONDS, address, check_server, opened
from airflow_ft.sinks.redis.spec import RedisSink


def required(pipeline: str, plan: ParticipantPlan, connection: ConnectionInfo) -> Generator[Requirement]:
    """Yield what must be there before `prepare`: a primary, which is no cluster and forgets nothing."""
    look = partial(_server, plan, connection)
    yield Requirement("server", partial(look, seconds=ASK_SECONDS), closer=partial(look, seconds=ANSWER_SECONDS))


def _server(plan: ParticipantPlan, connection: ConnectionInfo, *, seconds: float) -> Finding:
    with opened(connection, seconds, participant=plan.name) as client:
        found = check_server(client, address(connection), RedisSink.all_of(plan).values())
    risks = shown(found["unsafe"])
    return Finding(f"Redis {found['redis']} at {address(connection)}" + (f", although {risks}" if risks else ""))


schema_problems = partial(judged, RedisSink, rows.schema_problems)
