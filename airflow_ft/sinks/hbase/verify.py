"""Compare rows with the log: the last change of each row key against what HBase has."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.model import ParticipantPlan
from airflow_ft.protocol.verify import Delivered, SinkReport, Target, sample
from airflow_ft.protocol.write_ahead_log import SegmentReader, WalReader
from airflow_ft.sinks.base.document import DocumentLedger
from airflow_ft.sinks.base.keyed import Chunk, kinds_of, null_keys, pieces
from airflow_ft.sinks.base.keyed_verify import Change, Found, Readers, common, compare_targets, digest, sinks_of
from airflow_ft.sinks.hbase.participant import Documents
from airflow_ft.sinks.hbase.rows import cells, encoded
from airflow_ft.sinks.hbase.server import address, opened, require_table
from airflow_ft.sinks.hbase.spec import HBaseSink


def verify(
    delivered: Sequence[Delivered], plan: ParticipantPlan, connection: ConnectionInfo, wal: WalReader
) -> list[SinkReport]:
    """Return one report for each table and template of its row key; see `compare_targets`. Other cells are left out."""
    stamps, pipeline = stamps_of(delivered), delivered[-1].plan.pipeline

    def keys_of(target: Target, readers: Readers) -> _Keys:
        sink, sinks = HBaseSink.all_of(target.plan)[target.name], sinks_of(target, HBaseSink.all_of)
        names = common([cells(sinks[number, name], reader.schema(name)).values() for number, name, reader in readers])
        return _Keys(connection, plan.name, pipeline, sink, sinks, stamps, names)

    return compare_targets(delivered, plan, wal, lambda settings: f"{settings['table']} {settings['row_key']}", keys_of)


Stamps = Sequence[tuple[int, int, int]]
"""First and last stamp of compared numbers, with the number, ascending."""


def stamps_of(delivered: Sequence[Delivered]) -> Stamps:
    """Return the stamps that the markers of these deliveries keep."""
    kept = {each.plan.number: each.proof.detail.get("stamps") for each in delivered if each.proof is not None}
    return sorted((*stamps, number) for number, stamps in kept.items() if stamps)


def number_of(stamp: int, stamps: Stamps) -> int:
    """Return the number that wrote a cell, or else the one that follows (0: an earlier one)."""
    at = bisect_right(stamps, stamp, key=lambda each: each[0])
    if at == 0:
        return 0
    _, last, number = stamps[at - 1]
    return number + (stamp > last)


@dataclass
class _Keys:
    """Rows of one table and template. `names` are the cells that all compared rows have.

    `sink` is the newest one, `sinks` are those that delivered, by number and name.
    It connects each time: the gateway closes connections that rest while the log is read.
    """

    connection: ConnectionInfo
    participant: str
    pipeline: str
    sink: HBaseSink
    sinks: Mapping[tuple[int, str], HBaseSink]
    stamps: Stamps
    names: Sequence[str]

    @property
    def error(self) -> str:
        with opened(self.connection, participant=self.participant) as client:
            expiring = require_table(client, address(self.connection), self.sink.table, self.sink.families)
        return "its cells expire, so missing ones prove nothing" if expiring else ""

    def ledger(self) -> DocumentLedger:
        with opened(self.connection, participant=self.participant) as client:
            return Documents(client, self.connection, self.participant).read(self.pipeline)[0]

    def changes(self, number: int, name: str, reader: SegmentReader) -> Iterator[Change]:
        sink, wanted = self.sinks[number, name], {cell.encode() for cell in self.names}
        for _, _, rows in pieces(reader, name):
            deletes, _ = kinds_of(rows, sink.change_column)
            found = encoded(sink, Chunk(0, name, rows, deletes, null_keys(rows, sink.key_columns)))
            for delete, key, row in zip(deletes, found.keys, found.values(), strict=True):
                values = {cell: value for cell, value in row.items() if cell in wanted}
                shown = sample((key.decode(), *(value.decode(errors="replace") for value in values.values())))
                there = None if delete or not values else digest(sorted(values.items()))
                yield Change(key.decode(), there, shown, sum(map(len, values.values())))

    def look_up(self, keys: Sequence[str]) -> Mapping[str, Found]:
        if not self.names:
            return {}
        with opened(self.connection) as client:
            asked = [key.encode() for key in keys], [cell.encode() for cell in self.names]
            rows = client.getRowsWithColumns(self.sink.table.encode(), *asked, {})
        found = {}
        for row in rows:
            values = {cell: each.value for cell, each in row.columns.items()}
            if values:
                newest = max(each.timestamp for each in row.columns.values())
                found[row.row.decode()] = Found(digest(sorted(values.items())), number_of(newest, self.stamps))
        return found
