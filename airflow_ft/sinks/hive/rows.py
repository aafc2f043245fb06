"""The rows of a number as files in the table's folder, which no partition names before the request adds them.

    <table>/_airflow_ft/<group>/42.3-17-1a2b3c4d/country=DE/part-00000.parquet

Files of the log become files of a table of Parquet by a second name if their columns fit, also by order, and rows are
not divided. Otherwise the rows are written again. If the process dies before the request, a folder is left that no
partition names.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from airflow_ft.protocol.model import Plan
from airflow_ft.protocol.write_ahead_log import SegmentReader
from airflow_ft.sinks.files import partitions
from airflow_ft.sinks.files.table_rows import TableRows
from airflow_ft.sinks.files.writing import Files
from airflow_ft.sinks.hive import formats
from airflow_ft.sinks.hive.columns import FORMAT, arrow_of, in_files
from airflow_ft.sinks.hive.table import Part, Version
from airflow_ft.sinks.refused import Refused
from airflow_ft.wal.local import LocalFileSystem, local_path, sync_above

_LONGEST = 500
"""Bytes of the name of a partition, without the sink's own value: metastores have room for 767."""


@dataclass
class Rows(TableRows):
    """Files that one step adds to a version of the table."""

    form = FORMAT

    version: Version
    group: str
    rank: tuple[int, int]
    number: int = 0
    parts: list[Part] = field(default_factory=list)
    _folders: list[str] = field(default_factory=list)

    def _write(self, plan: Plan, readers: Sequence[SegmentReader], dead_letters: Refused | None) -> int:
        self.number = plan.number
        epoch, attempt = self.rank
        version, files, keys = self.version, self.version.files, self.version.keys
        name = f"{plan.number}.{epoch}-{attempt}-{uuid.uuid4().hex[:8]}"
        folder = version.uri(*self.group.split("/"), name)
        self._folders.append(folder)
        out = Files(files, folder, version.format, "", self.file_bytes, checksums=False)

        def put(rows: pa.RecordBatch) -> None:
            for partition, part in partitions.split(rows, keys):
                out.put(partition, part)

        written = self._filled(out, readers, dead_letters, put)
        if written:
            files.sync_tree(folder, version.root, {})
            if isinstance(files, LocalFileSystem):  # the metastore may have made these folders, and syncs nothing
                sync_above(local_path(version.root))
        for place in dict.fromkeys(each.path.rpartition("/")[0] for each in written):
            below = files.uri(folder, *place.split("/")) if place else folder
            self.parts.append(Part(partitions.values_of(place, keys), below))
        return sum(each.rows for each in written)

    def _remove(self) -> None:
        for folder in self._folders:
            self.version.files.remove_tree(folder)

    def _judged(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Mapping[int, str]]:
        rows = FORMAT.cast(batch, self.version.columns)
        keys = self.version.keys
        given = dict(zip(rows.schema.names, rows.columns, strict=True))
        filled = {
            each.name: given[each.name] if each.name in given else pa.nulls(rows.num_rows, arrow_of(each.type))
            for each in in_files(self.version.table, given)
        }
        filled |= {key: given[key] for key in keys}
        rows = pa.RecordBatch.from_arrays(list(filled.values()), names=list(filled))
        return rows, {**partitions.refused(rows, keys, _LONGEST), **formats.refused(self.version.format, rows, keys)}

    def _fits(self, reader: SegmentReader) -> bool:
        names = reader.schema(self.sink).names
        in_order = [column.name for column in in_files(self.version.table, names)] == names
        return super()._fits(reader) and in_order and not self.version.keys and self.version.format == "parquet"
