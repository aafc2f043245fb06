"""What a catalog and its table must have; see `airflow_ft.sinks.base.requirements`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import AirflowFtError
from airflow_ft.protocol.numbers import count_text
from airflow_ft.sinks.base.table_checks import CatalogChecks
from airflow_ft.sinks.iceberg import columns
from airflow_ft.sinks.iceberg.catalog import Connected
from airflow_ft.sinks.iceberg.spec import IcebergSink
from airflow_ft.sinks.iceberg.table import Version


class Checks(CatalogChecks[Version]):
    """Tables in a catalog that answers."""

    sink, form, version = IcebergSink, columns.FORMAT, Version

    def at(self, sink: IcebergSink, connection: ConnectionInfo, *, quickly: bool = False) -> Connected:
        return Connected(connection, sink.identifier, looks=quickly)

    def rows(self, place: Connected, version: Version, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        yield from version.table.scan(selected_fields=tuple(names)).to_arrow_batch_reader()

    def shown(self, place: Connected, version: Version) -> str:
        format = version.table.metadata.format_version
        return f"{place}, format version {format}, {count_text(len(version.columns), 'column')}"

    def problems(
        self, sink: IcebergSink, version: Version | None, schema: pa.Schema, name: str
    ) -> Iterable[AirflowFtError]:
        there, spec = (version.table.schema(), version.spec) if version is not None else (None, None)
        return columns.schema_problems(sink, schema, there, spec, name)


CHECKS = Checks()
required, schema_problems = CHECKS.required, CHECKS.schema_problems
