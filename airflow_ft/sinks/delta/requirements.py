"""What a table must have, and the checks that find it out; see `airflow_ft.sinks.base.requirements`."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from functools import partial

import pyarrow as pa

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import AirflowFtError, UnfitTargetError
from airflow_ft.protocol.model import ParticipantPlan
from airflow_ft.protocol.numbers import count_text
from airflow_ft.sinks.base.places import only_sink, room
from airflow_ft.sinks.base.requirements import Finding, Requirement
from airflow_ft.sinks.delta.columns import is_placeholder
from airflow_ft.sinks.delta.columns import schema_problems as column_problems_of
from airflow_ft.sinks.delta.place import Place
from airflow_ft.sinks.delta.spec import DeltaSink
from airflow_ft.sinks.delta.table import Snapshot, told
from airflow_ft.sinks.files.failures import telling


def required(pipeline: str, plan: ParticipantPlan, connection: ConnectionInfo) -> Generator[Requirement]:
    """Yield what must be there before `prepare`: a place that can be written, and a table without unknown features."""
    name, settings = only_sink(plan, "table")
    sink = DeltaSink.from_settings(plan.name, settings)
    yield Requirement("table", partial(_table, sink, Place.of(sink, connection)), name)


def _table(sink: DeltaSink, place: Place) -> Finding:
    with telling(str(place)):
        free = "" if place.is_bucket else f", {room(sink.path):,} bytes free"
    with told(place):
        there = Snapshot.newest(place)
        if there is None and not sink.create:
            raise place.lacks_its_table()
        if there is None:
            return Finding(f"{place} will be created{free}")
        if problems := list(there.oddities()):
            return Finding(problems=problems)
        return Finding(f"{place}, version {there.version:,}, {count_text(len(there.columns), 'column')}{free}")


def schema_problems(
    plan: ParticipantPlan, connection: ConnectionInfo, schemas: Mapping[str, pa.Schema]
) -> Sequence[AirflowFtError]:
    """Return what speaks against the sink's schema; see `airflow_ft.sinks.fitting`."""
    found: list[AirflowFtError] = []
    for name, schema in schemas.items():
        sink = DeltaSink.from_settings(plan.name, plan.sinks[name])
        place = Place.of(sink, connection)
        try:
            with told(place, participant=plan.name, sink=name):
                there = Snapshot.newest(place)
        except UnfitTargetError as error:  # it was asked, and what it is does not fit
            found.append(error)
            continue
        if there is not None:
            found += (problem.located(sink=name) for problem in there.oddities())
        columns = there.columns if there is not None and not is_placeholder(there.columns) else None
        partitions = there.partition_by if there is not None else ()
        found += column_problems_of(sink, schema, columns, partitions, name)
    return found
