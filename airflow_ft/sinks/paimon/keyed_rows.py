"""The rows of a number for a table with a primary key: sorted files of changes, of which readers take the last one.

    <table>/bucket-2/data-0f1e2d3c-....-0.parquet     _KEY_id, _SEQUENCE_NUMBER, _VALUE_KIND, id, text, ...

Rows wait in memory until they are many. Then the rows of each bucket are sorted by key, and the last change of each key
becomes a row of a file on level 0. Sequence numbers follow the order of the log, across files and checkpoints.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_ft.protocol.model import Plan
from airflow_ft.protocol.write_ahead_log import SegmentReader
from airflow_ft.sinks.arrow import booleans
from airflow_ft.sinks.base.keyed import kinds_of, null_keys
from airflow_ft.sinks.files.writing import parquet_writer
from airflow_ft.sinks.paimon.binary_row import encoded
from airflow_ft.sinks.paimon.columns import FORMAT
from airflow_ft.sinks.paimon.manifests import Slot, entry
from airflow_ft.sinks.paimon.partitions import refused
from airflow_ft.sinks.paimon.rows import Place, Rows, divided
from airflow_ft.sinks.refused import Refused

KEY, NUMBER, KIND = "_KEY_", "_SEQUENCE_NUMBER", "_VALUE_KIND"
INSERT, DELETE = 0, 3
_AT_ONCE = 16 << 20
"""Bytes of rows that wait in memory. Sorting those of one bucket takes about three times as much."""


@dataclass
class KeyedRows(Rows):
    """Files that one step adds to a version of a table with a primary key."""

    change_column: str | None = None
    _following: dict[tuple[bytes, int], int] = field(default_factory=dict)

    def _write(self, plan: Plan, readers: Sequence[SegmentReader], dead_letters: Refused | None) -> int:
        self._following = self.version.following()
        waiting: dict[Place, list[pa.RecordBatch]] = {}
        size = rows = 0
        for reader in readers:
            for file in reader.files(self.sink):
                for batch in self._taken(reader, file, dead_letters):
                    rows += batch.num_rows
                    size += batch.nbytes
                    for place, part in divided(self.version.partitions, self.version.layout.buckets, batch):
                        waiting.setdefault(place, []).append(part)
                    if size >= _AT_ONCE:
                        self._flush(waiting)
                        size = 0
        self._flush(waiting)
        self._sync()
        return rows

    def _fits(self, reader: SegmentReader) -> bool:
        return False

    def _judged(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Mapping[int, str]]:
        deletes, unknown = kinds_of(batch, self.change_column)
        if self.change_column is not None:
            batch = batch.drop_columns([self.change_column])
        rows = FORMAT.cast(batch, self.version.columns or ())
        empty = {row: why for row, why in self._empty(rows).items() if not deletes[row]}
        layout = self.version.layout
        found = empty | refused(rows, layout.partition_by) | null_keys(rows, layout.primary_key)
        kinds = pa.array(np.where(deletes, DELETE, INSERT).astype(np.int8))
        return rows.append_column(KIND, kinds), found | unknown

    def _flush(self, waiting: dict[Place, list[pa.RecordBatch]]) -> None:
        """Write the changes of all buckets, and forget them."""
        version = self.version
        while waiting:
            (*values, bucket), found = waiting.popitem()
            slot = Slot(encoded(values, version.partitions.kinds), int(bucket or 0), version.layout.buckets.count)
            tables = [pa.Table.from_batches([each]) for each in found]
            found.clear()
            whole = pa.concat_tables(tables, promote_options="permissive").combine_chunks()
            del tables
            self._write_changes(slot, f"{version.partitions.folder(values)}bucket-{slot.bucket}", whole)

    def _write_changes(self, slot: Slot, folder: str, rows: pa.Table) -> None:
        """Write the last change of each key of a bucket."""
        version, key = self.version, self.version.layout.trimmed_key
        first = self._following.get((slot.partition, slot.bucket), 0)
        self._following[slot.partition, slot.bucket] = first + rows.num_rows
        changes = _last(rows.append_column(NUMBER, pa.array(np.arange(first, first + rows.num_rows))), key)
        names = [name for name in rows.column_names if name != KIND]
        columns = [changes[name] for name in (*key, NUMBER, KIND, *names)]
        file = f"data-{uuid.uuid4()}-0.parquet"
        size = self._file(
            version.place.uri(*folder.split("/"), file),
            pa.table(columns, names=[*(f"{KEY}{name}" for name in key), NUMBER, KIND, *names]),
        )
        keys, kinds = [_plain(changes[name]) for name in key], version.kinds_of(key)
        ends = [encoded([column[row].as_py() for column in keys], kinds) for row in (0, len(changes) - 1)]
        bounds = [encoded([bound(column).as_py() for column in keys], kinds) for bound in (pc.min, pc.max)]
        numbers = pc.min_max(changes[NUMBER])
        more = {
            "_MIN_KEY": ends[0], "_MAX_KEY": ends[1],
            "_KEY_STATS": {"_MIN_VALUES": bounds[0], "_MAX_VALUES": bounds[1], "_NULL_COUNTS": [0] * len(key)},
            "_DELETE_ROW_COUNT": pc.sum(pc.equal(changes[KIND], DELETE)).as_py() or 0,
            "_MIN_SEQUENCE_NUMBER": numbers["min"].as_py(), "_MAX_SEQUENCE_NUMBER": numbers["max"].as_py(),
        }  # fmt: skip
        assert version.schema is not None
        self.entries.append(entry(slot, file, size, len(changes), int(version.schema["id"]), more=more))

    def _file(self, uri: str, rows: pa.Table) -> int:
        """Write a file, and return its bytes."""
        self._made.append(uri)
        with self.version.place.files.create(uri) as out:
            with parquet_writer(out, rows) as writer:
                writer.write_table(rows)
            return out.tell()


def _last(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """Return the last change of each key, by key."""
    order = pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in (*key, NUMBER)])
    keys = rows.select(key).take(order)
    last = np.zeros(len(rows), bool)
    last[-1] = True
    for name in key:
        column = keys[name].combine_chunks()
        last[:-1] |= booleans(pc.not_equal(column.slice(1), column.slice(0, len(column) - 1)))
    return rows.take(order.filter(pa.array(last)))


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column whose days are numbers."""
    return column.cast(pa.int32()) if pa.types.is_date32(column.type) else column
