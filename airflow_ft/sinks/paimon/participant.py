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

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import AirflowFtError, StoreBehindSinkError
from airflow_ft.protocol.model import ParticipantPlan, Plan
from airflow_ft.protocol.participant import Participant
from airflow_ft.protocol.write_ahead_log import WalReader
from airflow_ft.sinks.base.document import DocumentLedger
from airflow_ft.sinks.base.places import only_sink
from airflow_ft.sinks.base.table_format import TableParticipant
from airflow_ft.sinks.files.failures import translated_errors
from airflow_ft.sinks.paimon.buckets import Buckets
from airflow_ft.sinks.paimon.columns import written
from airflow_ft.sinks.paimon.keyed_rows import KeyedRows
from airflow_ft.sinks.paimon.memory import OURS, Ledger
from airflow_ft.sinks.paimon.place import Place
from airflow_ft.sinks.paimon.rows import Rows
from airflow_ft.sinks.paimon.spec import PaimonSink
from airflow_ft.sinks.paimon.table import Layout, Version, problems_of


def open_participant(plan: ParticipantPlan, connection: ConnectionInfo, wal: WalReader) -> Participant:
    """The participant of a plan: one table. ConfigurationError when it has several."""
    name, settings = only_sink(plan, "table")
    sink = PaimonSink.from_settings(plan.name, settings)
    return PaimonParticipant(plan.name, name, sink, Place.of(sink.path), wal)


@dataclass
class PaimonParticipant(TableParticipant[Version, Rows]):
    """One table, and the one sink that writes there."""

    name: str
    sink_name: str
    sink: PaimonSink
    place: Place
    wal: WalReader
    _read: Ledger | None = None
    """The memory that the step under way has read."""

    @property
    def _layout(self) -> Layout:
        sink = self.sink
        count = sink.buckets or (1 if sink.primary_key else 0)
        return Layout(sink.partition_by, sink.primary_key, Buckets(count, sink.bucket_key))

    def _preflight(self) -> dict[str, Any]:
        return {"table": str(self.place)}

    def _translated_errors(self, plan: Plan | None = None) -> AbstractContextManager[None]:
        return translated_errors(str(self.place), **self._where(plan))

    def _newest(self) -> Version | None:
        return Version.newest(self.place)

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

    def _sync(self, version: Version, ledger: DocumentLedger) -> None:
        assert isinstance(ledger, Ledger)
        version.sync(ledger)

    def _commit_onto(
        self, version: Version, ledger: DocumentLedger, staged: Rows, says: Mapping[str, Any], pipeline: str
    ) -> None:
        assert isinstance(ledger, Ledger)
        version.commit(ledger, staged.entries, says)

    def _schema_problems_of(self, version: Version | None, schema: pa.Schema) -> Iterator[AirflowFtError]:
        return problems_of(self.sink, version, schema, self.sink_name)

    def _oddities(self, version: Version) -> Iterator[AirflowFtError]:
        return version.oddities()

    def _evolve(self, version: Version, schema: pa.Schema, pipeline: str) -> bool:
        assert self._read is not None  # the step has read it
        return version.evolve(written(self.sink, schema), self._layout, self._read)

    def _require_beginning(self) -> None:
        self.place.require_links()

    def _lost(self) -> StoreBehindSinkError:
        return StoreBehindSinkError(
            f"the sink has lost its head: {self.place} is gone or was created again, or {OURS} in it is lost.",
            code="ledger_lost",
            remedy=f"Restore the table, with {OURS} in it. Compare table and decision log before you resume.",
            path=str(self.place),
        )
