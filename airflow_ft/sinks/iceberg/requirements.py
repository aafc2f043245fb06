"""What a catalog and its table must have; see `airflow_ft.sinks.base.requirements`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import pyarrow as pa

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import AirflowFtError, UnfitTargetError
from airflow_ft.protocol.numbers import count_text
from airflow_ft.sinks.base.places import room
from airflow_ft.sinks.base.table_checks import CatalogChecks
from airflow_ft.sinks.iceberg import columns
from airflow_ft.sinks.iceberg.catalog import Connected
from airflow_ft.sinks.iceberg.connection import properties
from airflow_ft.sinks.iceberg.durable import local
from airflow_ft.sinks.iceberg.spec import IcebergSink
from airflow_ft.sinks.iceberg.table import Version


class Checks(CatalogChecks[Version]):
    """Tables in a catalog that answers."""

    sink, form, version = IcebergSink, columns.FORMAT, Version

    def at(self, sink: IcebergSink, connection: ConnectionInfo, *, quickly: bool = False) -> Connected:
        properties(connection)  # refuses a connection that names no catalog, before a server is asked
        return Connected(connection, sink.identifier, looks=quickly)

    def rows(self, place: Connected, version: Version, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        yield from version.table.scan(selected_fields=tuple(names)).to_arrow_batch_reader()

    def room(self, sink: IcebergSink, place: Connected, version: Version | None) -> str:
        place.require_database()
        there, given = _storage(place, version)
        place.require_clients(there, given)
        free = [room(folder) for folder in map(local, there) if folder is not None]
        return f", {min(free):,} bytes free" if free else ""

    def ask_storage(self, place: Connected, version: Version | None) -> None:
        place.ask_storage(*_storage(place, version))

    def shown(self, place: Connected, version: Version) -> str:
        format = version.table.metadata.format_version
        return f"{place}, format version {format}, {count_text(len(version.columns), 'column')}"

    def problems(
        self, sink: IcebergSink, version: Version | None, schema: pa.Schema, name: str
    ) -> Iterable[AirflowFtError]:
        if version is None:
            return columns.schema_problems(sink, schema, None, None, name)
        there, specs = version.table.schema(), version.table.metadata.partition_specs
        partitions = {field.name for spec in specs for field in spec.fields}
        found = columns.schema_problems(sink, schema, there, version.spec, name, partitions)
        return (_renamed(each, version, schema) or each for each in found)


def _storage(place: Connected, version: Version | None) -> tuple[list[str], Mapping[str, str]]:
    """Return the locations of the table's files, as far as they are known, and the properties of their client."""
    if version is None:
        return list(filter(None, [place.location()])), place.catalog.properties
    return version.folders(), version.table.io.properties


def _renamed(problem: AirflowFtError, version: Version, schema: pa.Schema) -> UnfitTargetError | None:
    """Return a better error for a column that the table has renamed. None: it was not, or the rows have both names."""
    now = version.new_name(problem.column) if problem.code == "column_missing" else ""
    if not now or now in schema.names:
        return None
    what = f"column {problem.column!r} of the table was renamed to {now!r}."
    remedy = f"Rename it in the job, too: withColumnRenamed({problem.column!r}, {now!r})."
    better = UnfitTargetError(what, code=problem.code, remedy=remedy, **{**problem.fields, "renamed": now})
    better.located(sink=problem.sink, column=problem.column)
    return better


CHECKS = Checks()
required, schema_problems = CHECKS.required, CHECKS.schema_problems
