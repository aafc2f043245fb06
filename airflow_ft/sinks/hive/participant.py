"""Deliver into a table of a Hive metastore: rows, marker and head in one request (ATOMIC).

See `airflow_ft.sinks.hive.memory` for how such a request is compared with what was read.

What if the process dies, or sleeps and wakes up beside its successor, before ...

- the head is raised (prepare): a new table may be left, without rows. The next process finds it. The number that the
  sleeper would give to its document is taken, so its request is refused. It reads the head, and finds that it is newer.
- files are complete (commit): a folder that no partition names. The next process writes its own.
- the request: the same.
- the answer: the next process reads the marker. Nothing is removed after a request whose answer is not known.
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
from airflow_ft.sinks.hive.columns import schema_problems
from airflow_ft.sinks.hive.memory import Ledger, group_of
from airflow_ft.sinks.hive.metastore import Connected
from airflow_ft.sinks.hive.rows import Rows
from airflow_ft.sinks.hive.spec import FORMATS, HiveSink
from airflow_ft.sinks.hive.table import Version


def open_participant(plan: ParticipantPlan, connection: ConnectionInfo, wal: WalReader) -> Participant:
    """The participant of a plan: one table. ConfigurationError when it has several."""
    name, settings = only_sink(plan, "table")
    sink = HiveSink.from_settings(plan.name, settings)
    place = Connected(connection, sink.identifier, aws_conn_id=sink.aws_conn_id)
    return HiveParticipant(plan.name, name, sink, place, wal)


@dataclass
class HiveParticipant(TableParticipant[Version, Rows]):
    """One table, and the one sink that writes there."""

    name: str
    sink_name: str
    sink: HiveSink
    place: Connected
    wal: WalReader
    _group: str = ""

    def _preflight(self) -> dict[str, Any]:
        return {"table": str(self.place)}

    def close(self) -> None:
        """End the connection to the metastore."""
        self.place.close()

    def _translated_errors(self, plan: Plan | None = None) -> AbstractContextManager[None]:
        return self.place.translated_errors(**self._where(plan))

    def _newest(self) -> Version | None:
        version = Version.newest(self.place)
        if version is not None and (problems := list(version.oddities())):
            raise problems[0].located(sink=self.sink_name)
        return version

    def _made(self, schema: pa.Schema | None) -> Version:
        return Version.made(self.place, schema, self.sink.partition_by, self.sink.format or FORMATS[0])

    def _ledger(self, version: Version, pipeline: str) -> Ledger:
        self._group = group_of(pipeline, self.name)
        return version.ledger(self._group)

    def _staged(self, version: Version, rank: tuple[int, int]) -> Rows:
        return Rows(version, self.sink_name, self._group, self.sink.file_bytes, rank)

    def _sync(self, version: Version, ledger: DocumentLedger) -> None:
        """The metastore's database keeps what it has acknowledged, and files were synced before."""

    def _commit_onto(
        self, version: Version, ledger: DocumentLedger, staged: Rows, says: Mapping[str, Any], pipeline: str
    ) -> None:
        assert isinstance(ledger, Ledger)
        parameters = {f"airflow_ft.{name}": str(value) for name, value in says.items()}
        version.commit(group_of(pipeline, self.name), ledger, staged.number, staged.parts, parameters)

    def _schema_problems_of(self, version: Version | None, schema: pa.Schema) -> Iterator[AirflowFtError]:
        return schema_problems(self.sink, schema, version.table if version is not None else None, self.sink_name)

    def _oddities(self, version: Version) -> Iterator[AirflowFtError]:
        return version.oddities()

    def _evolve(self, version: Version, schema: pa.Schema, pipeline: str) -> bool:
        return version.evolve(schema, self.sink.partition_by, group_of(pipeline, self.name))

    def _lost(self) -> StoreBehindSinkError:
        return StoreBehindSinkError(
            f"the sink has lost its head: {self.place} is gone or was created again, or its partitions .../memory-..."
            " were dropped.",
            code="ledger_lost",
            remedy="Restore the table with its partitions. Compare table and decision log before you resume.",
            table=str(self.place),
        )
