"""The rows of a number as files in the table's folder, which no partition names before the request adds them.

    <table>/_airflow_ft/<group>/42.3-17-1a2b3c4d/country=DE/part-00000.parquet

Files of the log become files of a table of Parquet by a second name if their columns fit and rows are not divided;
otherwise the rows are written again. If the process dies before the request, a folder is left that no partition names.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import unquote

import pyarrow as pa

from airflow_ft.protocol.errors import AirflowFtError
from airflow_ft.protocol.model import Plan
from airflow_ft.protocol.write_ahead_log import SegmentReader
from airflow_ft.sinks.files import partitions
from airflow_ft.sinks.files.table_rows import TableRows
from airflow_ft.sinks.files.writing import Files
from airflow_ft.sinks.hive import formats
from airflow_ft.sinks.hive.columns import FORMAT
from airflow_ft.sinks.hive.table import Part, Version
from airflow_ft.sinks.refused import Refused, has_rows

_LONGEST = 500
"""Bytes of the name of a partition, without the sink's own value: metastores have room for 767."""


@dataclass
class Rows(TableRows):
    """Files that one step adds to a version of the table."""

    version: Version
    sink: str
    group: str
    file_bytes: int
    rank: tuple[int, int] = (0, 0)
    number: int = 0
    parts: list[Part] = field(default_factory=list)
    _folders: list[str] = field(default_factory=list)

    def write(self, plan: Plan, readers: Sequence[SegmentReader], dead_letters: Refused | None) -> int:
        """All rows, durably; how many. Without `dead_letters` DeclinedError for rows that the table refuses."""
        self.number = plan.number
        mine = [reader for reader in readers if has_rows(reader, self.sink)]
        if not mine:
            return 0
        epoch, attempt = self.rank
        version, files, keys = self.version, self.version.files, self.version.keys
        name = f"{plan.number}.{epoch}-{attempt}-{uuid.uuid4().hex[:8]}"
        folder = version.uri(*self.group.split("/"), name)
        self._folders.append(folder)
        out = Files(files, folder, version.format, "", self.file_bytes, checksums=False)

        def put(rows: pa.RecordBatch) -> None:
            for partition, part in partitions.split(rows, keys):
                if part.num_rows:
                    out.put(partition, part)

        written = self._filled(out, mine, dead_letters, put)
        if written:
            files.sync_tree(folder, version.root, {})
        for place in dict.fromkeys(each.path.rpartition("/")[0] for each in written):
            below = files.uri(folder, *place.split("/")) if place else folder
            self.parts.append(Part(_values(place, keys), below))
        return sum(each.rows for each in written)

    def discard(self) -> None:
        """Removes what was written: for rows that no partition names, and none will."""
        for folder in self._folders:
            self.version.files.remove_tree(folder)

    def _judged(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Mapping[int, str]]:
        rows = FORMAT.cast(batch, self.version.columns)
        keys = self.version.keys
        return rows, {**partitions.refused(rows, keys, _LONGEST), **formats.refused(self.version.format, rows, keys)}

    def _fits(self, reader: SegmentReader) -> bool:
        try:
            same = FORMAT.as_it_is(reader.schema(self.sink), self.version.columns)
        except AirflowFtError as error:
            raise error.located(sink=self.sink) from error.__cause__
        return same and not self.version.keys and self.version.format == "parquet"


def _values(place: str, keys: Sequence[str]) -> dict[str, str | None]:
    """Return the values that a folder's name holds."""
    texts = (part.partition("=")[2] for part in place.split("/")) if keys else ()
    return {name: None if it == partitions.NULL else unquote(it) for name, it in zip(keys, texts, strict=True)}
