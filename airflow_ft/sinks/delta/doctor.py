"""Checks of `airflow ft doctor` for a Delta table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.doctor import Check
from airflow_ft.protocol.errors import together
from airflow_ft.protocol.model import ParticipantPlan
from airflow_ft.protocol.numbers import count_text
from airflow_ft.protocol.write_ahead_log import SegmentReader
from airflow_ft.sinks.base.examination import examine_places
from airflow_ft.sinks.base.places import room
from airflow_ft.sinks.delta.fitting import schema_problems
from airflow_ft.sinks.delta.place import Place
from airflow_ft.sinks.delta.spec import DeltaSink
from airflow_ft.sinks.delta.table import Snapshot, told


def examine(
    pipeline: str,
    plan: ParticipantPlan,
    connection: ConnectionInfo,
    rows: Sequence[SegmentReader],
    installation: str | None = None,
) -> list[Check]:
    """The checks of one table. `rows` are published segments, whose columns are judged as `prepare` would."""
    described = partial(_described, plan.name, connection)
    return examine_places(f"participant {plan.name}", "table", plan, connection, rows, described, schema_problems)


def _described(participant: str, connection: ConnectionInfo, settings: Mapping[str, Any]) -> str:
    sink = DeltaSink.from_settings(participant, settings)
    place = Place.of(sink, connection)
    with told(place):
        there = Snapshot.newest(place)
        free = "" if place.is_bucket else f", {room(sink.path):,} bytes free"
        if there is None and not sink.create:
            raise place.lacks_its_table()
        if there is None:
            return f"{place} will be created{free}"
        if problems := list(there.oddities()):
            raise together(problems)
        return f"{place}, version {there.version:,}, {count_text(len(there.columns), 'column')}{free}"
