"""Compare the tables with the log's rows, also after others have compacted their files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.model import ParticipantPlan
from airflow_ft.protocol.verify import Delivered, SinkReport
from airflow_ft.protocol.write_ahead_log import WalReader
from airflow_ft.sinks.iceberg.catalog import Connected
from airflow_ft.sinks.iceberg.columns import FORMAT
from airflow_ft.sinks.iceberg.requirements import CHECKS
from airflow_ft.sinks.iceberg.table import Version


def verify(
    delivered: Sequence[Delivered],
    plan: ParticipantPlan,
    connection: ConnectionInfo,
    wal: WalReader,
    *,
    full: bool = False,
) -> list[SinkReport]:
    """One report a table. SinkUnavailableError, SinkAccessError, WalCorruptError: nothing could be compared."""
    return CHECKS.verify(delivered, plan, connection, wal, FORMAT, _rows)


def _rows(_: Connected, version: Version, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    yield from version.table.scan(selected_fields=tuple(names)).to_arrow_batch_reader()
