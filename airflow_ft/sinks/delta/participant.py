"""Rows, marker and head in one commit of the table's log (`airflow_ft.sinks.delta.table`).

See `airflow_ft.sinks.base.table_format` for a process that dies. The ledger's file is written before the commit that
makes it count. A commit is visible and marked before it is synced, so a power cut may undo it. No process has reported
it yet. The next one syncs the commit before it reports.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from airflow_ft.sinks.base.table_format import TableParticipant
from airflow_ft.sinks.delta.ledger import Ledger
from airflow_ft.sinks.delta.place import OURS
from airflow_ft.sinks.delta.requirements import CHECKS
from airflow_ft.sinks.delta.rows import Rows
from airflow_ft.sinks.delta.table import Snapshot


@dataclass
class DeltaParticipant(TableParticipant[Snapshot, Rows]):
    """One table, and the one sink that writes there."""

    checks = CHECKS
    kept = f"{OURS} in it and its app transaction"
    prefix = "airflow_ft/"
    _seen: Snapshot | None = None

    def _newest(self) -> Snapshot | None:
        self._seen = Snapshot.newest(self.place, self._seen)
        return self._seen

    def _made(self, schema: pa.Schema | None) -> Snapshot:
        return Snapshot.made(self.place, schema, self.sink.partition_by)

    def _staged(self, version: Snapshot, group: str, rank: tuple[int, int]) -> Rows:
        return Rows(version, self.sink_name, self.sink.file_bytes, rank)

    def _commit_onto(
        self, version: Snapshot, group: str, ledger: Ledger, staged: Rows, says: Mapping[str, Any]
    ) -> None:
        self._seen = version.commit(group, ledger, staged.adds, says)

    def _evolve(self, version: Snapshot, group: str, schema: pa.Schema) -> bool:
        return version.evolve(schema, self.sink.partition_by)

    def _require_beginning(self) -> None:
        self.place.require_conditions()


open_participant = DeltaParticipant.of
