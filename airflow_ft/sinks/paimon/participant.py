"""Rows in one snapshot of the table, with which the document that holds marker and head counts (ATOMIC).

See `airflow_ft.sinks.base.table_format` for a process that dies, and `airflow_ft.sinks.paimon.memory` for the document.
It is written before its snapshot. The next process gives the snapshot's number to an empty one, before it replaces the
document. A sleeper finds its number taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from airflow_ft.sinks.base.table_format import TableParticipant
from airflow_ft.sinks.paimon.buckets import Buckets, Layout
from airflow_ft.sinks.paimon.columns import written
from airflow_ft.sinks.paimon.keyed_rows import KeyedRows
from airflow_ft.sinks.paimon.memory import OURS, Ledger
from airflow_ft.sinks.paimon.requirements import CHECKS
from airflow_ft.sinks.paimon.rows import Rows
from airflow_ft.sinks.paimon.table import Version


@dataclass
class PaimonParticipant(TableParticipant[Version, Rows]):
    """One table, and the one sink that writes there."""

    checks = CHECKS
    kept = f"{OURS} in it"
    _read: Ledger | None = None
    """The memory that the step under way has read."""

    @property
    def _layout(self) -> Layout:
        sink = self.sink
        count = sink.buckets or (1 if sink.primary_key else 0)
        return Layout(sink.partition_by, sink.primary_key, Buckets(count, sink.bucket_key))

    def _made(self, schema: pa.Schema | None) -> Version:
        return Version.made(self.place, self._written(schema) if schema is not None else None, self._layout)

    def _ledger(self, version: Version, group: str) -> Ledger:
        self._read = version.ledger(group)
        version.check_newest(self._read)
        return self._read

    def _staged(self, version: Version, group: str, rank: tuple[int, int]) -> Rows:
        if self.sink.primary_key:
            change = self.sink.change_column
            return KeyedRows(version, self.sink_name, self.sink.file_bytes, change_column=change)
        return Rows(version, self.sink_name, self.sink.file_bytes)

    def _commit_onto(self, version: Version, group: str, ledger: Ledger, staged: Rows, says: Mapping[str, Any]) -> None:
        version.commit(ledger, staged.entries, says)

    def _evolve(self, version: Version, group: str, schema: pa.Schema) -> bool:
        assert self._read is not None  # the step has read it
        return version.evolve(self._written(schema), self._layout, self._read)

    def _written(self, schema: pa.Schema) -> pa.Schema:
        return written(self.sink, schema)

    def _require_beginning(self) -> None:
        self.place.require_links()


open_participant = PaimonParticipant.of
