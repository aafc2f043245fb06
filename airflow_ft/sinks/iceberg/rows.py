"""The rows of a number as files in the table's folder, which no reader sees before a commit adds them.

Files of the log become files of the table by a second name if their columns fit; otherwise the rows are written again.
If the process dies before the commit, files are left that no snapshot names, and `remove_orphan_files` removes them.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import _dataframe_to_data_files, parquet_file_to_data_file
from pyiceberg.manifest import DataFile

from airflow_ft.protocol.errors import UnfitTargetError
from airflow_ft.protocol.model import Plan
from airflow_ft.protocol.write_ahead_log import SegmentReader, WalFile
from airflow_ft.sinks.arrow import beyond
from airflow_ft.sinks.files.table_rows import TableRows
from airflow_ft.sinks.files.writing import changed, large
from airflow_ft.sinks.iceberg.bounds import columns_without_nan, keep_certain
from airflow_ft.sinks.iceberg.columns import FORMAT, in_utc, sources, utc
from airflow_ft.sinks.iceberg.durable import local
from airflow_ft.sinks.iceberg.refusals import bounded, refused, texts
from airflow_ft.sinks.iceberg.table import Version
from airflow_ft.sinks.refused import Refused, has_rows
from airflow_ft.wal.filesystem import filesystem, link_file

_AT_ONCE = 64 << 20
"""Bytes of rows in memory that become a file, or one for each partition."""
_WRITERS = 2
"""Threads that write files, while the next rows are read. So three times `_AT_ONCE` are in memory at most."""
_CHUNK = 1 << 20


@dataclass
class Rows(TableRows):
    """Files that one step adds to a version of the table."""

    form = FORMAT
    results = ("files", "_made")

    version: Version
    files: list[DataFile] = field(default_factory=list)
    _name: str = field(default_factory=lambda: uuid.uuid4().hex)
    _count: Iterator[int] = field(default_factory=itertools.count)
    _made: list[str] = field(default_factory=list)

    def _write(self, plan: Plan, readers: Sequence[SegmentReader], dead_letters: Refused | None) -> int:
        self.files = self._written(readers, dead_letters)
        return sum(each.record_count for each in self.files)

    def _made_for(self) -> object:
        metadata = self.version.table.metadata
        return self.version.mapping, metadata.current_schema_id, metadata.default_spec_id

    def try_out(self, readers: Sequence[SegmentReader]) -> None:
        """DeclinedError for rows that `write` would refuse; writes nothing."""
        readers = [each for each in readers if has_rows(each, self.sink)]
        for reader in readers:
            if self._fits(reader) and not texts(self.version.table.metadata):
                continue
            adopted = self._adoptable(reader, len(readers))
            for file in reader.files(self.sink):
                if file not in adopted:
                    for _ in self._taken(reader, file, None):
                        pass

    def _remove(self) -> None:
        for location in self._made:
            with suppress(Exception):  # `remove_orphan_files` does it too
                self.version.table.io.delete(location)

    def _written(self, readers: Sequence[SegmentReader], dead_letters: Refused | None) -> list[DataFile]:
        files: list[DataFile] = []
        with ThreadPoolExecutor(_WRITERS, thread_name_prefix="airflow-ft-iceberg") as pool:
            writing: list[Future[list[DataFile]]] = []
            for reader in readers:
                adopted = self._adoptable(reader, len(readers))
                files += [self._adopted(reader, file) for file in adopted]
                for rows in self._chunks(reader, adopted, dead_letters):
                    if len(writing) == _WRITERS:
                        files += writing.pop(0).result()
                    writing.append(pool.submit(self._of, rows))
            for each in writing:
                files += each.result()
        return files

    def _chunks(
        self, reader: SegmentReader, adopted: Sequence[WalFile], dead_letters: Refused | None
    ) -> Iterator[list[pa.RecordBatch]]:
        """Yield the rows of the other files, as many at once as become a file."""
        waiting: list[pa.RecordBatch] = []
        size = 0
        for file in reader.files(self.sink):
            if file in adopted:
                continue
            for rows in self._taken(reader, file, dead_letters):
                waiting.append(rows)
                size += rows.nbytes
                if size >= min(self.file_bytes, _AT_ONCE):
                    yield waiting
                    waiting, size = [], 0
        if waiting:
            yield waiting

    def _of(self, batches: Sequence[pa.RecordBatch]) -> list[DataFile]:
        """Write rows as files, one a partition."""
        given = sum(each.num_rows for each in batches)
        if not given:
            return []
        table = self.version.table
        rows = pa.Table.from_batches(batches)
        found: list[DataFile] = []
        for file in _dataframe_to_data_files(table.metadata, rows, table.io, uuid.UUID(self._name), self._count):  # type: ignore[arg-type]
            self._made.append(file.file_path)
            found.append(file)
        without_nan = columns_without_nan(rows)
        for file in found:
            self._keep_certain(file, without_nan)
        self._require(sum(file.record_count for file in found), given)
        return found

    # --- files of the log --------------------------------------------------------------------------------------------

    def _adoptable(self, reader: SegmentReader, segments: int) -> list[WalFile]:
        """Return the files that become the table's as they are: no row of them is refused."""
        if not self._fits(reader):
            return []
        columns = texts(self.version.table.metadata)

        def is_bounded(file: WalFile) -> bool:
            uri = self._source(reader, file)
            with filesystem(uri).open(uri) as log:
                return bounded(pq.read_metadata(log), columns)

        found = large(reader.files(self.sink), segments, self.file_bytes)
        return [each for each in found if is_bounded(each)] if columns else found

    def _source(self, reader: SegmentReader, file: WalFile) -> str:
        return filesystem(reader.segment.location).uri(reader.segment.location, *file.path.split("/"))

    def _fits(self, reader: SegmentReader) -> bool:
        """Return whether its columns and values are as the table has them."""
        metadata, schema = self.version.table.metadata, reader.schema(self.sink)
        mapping = metadata.name_mapping()  # the log's files have no ids
        mapped = {each.field_id: each for each in mapping} if mapping is not None else {}
        known = reader.statistics(self.sink)
        return (
            super()._fits(reader)
            and not self._required  # pyiceberg refuses files whose columns may hold NULL, also if they hold none
            and metadata.spec().is_unpartitioned()
            and all(mapped.get(each.field_id) == each for each in metadata.schema().name_mapping)
            and all(_plain(each.type) for each in schema)
            and all(
                each.name in known and _in_years(known[each.name].minimum) and _in_years(known[each.name].maximum)
                for each in schema
                if is_temporal(each.type)
            )
        )

    def _adopted(self, reader: SegmentReader, file: WalFile) -> DataFile:
        """A file of the log as it is, under a second name. WalCorruptError: it does not match its checksum."""
        table = self.version.table
        source = self._source(reader, file)
        target = table.location_provider().new_data_location(f"{self._name}-{next(self._count):05}.parquet")
        self._made.append(target)
        if (path := local(target)) is not None:
            link_file(source, path.as_uri())
            os.utime(path)  # `remove_orphan_files` goes by the age, and the log's file may have waited for long
        else:
            with filesystem(source).open(source) as log, table.io.new_output(target).create() as out:
                shutil.copyfileobj(log, out, _CHUNK)
        digest = hashlib.sha256()
        with table.io.new_input(target).open() as copied:  # what became of it, not what the log had
            while chunk := copied.read(_CHUNK):
                digest.update(chunk)
        if digest.hexdigest() != file.sha256:
            raise changed(source, self.sink)
        found = parquet_file_to_data_file(table.io, table.metadata, target)
        known = reader.statistics(self.sink)
        self._keep_certain(found, [name for name in known if not known[name].nans])
        self._require(found.record_count, file.rows)
        return found

    def _keep_certain(self, file: DataFile, without_nan: Sequence[str]) -> None:
        table = self.version.table
        with table.io.new_input(file.file_path).open() as written:
            keep_certain(file, pq.read_metadata(written), table.schema(), without_nan)

    def _require(self, written: int, given: int) -> None:
        if written != given:
            what = f"pyiceberg wrote {written:,} of {given:,} rows into {self.version.place}."
            remedy = "Report this as a bug. Nothing is visible, and the staged rows wait."
            raise UnfitTargetError(
                what, code="row_count_mismatch", remedy=remedy, sink=self.sink, rows=given, written=written
            )

    # --- rows --------------------------------------------------------------------------------------------------------

    def _judged(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Mapping[int, str]]:
        rows = FORMAT.cast(batch, self.version.columns)
        rows = rows.cast(utc(rows.schema))
        wrong = self._empty(rows)
        for name, column in zip(rows.schema.names, rows.columns, strict=True):
            far = f"column {name!r}: outside of the years 1 to 9999"
            wrong |= dict.fromkeys(beyond(column), far)
        for name, kind in sources(self.version.table.schema(), self.version.spec).items():
            if name not in rows.schema.names:  # NULL, as in any other column that rows lack
                rows = rows.append_column(name, pa.nulls(rows.num_rows, kind))
        return rows, wrong | refused(self.version.table.metadata, rows)


def is_temporal(kind: pa.DataType) -> bool:
    """Return whether values may be outside of the years that Python, and so pyiceberg, knows."""
    return bool(pa.types.is_date(kind) or pa.types.is_timestamp(kind))


def _plain(kind: pa.DataType) -> bool:
    """Return whether a file of the log has the values as Iceberg's readers want them, and in years that are known."""
    dated = pa.types.is_nested(kind) and ("date" in str(kind) or "timestamp" in str(kind))
    return not dated and in_utc(kind) == kind


def _in_years(text: str | None) -> bool:
    """Return whether a bound of the log's statistics lies in the years 1 to 9999; None: all values are NULL."""
    return text is None or (text[:4].isdigit() and text[4] == "-" and text[:4] != "0000")
