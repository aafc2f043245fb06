"""What a table must have; see `airflow_ft.sinks.base.requirements`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import pyarrow as pa

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import AirflowFtError
from airflow_ft.protocol.numbers import count_text
from airflow_ft.sinks.base.places import room
from airflow_ft.sinks.base.table_checks import TableChecks
from airflow_ft.sinks.files.failures import translated_errors
from airflow_ft.sinks.paimon import columns, reading
from airflow_ft.sinks.paimon.buckets import Layout
from airflow_ft.sinks.paimon.place import Place
from airflow_ft.sinks.paimon.spec import PaimonSink
from airflow_ft.sinks.paimon.table import Version


class Checks(TableChecks[Version]):
    """Tables in folders."""

    sink, form, version = PaimonSink, columns.FORMAT, Version

    def at(self, sink: PaimonSink, connection: ConnectionInfo, *, quickly: bool = False) -> Place:
        return Place.of(sink.path)

    def translated_errors(self, place: Place, **where: Any) -> AbstractContextManager[None]:
        return translated_errors(str(place), **where)

    def rows(self, place: Place, version: Version, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        return reading.batches(version, names)

    def room(self, sink: PaimonSink, place: Place, version: Version | None) -> str:
        return f", {room(sink.path):,} bytes free"

    def shown(self, place: Place, version: Version) -> str:
        return f"{place}, snapshot {version.number:,}, {count_text(len(version.columns or ()), 'column')}"

    def problems(
        self, sink: PaimonSink, version: Version | None, schema: pa.Schema, name: str
    ) -> Iterable[AirflowFtError]:
        if version is None or version.columns is None:
            return columns.schema_problems(sink, schema, None, Layout(), name)
        if list(version.oddities()):  # the caller reports them, and the layout may be unknown
            return ()
        return columns.schema_problems(sink, schema, version.columns, version.layout, name)


CHECKS = Checks()
required, schema_problems = CHECKS.required, CHECKS.schema_problems
