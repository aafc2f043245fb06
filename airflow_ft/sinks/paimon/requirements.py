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
from airflow_ft.sinks.files.failures import translated_errors
from airflow_ft.sinks.paimon.spec import PaimonSink
from airflow_ft.sinks.paimon.table import Place, Version, lacks_its_table, problems_of


def required(pipeline: str, plan: ParticipantPlan, connection: ConnectionInfo) -> Generator[Requirement]:
    """Yield what must be there before `prepare`: a folder that can be written, and a table that takes plain files."""
    name, settings = only_sink(plan, "table")
    sink = PaimonSink.from_settings(plan.name, settings)
    yield Requirement("table", partial(_table, sink, Place.of(sink.path)), name)


def _table(sink: PaimonSink, place: Place) -> Finding:
    with translated_errors(str(place)):
        free = f", {room(sink.path):,} bytes free"
        there = Version.newest(place)
        if there is None and not sink.create:
            raise lacks_its_table(place)
        if there is None:
            return Finding(f"{place} will be created{free}")
        if problems := list(there.oddities()):
            return Finding(problems=problems)
        columns = count_text(len(there.columns or ()), "column")
        return Finding(f"{place}, snapshot {there.number:,}, {columns}{free}")


def schema_problems(
    plan: ParticipantPlan, connection: ConnectionInfo, schemas: Mapping[str, pa.Schema]
) -> Sequence[AirflowFtError]:
    """Return what speaks against the sink's schema; see `airflow_ft.sinks.fitting`."""
    found: list[AirflowFtError] = []
    for name, schema in schemas.items():
        sink = PaimonSink.from_settings(plan.name, plan.sinks[name])
        place = Place.of(sink.path)
        try:
            with translated_errors(str(place), participant=plan.name, sink=name):
                there = Version.newest(place)
        except UnfitTargetError as error:  # it was asked, and what it is does not fit
            found.append(error)
            continue
        if there is not None:
            found += (problem.located(sink=name) for problem in there.oddities())
        found += problems_of(sink, there, schema, name)
    return found
