"""Compare a table with the log: the last change of each key against the row that is there."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from cassandra import ConsistencyLevel
from cassandra.cluster import Session
from cassandra.concurrent import execute_concurrent_with_args

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.model import ParticipantPlan
from airflow_ft.protocol.verify import Delivered, SinkReport, Target, sample
from airflow_ft.protocol.write_ahead_log import SegmentReader, WalReader
from airflow_ft.sinks.arrow import flags, masked
from airflow_ft.sinks.base.document import DocumentLedger
from airflow_ft.sinks.base.keyed import kinds_of, pieces
from airflow_ft.sinks.base.keyed_verify import Change, Found, Readers, common, compare_targets, digest, sinks_of
from airflow_ft.sinks.cassandra.columns import from_text, read, to_text, values
from airflow_ft.sinks.cassandra.participant import Documents
from airflow_ft.sinks.cassandra.rows import keys
from airflow_ft.sinks.cassandra.server import keyspace_of, opened
from airflow_ft.sinks.cassandra.spec import CassandraSink
from airflow_ft.sinks.cassandra.table import Table, read_table, written


def verify(
    delivered: Sequence[Delivered], plan: ParticipantPlan, connection: ConnectionInfo, wal: WalReader
) -> list[SinkReport]:
    """Return one report for each table; see `airflow_ft.sinks.base.keyed_verify.compare_targets`."""
    own = keyspace_of(connection)
    with opened(connection, participant=plan.name) as session:

        def keys_of(target: Target, readers: Readers) -> _Keys:
            sink, sinks = CassandraSink.all_of(target.plan)[target.name], sinks_of(target, CassandraSink.all_of)
            table = read_table(session, *sink.place(own))
            names = common([written(sinks[n, name], reader.schema(name).names) for n, name, reader in readers])
            columns = [name for name in names if name not in table.key]
            ledger, _ = Documents(session, connection, plan.name).read(delivered[-1].plan.pipeline)
            return _Keys(session, table, sink, sinks, columns, ledger)

        return compare_targets(
            delivered, plan, wal, lambda given: ".".join(CassandraSink(table=given["table"]).place(own)), keys_of
        )


@dataclass
class _Keys:
    """Rows of one table. `columns` are those outside of the key that all compared rows have."""

    session: Session
    table: Table
    sink: CassandraSink
    sinks: Mapping[tuple[int, str], CassandraSink]
    columns: Sequence[str]
    read_ledger: DocumentLedger

    def __post_init__(self) -> None:
        self._select = self.session.prepare(self.table.select(self.columns))
        self._select.consistency_level = ConsistencyLevel.name_to_value[
            "QUORUM" if self.sink.consistency == "EACH_QUORUM" else self.sink.consistency
        ]  # nothing is read at EACH_QUORUM
        markers = self.read_ledger.markers()
        self._stamps = sorted((marker.detail["stamp"], n) for n, marker in markers if "stamp" in marker.detail)

    @property
    def error(self) -> str:
        expire = any(self.table.seconds_to_live(sink) for sink in self.sinks.values())
        return "its rows expire, so missing ones prove nothing" if expire else ""

    def ledger(self) -> DocumentLedger:
        return self.read_ledger

    def changes(self, number: int, name: str, reader: SegmentReader) -> Iterator[Change]:
        for _, _, rows in pieces(reader, name):
            deletes, _ = kinds_of(rows, self.sinks[number, name].change_column)
            live = flags(~deletes)  # a delete may have anything in its other columns
            types = self.table.types
            columns = [values(masked(rows.column(column), live), types[column]) for column in self.columns]
            for row, key in enumerate(zip(*keys(self.table, rows), strict=True)):
                found = [column[row] for column in columns]
                shown = sample((*key, *found))
                size = sum(len(value) for value in found if isinstance(value, str | bytes))
                yield Change(json.dumps([*map(to_text, key)]), None if deletes[row] else digest(found), shown, size)

    def look_up(self, texts: Sequence[str]) -> Mapping[str, Found]:
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
                found[text] = Found(digest(there), self._number(max(stamps)) if stamps else None)
        return found

    def _number(self, stamp: int) -> int:
        """Return the checkpoint that has written at this time, or after which others have; 0: an earlier one."""
        place = bisect_right(self._stamps, (stamp, 1 << 62))
        return self._stamps[place - 1][1] if place else 0
