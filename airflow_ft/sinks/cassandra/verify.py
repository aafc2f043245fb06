"""Compare a table with the log: the last change of each key against the row that is there."""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from cassandra import ConsistencyLevel
from cassandra.cluster import Session
from cassandra.concurrent import execute_concurrent_with_args

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.model import ParticipantPlan
from airflow_ft.protocol.verify import Delivered, SinkReport, by_target, sample
from airflow_ft.protocol.write_ahead_log import SegmentReader, WalReader
from airflow_ft.sinks.arrow import flags, masked
from airflow_ft.sinks.base.document import DocumentLedger
from airflow_ft.sinks.base.keyed import kinds_of, pieces
from airflow_ft.sinks.base.keyed_verify import Change, Found, compare_keys
from airflow_ft.sinks.cassandra.columns import from_text, read, to_text, values
from airflow_ft.sinks.cassandra.participant import Documents
from airflow_ft.sinks.cassandra.rows import keys
from airflow_ft.sinks.cassandra.server import documents_exist, keyspace_of, opened
from airflow_ft.sinks.cassandra.spec import CassandraSink
from airflow_ft.sinks.cassandra.table import Table, read_table, written
from airflow_ft.sinks.set_aside import DeliveredLog


def verify(
    delivered: Sequence[Delivered],
    plan: ParticipantPlan,
    connection: ConnectionInfo,
    wal: WalReader,
    *,
    full: bool = False,
) -> list[SinkReport]:
    """Return one report for each table, over all sinks into it. Other keys are not counted.

    SinkUnavailableError, SinkAccessError, WalCorruptError: nothing could be compared.
    """
    log, own = DeliveredLog.of(wal, delivered), keyspace_of(connection)
    reports = []
    with opened(connection, participant=plan.name) as session:
        for target, sent in by_target(delivered, plan.name, partial(_target, own)).items():
            into = list({each.plan.number: each for each, _ in sent}.values())
            begun = SinkReport.begun(plan.name, (name for _, name in sent), target, into)
            newest, newest_name = sent[-1]
            sink = CassandraSink.all_of(newest.plan.participant(plan.name))[newest_name]
            table = read_table(session, *sink.place(own))
            if table.seconds_to_live(sink):
                reports.append(replace(begun, error="its rows expire, so missing ones prove nothing"))
                continue
            readers = [each for each in log.readers(sent) if each[2].schema(each[1]).names]
            compared = _common(sink, table, [reader.schema(name).names for _, name, reader in readers])
            changes = [(number, _changes(sink, table, name, reader, compared)) for number, name, reader in readers]
            ledger: DocumentLedger | None = None
            if documents_exist(session, own):
                ledger, _ = Documents(session, own, plan.name).read(newest.plan.pipeline)
            head = ledger.head() if ledger is not None else None
            rows = _Rows(session, table, sink, compared, _stamps(ledger))
            last = head.last_delivered if head else None
            reports.append(compare_keys(begun, into, last, changes, rows.look))
    return reports


def _target(own: str, settings: Mapping[str, Any]) -> str:
    """Return the whole name of a sink's table; `own` is the connection's keyspace."""
    return ".".join(CassandraSink(table=settings["table"]).place(own))


def _common(sink: CassandraSink, table: Table, schemas: Sequence[Sequence[str]]) -> list[str]:
    """Return the columns outside of the key that all compared rows have."""
    names = written(sink, schemas[-1]) if schemas else []
    return [name for name in names if name not in table.key and all(name in each for each in schemas)]


def _stamps(ledger: DocumentLedger | None) -> list[tuple[int, int]]:
    """Return the stamp and the number of each marker, in order."""
    if ledger is None:
        return []
    return sorted((marker.detail["stamp"], number) for number, marker in ledger.markers() if "stamp" in marker.detail)


def _changes(
    sink: CassandraSink, table: Table, name: str, reader: SegmentReader, compared: Sequence[str]
) -> Iterator[Change]:
    for _, _, rows in pieces(reader, name):
        deletes, _ = kinds_of(rows, sink.change_column)
        live = flags(~deletes)  # a delete may have anything in its other columns
        columns = [values(masked(rows.column(column), live), table.types[column]) for column in compared]
        for row, key in enumerate(zip(*keys(table, rows), strict=True)):
            found = [column[row] for column in columns]
            shown = sample((*key, *found))
            yield Change(json.dumps([*map(to_text, key)]), None if deletes[row] else _digest(found), shown)


@dataclass
class _Rows:
    """Rows that are there, by their keys."""

    session: Session
    table: Table
    sink: CassandraSink
    columns: Sequence[str]
    stamps: Sequence[tuple[int, int]]

    def __post_init__(self) -> None:
        self._select = self.session.prepare(self.table.select(self.columns))
        self._select.consistency_level = ConsistencyLevel.name_to_value[
            "QUORUM" if self.sink.consistency == "EACH_QUORUM" else self.sink.consistency
        ]  # nothing is read at EACH_QUORUM

    def look(self, texts: Sequence[str]) -> Mapping[str, Found]:
        """Return what is there of some keys."""
        types = [self.table.types[name] for name in self.table.key]
        wanted = [[from_text(value, cql) for value, cql in zip(json.loads(text), types, strict=True)] for text in texts]
        found = {}
        answers = execute_concurrent_with_args(self.session, self._select, wanted, concurrency=64)
        for text, (_, rows) in zip(texts, answers, strict=True):
            if (row := rows.one()) is not None:
                count = len(self.columns)
                there = [read(value) for value in row[:count]]
                stamps = [stamp for stamp in row[count : 2 * count] if stamp is not None]
                found[text] = Found(_digest(there), self._number(max(stamps, default=0)))
        return found

    def _number(self, stamp: int) -> int:
        """Return the checkpoint that has written at this time, or after which others have; 0: not known."""
        place = bisect_right(self.stamps, (stamp, 1 << 62))
        return self.stamps[place - 1][1] if place else 0


def _digest(values: Sequence[Any]) -> bytes:
    return hashlib.blake2b(repr(values).encode(), digest_size=20).digest()
