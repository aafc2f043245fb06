"""Deliver into an Iceberg table: `airflow_ft.sinks.base.table_format` over `airflow_ft.sinks.iceberg.table`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from airflow_ft.sinks.base.document import DocumentLedger
from airflow_ft.sinks.base.table_format import TableParticipant
from airflow_ft.sinks.iceberg.requirements import CHECKS
from airflow_ft.sinks.iceberg.rows import Rows
from airflow_ft.sinks.iceberg.table import Version


@dataclass
class IcebergParticipant(TableParticipant[Version, Rows]):
    """One table, and the one sink that writes there."""

    checks = CHECKS
    kept = "its branches"
    prefix = "airflow_ft/"

    def _made(self, schema: pa.Schema | None) -> Version:
        return Version.made(self.place, schema, self.sink.partition_by)

    def _staged(self, version: Version, group: str, rank: tuple[int, int]) -> Rows:
        return Rows(version, self.sink_name, self.sink.file_bytes)

    def _commit_onto(
        self, version: Version, group: str, ledger: DocumentLedger, staged: Rows, says: Mapping[str, Any]
    ) -> None:
        version.commit(group, ledger, staged.files, {f"airflow-ft.{name}": str(value) for name, value in says.items()})

    def _evolve(self, version: Version, group: str, schema: pa.Schema) -> bool:
        return version.evolve(schema, self.sink.partition_by, group)


open_participant = IcebergParticipant.of
