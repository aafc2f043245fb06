"""Compare the tables with the log's rows, also after others have compacted their files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.model import ParticipantPlan
from airflow_ft.protocol.verify import Delivered, SinkReport
from airflow_ft.protocol.write_ahead_log import WalReader
from airflow_ft.sinks.delta.columns import FORMAT
from airflow_ft.sinks.delta.place import Place
from airflow_ft.sinks.delta.requirements import CHECKS
from airflow_ft.sinks.delta.table import Snapshot

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
    return CHECKS.verify(delivered, plan, connection, wal, FORMAT, _rows)


def _rows(place: Place, _: Snapshot, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    dataset: Any = place.open().to_pyarrow_dataset()
    yield from dataset.to_batches(columns=list(names), batch_size=_BATCH)
