"""What a catalog and its table must have; see `airflow_ft.sinks.base.requirements`."""

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
from airflow_ft.sinks.base.requirements import Finding, Requirement
from airflow_ft.sinks.iceberg import columns
from airflow_ft.sinks.iceberg.catalog import Connected
from airflow_ft.sinks.iceberg.spec import IcebergSink
from airflow_ft.sinks.iceberg.table import Version


def required(pipeline: str, plan: ParticipantPlan, connection: ConnectionInfo) -> Generator[Requirement]:
    """Yield what must be there before `prepare`: a catalog that answers, and a table that takes rows."""
    name, settings = only_sink(plan, "table")
    yield Requirement("table", partial(_table, IcebergSink.from_settings(plan.name, settings), connection), name)


def _table(sink: IcebergSink, connection: ConnectionInfo) -> Finding:
    with closing(Connected(connection, sink.identifier, looks=True)) as place, place.translated_errors():
        there = Version.newest(place)
        if there is None and not sink.create:
            raise sink.lacks_table(place)
        if there is None:
            return Finding(f"{place} will be created")
        if problems := list(there.oddities()):
            return Finding(problems=problems)
        version, size = there.table.metadata.format_version, count_text(len(there.columns), "column")
        return Finding(f"{place}, format version {version}, {size}")


def schema_problems(
    plan: ParticipantPlan, connection: ConnectionInfo, schemas: Mapping[str, pa.Schema]
) -> Sequence[AirflowFtError]:
    """Return what speaks against the sink's schema; see `airflow_ft.sinks.fitting`."""
    found: list[AirflowFtError] = []
    for name, schema in schemas.items():
        sink = IcebergSink.from_settings(plan.name, plan.sinks[name])
        try:
            with (
                closing(Connected(connection, sink.identifier, looks=True)) as place,
                place.translated_errors(participant=plan.name, sink=name),
            ):
                there = Version.newest(place)
        except UnfitTargetError as error:  # it was asked, and what it is does not fit
            found.append(error)
            continue
        if there is not None:
            found += (problem.located(sink=name) for problem in there.oddities())
        columns_there, spec = (there.table.schema(), there.spec) if there is not None else (None, None)
        found += columns.schema_problems(sink, schema, columns_there, spec, name)
    return found
