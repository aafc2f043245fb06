"""Compare rows with the log: the last change of each row key against what HBase has."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.model import ParticipantPlan
from airflow_ft.protocol.verify import Delivered, SinkReport, by_target, sample
from airflow_ft.protocol.write_ahead_log import SegmentReader, WalReader
from airflow_ft.sinks.base.keyed import Chunk, kinds_of, null_keys, pieces
from airflow_ft.sinks.base.keyed_verify import Change, Found, compare_keys
from airflow_ft.sinks.hbase.participant import Documents
from airflow_ft.sinks.hbase.rows import cells, encoded
from airflow_ft.sinks.hbase.server import address, opened, require_table
from airflow_ft.sinks.hbase.spec import HBaseSink
from airflow_ft.sinks.set_aside import DeliveredLog


def verify(
    delivered: Sequence[Delivered],
    plan: ParticipantPlan,
    connection: ConnectionInfo,
    wal: WalReader,
    *,
    full: bool = False,
) -> list[SinkReport]:
    """Return one report for each table and template of its row key. Other rows and cells are not counted.

    SinkUnavailableError, SinkAccessError, UnfitTargetError, WalCorruptError: nothing could be compared.
    """
    log = DeliveredLog.of(wal, delivered)
    with opened(connection, participant=plan.name) as client:
        pipeline = delivered[-1].plan.pipeline
        head = Documents(client, connection, plan.name).read(pipeline)[0].head()
    last, stamps = head.last_delivered if head else None, Stamps.of(delivered)
    reports = []
    for target, sent in by_target(delivered, plan.name, _target).items():
        into = list({each.plan.number: each for each, _ in sent}.values())
        begun = SinkReport.begun(plan.name, (name for _, name in sent), target, into)
        newest, newest_name = sent[-1]
        sink = HBaseSink.all_of(newest.plan.participant(plan.name))[newest_name]
        with opened(connection, participant=plan.name) as client:
            expiring = require_table(client, address(connection), sink.table, sink.families)
        if expiring:
            reports.append(replace(begun, error="its cells expire, so missing ones prove nothing"))
            continue
        readers = [each for each in log.readers(sent) if each[2].schema(each[1]).names]
        names = _common([cells(sink, reader.schema(name)) for _, name, reader in readers])
        changes = [(number, _changes(sink, name, reader, names)) for number, name, reader in readers]
        reports.append(compare_keys(begun, into, last, changes, partial(_look, connection, sink, stamps, names)))
    return reports


def _target(settings: Mapping[str, Any]) -> str:
    return f"{settings['table']} {settings['row_key']}"


@dataclass(frozen=True, slots=True)
class Stamps:
    """First and last stamps of compared numbers, ascending."""

    firsts: Sequence[int]
    lasts: Sequence[int]
    numbers: Sequence[int]

    @classmethod
    def of(cls, delivered: Sequence[Delivered]) -> Stamps:
        """Return the stamps that the markers of these deliveries keep."""
        kept = {each.plan.number: each.proof.detail.get("stamps") for each in delivered if each.proof is not None}
        given = sorted((*stamps, number) for number, stamps in kept.items() if stamps)
        return cls([first for first, _, _ in given], [last for _, last, _ in given], [number for *_, number in given])

    def number(self, stamp: int) -> int:
        """Return the number that wrote a cell, or else the one that follows (0: an earlier one)."""
        at = bisect_right(self.firsts, stamp) - 1
        return self.numbers[at] + (stamp > self.lasts[at]) if at >= 0 else 0


def _common(written: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the cells that all compared rows have."""
    return [cell for cell in written[-1].values() if all(cell in each.values() for each in written)] if written else []


def _changes(sink: HBaseSink, name: str, reader: SegmentReader, names: Sequence[str]) -> Iterator[Change]:
    wanted = {cell.encode() for cell in names}
    for _, _, rows in pieces(reader, name):
        deletes, _ = kinds_of(rows, sink.change_column)
        refused = null_keys(rows, sink.key_columns)
        found = encoded(sink, Chunk(0, name, rows, deletes, refused))
        for delete, key, row in zip(deletes, found.keys, found.values(), strict=True):
            values = {cell: value for cell, value in row.items() if cell in wanted}
            shown = sample((_text(key), *(value.decode(errors="replace") for value in values.values())))
            yield Change(_text(key), None if delete or not values else _digest(values), shown)


def _look(
    connection: ConnectionInfo, sink: HBaseSink, stamps: Stamps, names: Sequence[str], keys: Sequence[str]
) -> Mapping[str, Found]:
    """Look keys up. It connects each time: the gateway closes connections that rest while the log is read."""
    if not names:
        return {}
    with opened(connection) as client:
        asked = [key.encode() for key in keys], [cell.encode() for cell in names]
        rows = client.getRowsWithColumns(sink.table.encode(), *asked, {})
    found = {}
    for row in rows:
        values = {cell: each.value for cell, each in row.columns.items()}
        if values:
            newest = max(each.timestamp for each in row.columns.values())
            found[_text(row.row)] = Found(_digest(values), stamps.number(newest))
    return found


def _text(key: bytes) -> str:
    return key.decode()


def _digest(values: Mapping[bytes, bytes]) -> bytes:
    pairs: Iterable[tuple[bytes, bytes]] = sorted(values.items())
    return hashlib.blake2b(repr(list(pairs)).encode(), digest_size=20).digest()
