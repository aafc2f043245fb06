"""Rows in one snapshot of the table, with which the document that holds marker and head counts (ATOMIC).

A step reads the newest version of the table, and the head. It replaces the document that it has read, and creates the
snapshot after the one that it has read; or it starts over (`airflow_ft.sinks.paimon.memory`).

What if the process dies, or sleeps and wakes up beside its successor, before ...

- the head is raised (prepare): a new table may be left, without rows. The next process finds it. The document of the
  sleeper is not the next one any more: it is refused, reads the head, and finds that it is newer.
- files and manifests are complete (commit): they are left, and `remove_orphan_files` removes them.
- the document is written: the same again.
- the snapshot is created: the document awaits it. The next process gives the snapshot's number to an empty one, before
  it replaces the document. The sleeper finds its number taken.
- the last document is written: rows and marker count. The next process finds the snapshot.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from airflow_ft.sinks.base.table_format import TableParticipant
from airflow_ft.sinks.paimon.buckets import Buckets
from airflow_ft.sinks.paimon.columns import written
from airflow_ft.sinks.paimon.keyed_rows import KeyedRows
from airflow_ft.sinks.paimon.memory import OURS, Ledger
from airflow_ft.sinks.paimon.requirements import CHECKS
from airflow_ft.sinks.paimon.rows import Rows
from airflow_ft.sinks.paimon.table import Layout, Version


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
        return Version.made(self.place, written(self.sink, schema) if schema is not None else None, self._layout)

    def _ledger(self, version: Version, pipeline: str) -> Ledger:
        self._read = version.ledger(f"{pipeline}/{self.name}")
        version.check_newest(self._read)
        return self._read

    def _staged(self, version: Version, rank: tuple[int, int]) -> Rows:
        if self.sink.primary_key:
            change = self.sink.change_column
            return KeyedRows(version, self.sink_name, self.sink.file_bytes, change_column=change)
        return Rows(version, self.sink_name, self.sink.file_bytes)

    def _sync(self, version: Version, ledger: Ledger) -> None:
        version.sync(ledger)

    def _commit_onto(
        self, version: Version, ledger: Ledger, staged: Rows, says: Mapping[str, Any], pipeline: str
    ) -> None:
        version.commit(ledger, staged.entries, says)

    def _evolve(self, version: Version, schema: pa.Schema, pipeline: str) -> bool:
        assert self._read is not None  # the step has read it
        return version.evolve(written(self.sink, schema), self._layout, self._read)

    def _require_beginning(self) -> None:
        self.place.require_links()


open_participant = PaimonParticipant.of
