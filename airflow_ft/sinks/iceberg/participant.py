"""Deliver into an Iceberg table: rows, marker and head in one commit (ATOMIC). See `airflow_ft.sinks.iceberg.table`.

What if the process dies, or sleeps and wakes up beside its successor, before ...

- the head is raised (prepare): a new table may be left, without rows. The next process finds it. The branch of the
  sleeper has moved, so its commit is refused. It reads the head, and finds that it is newer.
- files are complete (commit): files that no snapshot names. The next process writes its own.
- the commit: the same. Any later change of the memory makes the sleeper's commit fail.
- the answer: the next process reads the marker. Nothing is removed after a commit was tried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pyarrow as pa

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import AirflowFtError, StoreBehindSinkError
from airflow_ft.protocol.model import Fence, ParticipantPlan, Plan
from airflow_ft.protocol.participant import Participant
from airflow_ft.protocol.write_ahead_log import WalReader
from airflow_ft.sinks.base.document import DocumentLedger
from airflow_ft.sinks.base.places import only_sink
from airflow_ft.sinks.base.table_format import TableParticipant
from airflow_ft.sinks.iceberg.catalog import Connected
from airflow_ft.sinks.iceberg.columns import schema_problems
from airflow_ft.sinks.iceberg.rows import Kept, Rows
from airflow_ft.sinks.iceberg.spec import IcebergSink
from airflow_ft.sinks.iceberg.table import Version

T = TypeVar("T")


def open_participant(plan: ParticipantPlan, connection: ConnectionInfo, wal: WalReader) -> Participant:
    """The participant of a plan: one table. ConfigurationError when it has several."""
    name, settings = only_sink(plan, "table")
    sink = IcebergSink.from_settings(plan.name, settings)
    return IcebergParticipant(plan.name, name, sink, Connected(connection, sink.identifier), wal)


def branch_of(pipeline: str, participant: str) -> str:
    """Return the branch of a table that points to a participant's memory of a pipeline."""
    return f"airflow_ft/{pipeline}/{participant}"


@dataclass
class IcebergParticipant(TableParticipant[Version, Rows]):
    """One table, and the one sink that writes there."""

    name: str
    sink_name: str
    sink: IcebergSink
    place: Connected
    wal: WalReader
    _kept: dict[str, Kept] = field(default_factory=dict)
    """Files of the step's tries before, by the name mapping that they were judged by."""

    def _preflight(self) -> dict[str, Any]:
        return {"table": str(self.place)}

    def _persist(self, doing: str, step: Callable[[], T], fence: Fence | None = None, plan: Plan | None = None) -> T:
        self._kept.clear()
        return super()._persist(doing, step, fence, plan)

    def close(self) -> None:
        """End the connection to the catalog."""
        self.place.close()

    # --- versions of the table ---------------------------------------------------------------------------------------

    def _translated_errors(self, plan: Plan | None = None) -> AbstractContextManager[None]:
        return self.place.translated_errors(**self._where(plan))

    def _newest(self) -> Version | None:
        return Version.newest(self.place)

    def _made(self, schema: pa.Schema | None) -> Version:
        return Version.made(self.place, schema, self.sink.partition_by)

    def _ledger(self, version: Version, pipeline: str) -> DocumentLedger:
        return version.ledger(branch_of(pipeline, self.name))

    def _staged(self, version: Version, rank: tuple[int, int]) -> Rows:
        return Rows(version, self.sink_name, self.sink.file_bytes, self._kept.setdefault(version.mapping, {}))

    def _sync(self, version: Version, ledger: DocumentLedger) -> None:
        version.sync()

    def _commit_onto(
        self, version: Version, ledger: DocumentLedger, staged: Rows, says: Mapping[str, Any], pipeline: str
    ) -> None:
        properties = {f"airflow-ft.{name}": str(value) for name, value in says.items()}
        version.commit(branch_of(pipeline, self.name), ledger, staged.files, properties)

    def _schema_problems_of(self, version: Version | None, schema: pa.Schema) -> Iterator[AirflowFtError]:
        there = version.table.schema() if version is not None else None
        return schema_problems(self.sink, schema, there, version.spec if version is not None else None, self.sink_name)

    def _oddities(self, version: Version) -> Iterator[AirflowFtError]:
        return version.oddities()

    def _evolve(self, version: Version, schema: pa.Schema, pipeline: str) -> bool:
        return version.evolve(schema, self.sink.partition_by, branch_of(pipeline, self.name))

    def _lost(self) -> StoreBehindSinkError:
        return StoreBehindSinkError(
            f"the sink has lost its head: {self.place} is gone or was created again, or its branch was dropped.",
            code="ledger_lost",
            remedy="Restore the table with its branches. Compare table and decision log before you resume.",
            table=str(self.place),
        )
