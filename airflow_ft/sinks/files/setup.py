"""What `airflow ft setup` makes for a folder: nothing, since the first checkpoint makes all of it."""

from __future__ import annotations

from collections.abc import Iterable

from airflow_ft.core.model import ParticipantPlan
from airflow_ft.core.ports import ConnectionInfo
from airflow_ft.sinks.files.spec import is_object_store


def create(pipeline: str, plan: ParticipantPlan, connection: ConnectionInfo) -> str:
    """Nothing is lacking."""
    return ""


def describe(pipeline: str, plan: ParticipantPlan, connection: ConnectionInfo) -> Iterable[str]:
    """That nothing has to be made."""
    folders = [str(settings["folder"]) for settings in plan.sinks.values()]
    bucket = " Its bucket has to be there." if any(map(is_object_store, folders)) else ""
    yield f"-- {plan.name}: {', '.join(folders)} is made by the first checkpoint.{bucket}"
