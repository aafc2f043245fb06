"""Rows into files of a format: how values are written, and when a file is ended.

Files are opened as rows come, one for each partition folder and schema, and ended at `file_bytes`. Memory is bounded:
rows of Parquet and ORC files wait for a row group or stripe, of all open files together for BUFFERED bytes.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import resource
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, BinaryIO, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pc_csv
import pyarrow.orc as orc
import pyarrow.parquet as pq

from airflow_ft.protocol.errors import AirflowFtError, WalCorruptError
from airflow_ft.protocol.write_ahead_log import SegmentReader, WalFile
from airflow_ft.sinks.arrow import finite, is_binary, octets, scalar
from airflow_ft.sinks.base import json_columns
from airflow_ft.sinks.files.objects import Objects
from airflow_ft.wal.filesystem import FileSystem, filesystem, link_file
from airflow_ft.wal.s3 import S3FileSystem
from airflow_ft.wal.writer import COMPRESSION, ROW_GROUP_BYTES, bounded_columns

BUFFERED = 128 << 20
OPEN_FILES = 200
_FEW_FILES = 8
SMALL = 8  # a file of the log under this part of `file_bytes` is put together with others
Text = bytes | memoryview
_CHUNK = 1 << 20
_SUFFIX = {"parquet": ".parquet", "orc": ".orc", "csv": ".csv", "json": ".json"}
_COLUMNAR = {"parquet": COMPRESSION.removesuffix("_raw"), "orc": "snappy"}  # what PyArrow calls lz4 is lz4_raw
_STRIPE_ROWS = 1 << 16
_HEAVY_FILES = 16  # of ORC: a writer that has written rows holds some 8 MB
_SAMPLE, _REPEATED = 20_000, 0.1  # rows that are looked at, and the part of them that repeats a value
_NOT_FINITE = {"nan": "NaN", "inf": "Inf", "-inf": "-Inf"}  # as Arrow has them, and as Spark reads them


def large(files: Sequence[WalFile], segments: int, file_bytes: int) -> list[WalFile]:
    """Files of the log that are worth to be adopted as they are; small ones are put together, unless there is one."""
    alone = segments == 1 and len(files) == 1
    return [file for file in files if alone or file.bytes * SMALL >= file_bytes]


def _most_open() -> int:
    """Return how many files a sink may have open at once; the rest of the process needs descriptors, too.

    Each sink of a process has this limit for itself. If groups of streams meet EMFILE, their deliveries are retried.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return OPEN_FILES if limit == resource.RLIM_INFINITY else min(OPEN_FILES, max(_FEW_FILES, limit // 4))


def changed(source: str, sink: str) -> WalCorruptError:
    """Return the error for a file of the log that is not as it was written."""
    remedy = f"Restore {source} from a backup. These rows are not delivered."
    return WalCorruptError(f"{source} does not match its checksum.", sink=sink, remedy=remedy, path=source)


class Files:
    """The files of one attempt, in its folder `root` (a URI). Without `checksums` files that are written have none."""

    def __init__(
        self,
        files: FileSystem | Objects,
        root: str,
        format: str,
        compression: str,
        file_bytes: int,
        *,
        checksums: bool = True,
    ) -> None:
        self._files, self._root, self._format, self._file_bytes = files, root, format, file_bytes
        self._checksums = checksums
        self._compression = compression or _COLUMNAR.get(format, "none")
        self._suffix = _SUFFIX[format] + (".gz" if format not in _COLUMNAR and self._compression == "gzip" else "")
        self._open: dict[tuple[str, pa.Schema], _File] = {}  # in the order of their last use
        self._written: list[WalFile] = []
        self._count = 0
        self._open_files = files.open_files if isinstance(files, Objects | S3FileSystem) else _most_open()

    def place(self, folder: str = "") -> tuple[str, str]:
        """The next file of a partition folder: its name below the root, and its URI."""
        name = f"{folder}/" if folder else ""
        name += f"part-{self._count:05}{self._suffix}"
        self._count += 1
        return name, self._files.uri(self._root, *name.split("/"))

    def adopt(self, reader: SegmentReader, file: WalFile, sink: str) -> None:
        """A file of the log as it is, under a second name. WalCorruptError: it does not match its checksum."""
        source = filesystem(reader.segment.location).uri(reader.segment.location, *file.path.split("/"))
        name, target = self.place()
        if isinstance(self._files, Objects):
            checksum = self._sent(source, target)
        else:
            link_file(source, target)
            with self._files.open_plain(target) as copied:  # what became of it, not what the log had
                checksum = hashlib.file_digest(cast("io.BufferedReader", copied), "sha256").hexdigest()
        if checksum != file.sha256:
            raise changed(source, sink)
        self._written.append(WalFile(name, file.rows, file.bytes, file.sha256))

    def _sent(self, source: str, target: str) -> str:
        """The checksum of what was sent: the store compares what it got."""
        with filesystem(source).open(source) as log, self._files.create(target) as out:
            hashed = _Hashed(out)
            shutil.copyfileobj(log, hashed, _CHUNK)
        return hashed.checksum

    def put(self, folder: str, rows: pa.RecordBatch, text: Text | None = None) -> None:
        """Rows behind those that this folder has; `text`: see `lines`."""
        key = (folder, rows.schema)
        file = self._open.pop(key, None) or self._begin(folder, rows.schema)
        self._open[key] = file
        file.add(rows, text)
        heavy = file.holds and len(self._open) > _HEAVY_FILES
        if file.bytes >= self._file_bytes or heavy:
            self._end(key)
        elif len(self._open) > self._open_files:
            self._end(next(iter(self._open)))
        while sum(each.waiting for each in self._open.values()) > BUFFERED:
            key = max(self._open, key=lambda each: self._open[each].waiting)
            self._end(key) if self._format == "orc" else self._open[key].flush()

    def close(self) -> list[WalFile]:
        """End all files, and return them by name."""
        for key in list(self._open):
            self._end(key)
        return sorted(self._written, key=lambda each: each.path)

    def abandon(self) -> None:
        """Closes what is open, whatever is in it."""
        for file in self._open.values():
            file.abandon()

    def _begin(self, folder: str, schema: pa.Schema) -> _File:
        name, uri = self.place(folder)
        out = _Hashed(self._files.create(uri), checksum=self._checksums)
        return _File(name, self._files, out, schema, self._format, self._compression)

    def _end(self, key: tuple[str, pa.Schema]) -> None:
        self._written.append(self._open[key].close())
        del self._open[key]  # not before: what fails is abandoned


class _File:
    """One file that is being written."""

    def __init__(
        self, name: str, files: FileSystem | Objects, out: _Hashed, schema: pa.Schema, format: str, compression: str
    ) -> None:
        self._name, self._files, self._hashed, self._out, self._rows = name, files, out, out.out, 0
        self._compression = compression
        self._columnar, self.waiting, self.holds = format in _COLUMNAR, 0, False
        self._pending: list[pa.RecordBatch] = []
        self._to: Any = None if format == "parquet" else self._hashed
        if format == "orc":  # a stripe is ended as soon as possible: the writer holds no rows between two calls
            self._to = orc.ORCWriter(
                pa.PythonFile(self._hashed, "w"), compression=compression, batch_size=_STRIPE_ROWS, stripe_size=1
            )
        elif compression == "gzip" and not self._columnar:
            self._to = gzip.GzipFile(fileobj=self._hashed, mode="wb", compresslevel=6, mtime=0)
        if format == "csv":
            self._to.write(header(schema))

    @property
    def bytes(self) -> int:
        """Return what is written of it."""
        return self._hashed.size

    def add(self, rows: pa.RecordBatch, text: Text | None) -> None:
        self._rows += rows.num_rows
        if text is not None:
            self._to.write(text)
        else:
            self._pending.append(rows)
            self.waiting += rows.nbytes
            if self.waiting >= ROW_GROUP_BYTES:
                self.flush()

    def flush(self) -> None:
        """A row group, or stripes, of what waits."""
        if self._pending:
            rows = pa.Table.from_batches(self._pending)
            if self._to is None:
                self._to = parquet_writer(self._hashed, rows, self._compression)
            self._to.write(rows) if isinstance(self._to, orc.ORCWriter) else self._to.write_table(rows)
            self._pending, self.waiting = [], 0
            self.holds = isinstance(self._to, orc.ORCWriter)

    def abandon(self) -> None:
        """Ends it without writing any more: PyArrow's writer would do that whenever it is collected."""
        self._hashed.abandoned = True
        with suppress(OSError, AirflowFtError):
            if self._columnar and self._to is not None:
                self._to.close()
            self._out.close()

    def close(self) -> WalFile:
        self.flush()
        if self._to is not self._hashed:
            self._to.close()
        self._files.sync_file(self._out)
        self._out.close()
        return WalFile(self._name, self._rows, self._hashed.size, self._hashed.checksum)


def parquet_writer(to: Any, rows: pa.Table, compression: str = _COLUMNAR["parquet"]) -> pq.ParquetWriter:
    """Return a writer of a Parquet file that begins with these rows."""
    return pq.ParquetWriter(
        pa.PythonFile(to, "w"), rows.schema, compression=compression, store_schema=False, coerce_timestamps="us",
        write_page_checksum=True, write_statistics=bounded_columns(rows.schema), use_dictionary=_repeating(rows),
    )  # fmt: skip


def _repeating(rows: pa.Table) -> list[str]:
    """Return the paths of the columns that a Parquet file should hold as dictionaries.

    Values that hardly repeat would be encoded twice: PyArrow gives up a dictionary when it is too large.
    """
    sample, distinct = rows.slice(0, _SAMPLE), set()
    for field, column in zip(rows.schema, sample.columns, strict=True):
        if not (pa.types.is_nested(field.type) or pa.types.is_null(field.type)):
            most = pc.count_distinct(column).as_py() / max(1, len(column) - column.null_count)
            distinct |= {field.name} if most > 1 - _REPEATED else set()
    out = pa.BufferOutputStream()
    pq.write_table(rows.schema.empty_table(), out)
    columns = pq.read_metadata(pa.BufferReader(out.getvalue())).schema
    return [path for index in range(len(columns)) if (path := columns.column(index).path) not in distinct]


class _Hashed(io.RawIOBase):
    """Passes bytes on, and takes their checksum."""

    def __init__(self, out: BinaryIO, *, checksum: bool = True) -> None:
        self.out, self.size = out, 0
        self._sha256 = hashlib.sha256() if checksum else None
        self.abandoned = False

    @property
    def checksum(self) -> str:
        """Return the checksum of what was written; "": it is not taken."""
        return self._sha256.hexdigest() if self._sha256 is not None else ""

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        with memoryview(data) as view:
            if not self.abandoned:
                self.out.write(view)
            if self._sha256 is not None:
                self._sha256.update(view)
            self.size += view.nbytes
            return view.nbytes

    def tell(self) -> int:
        return self.size


# --- values ----------------------------------------------------------------------------------------------------------


def unwritable(format: str, kind: pa.DataType) -> str:
    """Why the format cannot hold columns of this type, and what the job can do instead; "": it can."""
    if format == "parquet":
        return ""
    if format == "json":
        why = json_columns.unsupported(kind)
        return f"{why}; cast it" if why else ""
    if pa.types.is_nested(kind):
        return "csv has no form for nested values; use to_json(column)"
    if is_binary(kind):
        return "csv has no form for bytes; use base64(column) or hex(column)"
    return ""


def lines(format: str, rows: pa.RecordBatch) -> Text | None:
    """Return the rows as lines of a file; None for Parquet, whose rows are written together."""
    if format == "csv":
        return csv_lines(rows)
    return json_lines(rows) if format == "json" else None


def header(schema: pa.Schema) -> bytes:
    """The names of the columns, each in quotes."""
    return (",".join('"' + name.replace('"', '""') + '"' for name in schema.names) + "\n").encode()


def csv_lines(rows: pa.RecordBatch) -> bytes:
    """RFC 4180: text in quotes, quotes in it doubled; NULL is nothing, an empty text is `""`."""
    columns = [_csv_column(column) for column in rows.columns]
    out = io.BytesIO()
    table = pa.Table.from_arrays(columns, names=[str(index) for index in range(len(columns))])
    pc_csv.write_csv(table, out, pc_csv.WriteOptions(include_header=False))
    return out.getvalue()


def _csv_column(column: pa.Array) -> pa.Array:
    kind, large = column.type, pa.large_string()
    if pa.types.is_decimal(kind):
        return json_columns.decimal_text(column)
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        text = column.view(pa.timestamp(kind.unit)).cast(large)  # a thirtieth of the time that one with a zone takes
        return pc.binary_join_element_wise(text, scalar("Z", large), scalar("", large))
    if pa.types.is_floating(kind) and pc.all(finite(column)).as_py() is False:
        text = column.cast(large)
        for there, wanted in _NOT_FINITE.items():
            text = pc.if_else(pc.equal(text, scalar(there, large)), scalar(wanted, large), text)
        return text
    return column


def json_lines(rows: pa.RecordBatch) -> memoryview:
    """An object a line, NULL as null; of rows that are not `refused`."""
    lines = json_columns.objects(rows.schema.names, rows.columns, rows.num_rows, end="\n")
    return octets(lines)


def refused(format: str, rows: pa.RecordBatch) -> Mapping[int, str]:
    """Rows that the format cannot hold, by position, and why."""
    if format == "parquet" or not _wrong(format, rows):
        return {}
    return {index: why for index in range(rows.num_rows) if (why := _wrong(format, rows.slice(index, 1)))}


def _wrong(format: str, rows: pa.RecordBatch) -> str:
    if format == "csv" and rows.num_columns == 1 and rows.column(0).null_count:
        return "NULL as the only column is an empty line, which readers leave out"
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        if format == "json" and pc.any(json_columns.not_finite(column)).as_py():
            return f"column {name!r}: NaN or infinity, which JSON cannot hold"
        if format == "json" and pc.any(json_columns.repeated_keys(column)).as_py():
            return f"column {name!r}: a map with a repeated key, of which readers of JSON keep one value"
        if pc.any(json_columns.beyond_years(column)).as_py():
            return f"column {name!r}: a time outside of the years 1 to 9999, which has no text that others read"
    return ""
