"""What `airflow ft doctor` tells of a Delta table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_ft.core.doctor import Check, Examination
from airflow_ft.core.errors import UnfitTargetError
from airflow_ft.core.model import ParticipantPlan
from airflow_ft.core.ports import ConnectionInfo, SegmentReader
from airflow_ft.sinks.base.places import room
from airflow_ft.sinks.delta.fitting import misfits
from airflow_ft.sinks.delta.place import Place
from airflow_ft.sinks.delta.spec import DeltaSink
from airflow_ft.sinks.delta.table import Snapshot, told
from airflow_ft.sinks.fitting import of_rows


def examine(
    pipeline: str,
    plan: ParticipantPlan,
    connection: ConnectionInfo,
    rows: Sequence[SegmentReader],
    installation: str | None = None,
) -> list[Check]:
    """The checks of one table. `rows` are published segments, whose columns are judged as `prepare` would."""
    exam = Examination(f"participant {plan.name}")
    for name, settings in plan.sinks.items():
        described = exam.attempt("table", lambda of=settings: _described(plan.name, of, connection))  # type: ignore[misc]
        if described is not None:
            exam.ok("table", f"{name}: {described}")
    published = rows if exam.checks[-1].verdict == "ok" else ()
    for problem in of_rows(exam, plan, connection, published, misfits):
        column = f"column {problem.column}: " if problem.column else ""
        exam.problem("columns", f"{column}{problem.what}", problem.remedy)
    return exam.checks


def _described(participant: str, settings: Mapping[str, Any], connection: ConnectionInfo) -> str:
    sink = DeltaSink.from_settings(participant, settings)
    place = Place.of(sink, connection)
    with told(place):
        there = Snapshot.newest(place)
        free = "" if place.is_bucket else f", {room(sink.path):,} bytes are free"
        if there is None and not sink.create:
            raise UnfitTargetError(
                f"there is no table {place}, and it is not made: create=False.",
                remedy="create it, or name another one.",
            )
        if there is None:
            return f"{place} will be made{free}"
        return f"{place}, version {there.version:,}, {len(there.columns)} columns{free}"
