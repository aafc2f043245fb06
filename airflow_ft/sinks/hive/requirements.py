"""What a metastore and its table must have; see `airflow_ft.sinks.base.requirements`."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from functools import partial

import pyarrow as pa

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import AirflowFtError, UnfitTargetError
from airflow_ft.protocol.model import ParticipantPlan
from airflow_ft.protocol.numbers import count_text
from airflow_ft.sinks.base.places import only_sink
from airflow_ft.sinks.base.requirements import ASK_SECONDS, Finding, Requirement
from airflow_ft.sinks.hive import columns
from airflow_ft.sinks.hive.metastore import Connected
from airflow_ft.sinks.hive.spec import HiveSink
from airflow_ft.sinks.hive.table import Version


def required(pipeline: str, plan: ParticipantPlan, connection: ConnectionInfo) -> Generator[Requirement]:
    """Yield what must be there before `prepare`: a metastore that answers, and a table that takes rows."""
    name, settings = only_sink(plan, "table")
    yield Requirement("table", partial(_table, HiveSink.from_settings(plan.name, settings), connection), name)


def _table(sink: HiveSink, connection: ConnectionInfo) -> Finding:
    with closing(Connected(connection, sink.identifier, ASK_SECONDS)) as place, place.translated_errors():
        there = Version.newest(place)
        if there is None and not sink.create:
            raise sink.lacks_table(place)
        if there is None:
            return Finding(f"{place} will be created")
        if problems := list(there.oddities()):
            return Finding(problems=problems)
        return Finding(f"{place} at {there.root}, {count_text(len(there.columns), 'column')}")


def schema_problems(
    plan: ParticipantPlan, connection: ConnectionInfo, schemas: Mapping[str, pa.Schema]
) -> Sequence[AirflowFtError]:
    """Return what speaks against the sink's schema; see `airflow_ft.sinks.fitting`."""
    found: list[AirflowFtError] = []
    for name, schema in schemas.items():
        sink = HiveSink.from_settings(plan.name, plan.sinks[name])
        place = Connected(connection, sink.identifier, ASK_SECONDS)
        try:
            with closing(place), place.translated_errors(participant=plan.name, sink=name):
                there = Version.newest(place)
        except UnfitTargetError as error:  # it was asked, and what it is does not fit
            found.append(error)
            continue
        if there is not None and (problems := [each.located(sink=name) for each in there.oddities()]):
            found += problems
            continue
        found += columns.schema_problems(sink, schema, there.table if there is not None else None, name)
    return found
