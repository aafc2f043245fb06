"""What `airflow ft setup` makes for a Delta table: nothing, since columns are known when the first rows are there."""

from __future__ import annotations

from collections.abc import Iterable

from airflow_ft.core.model import ParticipantPlan
from airflow_ft.core.ports import ConnectionInfo


def create(pipeline: str, plan: ParticipantPlan, connection: ConnectionInfo) -> str:
    """Nothing is lacking."""
    return ""


def describe(pipeline: str, plan: ParticipantPlan, connection: ConnectionInfo) -> Iterable[str]:
    """That nothing has to be made."""
    tables = ", ".join(str(settings["table"]) for settings in plan.sinks.values())
    yield f"-- {plan.name}: {tables} is made by the first checkpoint, with the columns of its rows."
