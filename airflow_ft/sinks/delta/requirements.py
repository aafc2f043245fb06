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
from airflow_ft.sinks.delta import columns
from airflow_ft.sinks.delta.place import Place
from airflow_ft.sinks.delta.spec import DeltaSink
from airflow_ft.sinks.delta.table import Snapshot, translated_delta_errors

_BATCH = 10_000


class Checks(TableChecks[Snapshot]):
    """Tables in folders."""

    sink, form, version = DeltaSink, columns.FORMAT, Snapshot

    def at(self, sink: DeltaSink, connection: ConnectionInfo, *, quickly: bool = False) -> Place:
        return Place.of(sink, connection)

    def translated_errors(self, place: Place, **where: Any) -> AbstractContextManager[None]:
        return translated_delta_errors(place, **where)

    def rows(self, place: Place, version: Snapshot, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        dataset: Any = place.open().to_pyarrow_dataset()
        yield from dataset.to_batches(columns=list(names), batch_size=_BATCH)

    def room(self, sink: DeltaSink, place: Place, version: Snapshot | None) -> str:
        return "" if place.is_bucket else f", {room(sink.path):,} bytes free"

    def shown(self, place: Place, version: Snapshot) -> str:
        return f"{place}, version {version.version:,}, {count_text(len(version.columns), 'column')}"

    def problems(
        self, sink: DeltaSink, version: Snapshot | None, schema: pa.Schema, name: str
    ) -> Iterable[AirflowFtError]:
        there = version.columns if version is not None and not columns.is_placeholder(version.columns) else None
        by = version.partition_by if version is not None else ()
        return columns.schema_problems(sink, schema, there, by, name)


CHECKS = Checks()
required, schema_problems = CHECKS.required, CHECKS.schema_problems
