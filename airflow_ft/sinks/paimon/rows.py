"""The rows of a number as data files in the table's folder, which no reader sees before a snapshot names them.

    <table>/country=DE/bucket-0/data-0f1e2d3c-....-0.parquet

Files of the log become files of the table by a second name if their columns fit, and the table has neither partitions
nor buckets. Otherwise the rows are written again. If the process dies before the commit, files are left that no
snapshot names, and Paimon's `remove_orphan_files` removes them.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_ft.protocol.model import Plan
from airflow_ft.protocol.write_ahead_log import SegmentReader
from airflow_ft.sinks.arrow import indices, numbers, scalar
from airflow_ft.sinks.files.partitions import groups
from airflow_ft.sinks.files.table_rows import TableRows
from airflow_ft.sinks.files.writing import Files
from airflow_ft.sinks.paimon.binary_row import Value, encoded
from airflow_ft.sinks.paimon.buckets import Buckets
from airflow_ft.sinks.paimon.columns import FORMAT
from airflow_ft.sinks.paimon.features import APPEND
from airflow_ft.sinks.paimon.manifests import Record, Slot, entry
from airflow_ft.sinks.paimon.partitions import Partitions, refused
from airflow_ft.sinks.paimon.table import Version
from airflow_ft.sinks.refused import Refused
from airflow_ft.wal.local import local_path


@dataclass
class Rows(TableRows):
    """Files that one step adds to a version of the table."""

    form = FORMAT
    results = ("entries", "_made")

    version: Version
    entries: list[Record] = field(default_factory=list)
    _made: list[str] = field(default_factory=list)
    """The URIs of all files, also while they are being written."""

    def _write(self, plan: Plan, readers: Sequence[SegmentReader], dead_letters: Refused | None) -> int:
        schema = self.version.schema
        assert schema is not None
        out = _DataFiles(self.version, self.file_bytes, self._made)
        written = {each.path: each for each in self._filled(out, readers, dead_letters, out.divide)}
        self._sync()
        following = self.version.following() if self.version.layout.buckets.count else {}
        for path, slot in out.slots.items():
            each, first = written[path], following.get((slot.partition, slot.bucket), 0)
            self.entries.append(entry(slot, path.rpartition("/")[2], each.bytes, each.rows, int(schema["id"]), first))
            if slot.buckets > 0:
                following[slot.partition, slot.bucket] = first + each.rows
        return sum(each.rows for each in written.values())

    def _sync(self) -> None:
        """Returns when the files survive a power cut; they are as old as their delivery now."""
        place, now = self.version.place, time.time()
        for uri in self._made:  # remove_orphan_files goes by the age
            os.utime(local_path(uri), (now, now))
            with place.files.open(uri) as file:  # a copy from another file system is not synced yet
                place.files.sync_file(file)
        for folder in dict.fromkeys(uri.rpartition("/")[0] for uri in self._made):
            place.files.sync_folders(folder, place.root)

    def try_out(self, readers: Sequence[SegmentReader]) -> None:
        if self.version.layout.buckets.count:
            self.version.following()
        super().try_out(readers)

    def _made_for(self) -> object:
        """Return the schema. Rows in buckets have numbers, which follow those of the rows that are there."""
        assert self.version.schema is not None
        return None if self.version.layout.buckets.count else self.version.schema["id"]

    def _remove(self) -> None:
        for uri in self._made:
            self.version.place.files.remove(uri)
        self._made.clear()

    def _judged(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Mapping[int, str]]:
        rows = FORMAT.cast(batch, self.version.columns or ())
        return rows, self._empty(rows) | refused(rows, self.version.layout.partition_by)

    def _fits(self, reader: SegmentReader) -> bool:
        in_parts = self.version.layout.partition_by or self.version.layout.buckets.count
        return super()._fits(reader) and not in_parts


Place = tuple[Value, ...]
"""The values of a partition, and the number of a bucket in it."""


class _DataFiles(Files):
    """Files in the folders of their partitions, with names that no other writer gives."""

    def __init__(self, version: Version, file_bytes: int, made: list[str]) -> None:
        super().__init__(version.place.files, version.place.root, "parquet", "", file_bytes, checksums=False)
        self._partitions, self._buckets = version.partitions, version.layout.buckets
        self._made, self._name = made, uuid.uuid4()
        self._places: dict[str, Place] = {}
        self.slots: dict[str, Slot] = {}
        """The bucket and partition of each file, in the order in which the files were begun."""

    def place(self, folder: str = "") -> tuple[str, str]:
        """Return the next file of a place, see `Files.place`.

        `folder` is the text of the place, not its path: NULL and the text that represents it may share a path.
        """
        *values, bucket = self._places.get(folder, (0,))
        name = f"{self._partitions.folder(values)}bucket-{bucket}/data-{self._name}-{self._count}.parquet"
        self.slots[name] = Slot(
            encoded(values, self._partitions.kinds), int(bucket or 0), self._buckets.count or APPEND
        )
        self._count += 1
        uri = self._files.uri(self._root, *name.split("/"))
        self._made.append(uri)
        return name, uri

    def divide(self, rows: pa.RecordBatch) -> None:
        """Add rows to the files of their partitions and buckets."""
        for place, part in divided(self._partitions, self._buckets, rows):
            key = repr(place)
            self._places[key] = place
            self.put(key, part)


def divided(partitions: Partitions, buckets: Buckets, rows: pa.RecordBatch) -> Iterator[tuple[Place, pa.RecordBatch]]:
    """Yield the rows of each place, in their order."""
    columns = [_codes(rows, name) for name in partitions.by]
    if buckets.count:
        columns.append((buckets.of(rows), list(range(buckets.count))))
    if not columns:
        yield (0,), rows
        return
    which = np.zeros(rows.num_rows, np.int64)
    for codes, values in columns:
        which = np.unique(which * (len(values) + 1) + codes, return_inverse=True)[1]
    for mine in groups(which):
        place = tuple(values[int(codes[mine[0]])] for codes, values in columns)
        yield (place if buckets.count else (*place, 0)), rows.take(indices(mine))


def _codes(rows: pa.RecordBatch, name: str) -> tuple[Any, list[Value]]:
    """Return the position of each row's value in a list of values, the last of which is NULL."""
    if name not in rows.schema.names:
        return np.zeros(rows.num_rows, np.int64), [None]
    column = rows.column(name)
    if pa.types.is_date32(column.type):
        column = column.view(pa.int32())
    found = column.dictionary_encode()
    values: list[Value] = [*found.dictionary.to_pylist(), None]
    codes = pc.fill_null(found.indices, scalar(len(values) - 1, found.indices.type))
    return numbers(codes).astype(np.int64), values
