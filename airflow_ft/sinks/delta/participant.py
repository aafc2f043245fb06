"""Rows, marker and head in one commit of the table's log (ATOMIC).

A step reads the newest version of the table, and with it the head. It commits onto exactly that version, or starts
over (`airflow_ft.sinks.delta.table`). So the order of commits is the order of ranks (I5), as with a lock.

What if the process dies, or sleeps and wakes up beside its successor, before ...

- the head is raised (prepare): a new table may be left, without rows. The next process finds it. The sleeper commits
  onto an outdated version, is refused, reads the head, and finds that it is newer.
- files are complete (commit): a folder that no commit names; VACUUM removes it. The next process writes its own.
- the ledger's file is written: the same, and a file without readers.
- the commit: the same again. Any commit since makes the sleeper's commit fail.
- the commit is synced: it is visible and marked, but a power cut may undo it. No process has reported it yet; the next
  one syncs what it finds before it reports.
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
from airflow_ft.sinks.delta.columns import is_placeholder, schema_problems
from airflow_ft.sinks.delta.ledger import Ledger
from airflow_ft.sinks.delta.place import OURS, Place
from airflow_ft.sinks.delta.rows import Rows
from airflow_ft.sinks.delta.spec import DeltaSink
from airflow_ft.sinks.delta.table import Snapshot, translated_delta_errors


def open_participant(plan: ParticipantPlan, connection: ConnectionInfo, wal: WalReader) -> Participant:
    """The participant of a plan: one table. ConfigurationError when it has several."""
    name, settings = only_sink(plan, "table")
    sink = DeltaSink.from_settings(plan.name, settings)
    return DeltaParticipant(plan.name, name, sink, Place.of(sink, connection), wal)


@dataclass
class DeltaParticipant(TableParticipant[Snapshot, Rows]):
    """One table, and the one sink that writes there."""

    name: str
    sink_name: str
    sink: DeltaSink
    place: Place
    wal: WalReader
    _seen: Snapshot | None = None

    def _preflight(self) -> dict[str, Any]:
        return {"table": str(self.place)}

    def _translated_errors(self, plan: Plan | None = None) -> AbstractContextManager[None]:
        return translated_delta_errors(self.place, **self._where(plan))

    def _newest(self) -> Snapshot | None:
        self._seen = Snapshot.newest(self.place, self._seen)
        return self._seen

    def _made(self, schema: pa.Schema | None) -> Snapshot:
        return Snapshot.made(self.place, schema, self.sink.partition_by)

    def _ledger(self, version: Snapshot, pipeline: str) -> Ledger:
        return version.ledger(self._app(pipeline))

    def _staged(self, version: Snapshot, rank: tuple[int, int]) -> Rows:
        return Rows(version, self.sink_name, self.sink.file_bytes, rank)

    def _sync(self, version: Snapshot, ledger: DocumentLedger) -> None:
        assert isinstance(ledger, Ledger)
        version.sync(ledger)

    def _commit_onto(
        self, version: Snapshot, ledger: DocumentLedger, staged: Rows, says: Mapping[str, Any], pipeline: str
    ) -> None:
        assert isinstance(ledger, Ledger)
        self._seen = version.commit(self._app(pipeline), ledger, staged.adds, says)

    def _schema_problems_of(self, version: Snapshot | None, schema: pa.Schema) -> Iterator[AirflowFtError]:
        columns = version.columns if version is not None and not is_placeholder(version.columns) else None
        partitions = version.partition_by if version is not None else ()
        return schema_problems(self.sink, schema, columns, partitions, self.sink_name)

    def _oddities(self, version: Snapshot) -> Iterator[AirflowFtError]:
        return version.oddities()

    def _evolve(self, version: Snapshot, schema: pa.Schema, pipeline: str) -> bool:
        return version.evolve(schema, self.sink.partition_by)

    def _require_beginning(self) -> None:
        self.place.require_conditions()

    def _app(self, pipeline: str) -> str:
        return f"airflow_ft/{pipeline}/{self.name}"

    def _lost(self) -> StoreBehindSinkError:
        return StoreBehindSinkError(
            f"the sink has lost its head: {self.place} is gone or was created again, or its app transaction is lost.",
            code="ledger_lost",
            remedy=f"Restore the table, with {OURS} in it. Compare table and decision log before you resume.",
            path=str(self.place),
        )
