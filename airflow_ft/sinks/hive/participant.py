"""Deliver into a table of a Hive metastore: rows, marker and head in one request (`airflow_ft.sinks.hive.memory`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from airflow_ft.sinks.base.table_format import TableParticipant
from airflow_ft.sinks.hive.memory import Ledger
from airflow_ft.sinks.hive.requirements import CHECKS
from airflow_ft.sinks.hive.rows import Rows
from airflow_ft.sinks.hive.spec import FORMATS
from airflow_ft.sinks.hive.table import Version


@dataclass
class HiveParticipant(TableParticipant[Version, Rows]):
    """One table, and the one sink that writes there."""

    checks = CHECKS
    kept = "its partitions .../memory-..."

    def _newest(self) -> Version | None:
        version = super()._newest()
        if version is not None and (problems := list(version.oddities())):
            raise problems[0].located(sink=self.sink_name)
        return version

    def _made(self, schema: pa.Schema | None) -> Version:
        return Version.made(self.place, schema, self.sink.partition_by, self.sink.format or FORMATS[0])

    def _staged(self, version: Version, group: str, rank: tuple[int, int]) -> Rows:
        version.require_folder()
        return Rows(version, self.sink_name, self.sink.file_bytes, group, rank)

    def _commit_onto(self, version: Version, group: str, ledger: Ledger, staged: Rows, says: Mapping[str, Any]) -> None:
        parameters = {f"airflow_ft.{name}": str(value) for name, value in says.items()}
        version.commit(group, ledger, staged.number, staged.parts, parameters)

    def _evolve(self, version: Version, group: str, schema: pa.Schema) -> bool:
        return version.evolve(schema, self.sink.partition_by, group)


open_participant = HiveParticipant.of
