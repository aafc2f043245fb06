"""Compare the tables with the log's rows, also after others have compacted their files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import SinkUnavailableError
from airflow_ft.protocol.model import ParticipantPlan
from airflow_ft.protocol.verify import Delivered, Sent, SinkReport, by_target
from airflow_ft.protocol.write_ahead_log import SegmentReader, WalFile, WalReader
from airflow_ft.sinks.base.comparison import Row, compare
from airflow_ft.sinks.delta.columns import Column, cast, holds, lacking
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
    readers = log.readers(sent)
    with translated_delta_errors(place, participant=participant):
        there = Snapshot.newest(place)
        if there is None:
            raise SinkUnavailableError(
                f"the table {place} does not exist.",
                code="table_missing",
                remedy=f"Restore {place}.",
                table=str(place),
            )
        written: set[str] = set()
        for _, name, reader in readers:
            schema = reader.schema(name)
            if gone := lacking(schema, there.columns).names:
                return replace(report, error=f"the table has no column {gone[0]!r}")
            types = {field.name.lower(): field.type for field in schema}
            for column in there.columns:  # cast like the table's values, the log's would look the same
                kind = types.get(column.name.lower())
                if kind is not None and not holds(column, kind):
                    what = f"column {column.name!r} is {column.type}, which does not hold {kind} exactly"
                    return replace(report, error=what)
            written |= {each.lower() for each in schema.names}
        columns = [column for column in there.columns if column.name.lower() in written]

        def in_log(reader: SegmentReader, name: str, file: WalFile) -> Iterator[list[Row]]:
            for batch in reader.batches(name, file):
                yield _rows(cast(batch, columns), columns)

        return compare(report, readers, in_log, _in_table(place, columns))


def _in_table(place: Place, columns: Sequence[Column]) -> Iterator[list[Row]]:
    dataset: Any = place.open().to_pyarrow_dataset()
    names = [column.name for column in columns]
    for batch in dataset.to_batches(columns=names, batch_size=_BATCH) if names else ():
        yield _rows(batch, columns)


def _rows(rows: pa.RecordBatch, columns: Sequence[Column]) -> list[Row]:
    """In the order of the columns; one that is lacking is NULL."""
    names = rows.schema.names
    values = [rows.column(c.name).to_pylist() if c.name in names else [None] * rows.num_rows for c in columns]
    return list(zip(*values, strict=True))
