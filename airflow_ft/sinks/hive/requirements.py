"""What a metastore and its table must have; see `airflow_ft.sinks.base.requirements`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pyarrow as pa

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import AirflowFtError
from airflow_ft.protocol.numbers import count_text
from airflow_ft.sinks.base.requirements import ASK_SECONDS
from airflow_ft.sinks.base.table_checks import TableChecks
from airflow_ft.sinks.hive import columns
from airflow_ft.sinks.hive.metastore import Connected
from airflow_ft.sinks.hive.spec import HiveSink
from airflow_ft.sinks.hive.table import Version


class Checks(TableChecks[Version]):
    """Tables in a metastore that answers."""

    sink = HiveSink

    @contextmanager
    def looked(
        self, sink: HiveSink, connection: ConnectionInfo, /, *, quickly: bool, **where: Any
    ) -> Iterator[tuple[Connected, Version | None]]:
        place = Connected(connection, sink.identifier, aws_conn_id=sink.aws_conn_id)
        if quickly:
            place.seconds = ASK_SECONDS
        with closing(place), place.translated_errors(**where):
            yield place, Version.newest(place)

    def shown(self, place: Connected, version: Version) -> str:
        return f"{place} at {version.root}, {count_text(len(version.columns), 'column')}"

    def problems(
        self, sink: HiveSink, version: Version | None, schema: pa.Schema, name: str
    ) -> Iterable[AirflowFtError]:
        return columns.schema_problems(sink, schema, version.table if version is not None else None, name)


CHECKS = Checks()
required, schema_problems = CHECKS.required, CHECKS.schema_problems
