"""Checks of `airflow ft doctor` for a server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.doctor import Check
from airflow_ft.protocol.model import ParticipantPlan
from airflow_ft.protocol.write_ahead_log import SegmentReader
from airflow_ft.sinks.base.examination import examine_places
from airflow_ft.sinks.redis.fitting import schema_problems
from airflow_ft.sinks.redis.server import address, opened, requirements


def examine(
    pipeline: str,
    plan: ParticipantPlan,
    connection: ConnectionInfo,
    rows: Sequence[SegmentReader],
    installation: str | None = None,
) -> list[Check]:
    """The checks of one server. `rows` are published segments, whose columns are judged as `prepare` would."""

    def described(settings: Mapping[str, Any]) -> str:
        with opened(connection, participant=plan.name) as client:
            notes = requirements(client, address(connection), unsafe=bool(settings["allow_unsafe_durability"]))
        unsafe = ", ".join(f"{name} {value}" for name, value in notes["unsafe"].items())
        return f"Redis {notes['redis']}, {settings['key']}" + (f", although {unsafe}" if unsafe else "")

    return examine_places(f"connection {plan.name}", "keys", plan, connection, rows, described, schema_problems)
