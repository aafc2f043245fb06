"""Compare the tables with the log's rows, also after others have compacted their files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing

import pyarrow as pa

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.model import ParticipantPlan
from airflow_ft.protocol.verify import Delivered, Sent, SinkReport, by_target
from airflow_ft.protocol.write_ahead_log import WalReader
from airflow_ft.sinks.base.table_format import compared
from airflow_ft.sinks.iceberg.catalog import Connected
from airflow_ft.sinks.iceberg.columns import FORMAT
from airflow_ft.sinks.iceberg.spec import IcebergSink
from airflow_ft.sinks.iceberg.table import Version
from airflow_ft.sinks.set_aside import DeliveredLog


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
    return [_verify(of_table, plan.name, table, connection, log) for table, of_table in sent.items()]


def _verify(
    sent: Sequence[Sent], participant: str, table: str, connection: ConnectionInfo, log: DeliveredLog
) -> SinkReport:
    sink = IcebergSink.from_settings(participant, {"table": table})
    with closing(Connected(connection, sink.identifier)) as place, place.translated_errors(participant=participant):
        report = SinkReport.begun(participant, (name for _, name in sent), str(place), [each for each, _ in sent])
        there = Version.newest(place)

        def rows(names: Sequence[str]) -> Iterator[pa.RecordBatch]:
            assert there is not None
            yield from there.table.scan(selected_fields=tuple(names)).to_arrow_batch_reader()

        return compared(sent, report, log, FORMAT, there.columns if there is not None else None, rows)
