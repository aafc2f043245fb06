"""Compare the tables with the log's rows, also after others have compacted their files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.model import ParticipantPlan
from airflow_ft.protocol.verify import Delivered, Sent, SinkReport, by_target
from airflow_ft.protocol.write_ahead_log import WalReader
from airflow_ft.sinks.base.table_format import compared
from airflow_ft.sinks.delta.columns import FORMAT
from airflow_ft.sinks.delta.place import Place
from airflow_ft.sinks.delta.spec import DeltaSink
from airflow_ft.sinks.delta.table import Snapshot, translated_delta_errors
from airflow_ft.sinks.set_aside import DeliveredLog

_BATCH = 10_000


def verify(
    delivered: Sequence[Delivered],
    plan: ParticipantPlan,
    connection: ConnectionInfo,
    wal: WalReader,
    *,
    full: bool = False,
) -> list[SinkReport]:
    """One report a table. SinkUnavailableError, SinkAccessError, WalCorruptError: nothing could be compared."""
    log = DeliveredLog.of(wal, delivered)
    sent = by_target(delivered, plan.name, lambda given: str(given["table"]))
    return [
        _verify(of_table, plan.name, Place.of(DeltaSink.from_settings(plan.name, {"table": table}), connection), log)
        for table, of_table in sent.items()
    ]


def _verify(sent: Sequence[Sent], participant: str, place: Place, log: DeliveredLog) -> SinkReport:
    report = SinkReport.begun(participant, (name for _, name in sent), str(place), [each for each, _ in sent])

    def rows(names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        dataset: Any = place.open().to_pyarrow_dataset()
        yield from dataset.to_batches(columns=list(names), batch_size=_BATCH)

    with translated_delta_errors(place, participant=participant):
        there = Snapshot.newest(place)
        return compared(sent, report, log, FORMAT, there.columns if there is not None else None, rows)
