"""Deliver into an Iceberg table: `airflow_ft.sinks.base.table_format` over `airflow_ft.sinks.iceberg.table`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pyarrow as pa

from airflow_ft.protocol.model import Fence, Plan
from airflow_ft.sinks.base.document import DocumentLedger
from airflow_ft.sinks.base.table_format import TableParticipant
from airflow_ft.sinks.iceberg.requirements import CHECKS
from airflow_ft.sinks.iceberg.rows import Kept, Rows
from airflow_ft.sinks.iceberg.table import Version

T = TypeVar("T")


@dataclass
class IcebergParticipant(TableParticipant[Version, Rows]):
    """One table, and the one sink that writes there."""

    checks = CHECKS
    kept = "its branches"
    prefix = "airflow_ft/"
    _kept: dict[str, Kept] = field(default_factory=dict)
    """Files of the step's tries before, by the name mapping that they were judged by."""

    def _persist(self, doing: str, step: Callable[[], T], fence: Fence | None = None, plan: Plan | None = None) -> T:
        self._kept.clear()
        return super()._persist(doing, step, fence, plan)

    def _made(self, schema: pa.Schema | None) -> Version:
        return Version.made(self.place, schema, self.sink.partition_by)

    def _staged(self, version: Version, group: str, rank: tuple[int, int]) -> Rows:
        return Rows(version, self.sink_name, self.sink.file_bytes, self._kept.setdefault(version.mapping, {}))

    def _commit_onto(
        self, version: Version, group: str, ledger: DocumentLedger, staged: Rows, says: Mapping[str, Any]
    ) -> None:
        version.commit(group, ledger, staged.files, {f"airflow-ft.{name}": str(value) for name, value in says.items()})

    def _evolve(self, version: Version, group: str, schema: pa.Schema) -> bool:
        return version.evolve(schema, self.sink.partition_by, group)


open_participant = IcebergParticipant.of
