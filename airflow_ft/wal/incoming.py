"""Rows that a program of the author has written, on their way into a segment.

Files of others are read, and written again as files of the log. So a process that still writes into a folder after its
rows were sealed changes nothing that is delivered (I1). The log's files always have types that Spark writes, small row
groups and the log's compression.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol, cast

from airflow_ft.clients.buckets import is_bucket
from airflow_ft.protocol.errors import (
    AirflowFtError,
    ConfigurationError,
    ExternalRowsError,
    StageError,
    StorageUnavailableError,
)
from airflow_ft.wal.arrow_types import log_schema, with_plain_dictionaries
from airflow_ft.wal.filesystem import FileSystem, filesystem, is_hdfs, is_remote, refuse_another_history
from airflow_ft.wal.local import local_path
from airflow_ft.wal.reader import ROWS_A_BATCH, rows_a_batch
from airflow_ft.wal.writer import (
    ROW_GROUP_BYTES,
    ROWS_A_FILE,
    SegmentFolder,
    longest_in_dictionaries,
    parquet_settings,
    part_order,
    rows_a_group,
)

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from airflow_ft.wal.hdfs import HdfsFileSystem
    from airflow_ft.wal.s3 import S3FileSystem

_HIDDEN = ("_", ".")
_UNFINISHED = "_temporary"


class Rows(Protocol):
    """Rows of one sink. They can be read more than once."""

    @property
    def schema(self) -> pa.Schema:
        """Their columns, in types of the log."""

    @property
    def sources(self) -> Sequence[str]:
        """The names of the files that they come from."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield them in order, with `schema`."""

    def require_unchanged(self) -> None:
        """Raise StageError if another process has changed them since `schema` was read."""


class TableRows:
    """Rows in memory. Raises ExternalRowsError for types that the log lacks."""

    sources = ()

    def __init__(self, table: pa.Table) -> None:
        self._table = table
        self.schema = log_schema(table.schema)

    def batches(self) -> Iterator[pa.RecordBatch]:
        for batch in self._table.to_batches(max_chunksize=ROWS_A_BATCH):
            yield _cast(batch, self.schema)

    def require_unchanged(self) -> None:
        """Nothing: tables of Arrow are immutable."""


class ParquetRows:
    """The Parquet files of a folder, without those below it; or a single file.

    Names that begin with '.' or '_' are left out, as Spark does. Files keep Spark's order, others that of their names.

    `count`: the number of rows, by the files' footers. `keeps`: a folder that lives as long as this.

    Raises:
        ExternalRowsError: there are no files, one cannot be read, or they do not fit together.
        StorageUnavailableError: the disk fails.
        ConfigurationError: `location` is on no file system of the log.
    """

    keeps: TemporaryDirectory[str] | None = None

    def __init__(self, location: str) -> None:
        self._files, self.location, only = _folder_of(location)
        self._only = only
        self._found = self._look()
        self.sources = self._visible()
        self.count = 0
        schemas = {name: self._schema(name) for name in self.sources}
        first = self.sources[0]
        self.schema = schemas[first]
        for name, other in schemas.items():
            _require_same(self.schema, first, other, name)

    def batches(self) -> Iterator[pa.RecordBatch]:
        for name in self.sources:
            with self._open(name) as (file, parquet):
                # A long text that repeats is stored once a row group.
                largest = sum(longest_in_dictionaries(file, parquet.metadata, parquet.schema_arrow).values())
                for batch in parquet.iter_batches(rows_a_batch(parquet.metadata, largest), use_threads=False):
                    yield _cast(batch.select(self.schema.names), self.schema, name)

    def require_unchanged(self) -> None:
        if self._look() != self._found:
            raise self._changed()

    def _look(self) -> Mapping[str, tuple[object, ...]]:
        """Return for each file its size and what else differs in a later file in its place.

        That is inode and time on local disks, the time of the last write on HDFS, and the object's tag in buckets.
        """
        with _readable(self.location):
            return self._sizes()

    def _sizes(self) -> Mapping[str, tuple[object, ...]]:
        if is_remote(self.location):
            marks = cast("HdfsFileSystem | S3FileSystem", self._files).marks(self.location)
            return {name: mark for name, mark in marks.items() if self._only in ("", name)}
        base = local_path(self.location)
        names = [self._only] if self._only else sorted(self._files.tree(self.location))
        found: dict[str, tuple[object, ...]] = {}
        for name in names:
            try:
                status = (base / name).stat()
            except FileNotFoundError:
                continue
            found[name] = (status.st_size, status.st_ino, status.st_mtime_ns)
        return found

    def _visible(self) -> list[str]:
        if unfinished := [name for name in self._found if _UNFINISHED in name.split("/")]:
            raise ExternalRowsError(
                f"{self.location} has {unfinished[0]}: the job that writes there has not ended, or has died.",
                code="writer_unfinished",
                remedy="Wait until the job has ended. If it is dead, let it write again, into an empty folder.",
                path=self.location,
            )
        seen = [name for name in self._found if not any(part.startswith(_HIDDEN) for part in name.split("/"))]
        if nested := sorted(name for name in seen if "/" in name):
            raise ExternalRowsError(
                f"{self.location} has files in folders, such as {nested[0]}.",
                code="files_nested",
                remedy="Write the files into the folder itself, without partition folders. Keep the columns of"
                " partitions in the files. The files of several sinks lie in folders with the names of the sinks.",
                path=self.location,
                file=nested[0],
            )
        if not seen:
            raise ExternalRowsError(
                f"there are no files in {self.location}.",
                code="files_none",
                remedy="Check that the program has written to this folder. To deliver no rows, write one file without"
                " rows, which says what the columns are.",
                path=self.location,
            )
        return sorted(seen, key=part_order)

    def _schema(self, name: str) -> pa.Schema:
        with self._open(name) as (_, parquet):
            self.count += parquet.metadata.num_rows
            columns = [parquet.schema.column(index) for index in range(len(parquet.schema))]
            instants = {column.path for column in columns if column.physical_type == "INT96"}
            return log_schema(parquet.schema_arrow, instants, name)

    @contextmanager
    def _open(self, name: str) -> Iterator[tuple[BinaryIO, pq.ParquetFile]]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        where = self._files.uri(self.location, *name.split("/"))
        try:
            with _readable(where), self._files.open_plain(where) as file:
                yield file, pq.ParquetFile(file, coerce_int96_timestamp_unit="us", pre_buffer=False)
        except FileNotFoundError as error:
            raise self._changed() from error
        except (pa.ArrowException, OSError) as error:
            if isinstance(error, AirflowFtError):
                raise
            self.require_unchanged()
            raise ExternalRowsError(
                f"{name} in {self.location} cannot be read as Parquet: {str(error).splitlines()[0].rstrip('.')}.",
                code="parquet_unreadable",
                remedy="Write the file again as Parquet. Other files need a name that begins with '_'.",
                path=self.location,
                file=name,
            ) from error

    def _changed(self) -> StageError:
        return StageError(
            f"files in {self.location} changed while they were read.",
            code="file_changed",
            remedy="Let one program write there, and deliver its files when it has ended. The next try reads them"
            " again.",
            path=self.location,
        )


def write_rows(folder: SegmentFolder, tables: Mapping[str, Rows]) -> None:
    """Write the rows of each sink as files of the log, and prove that they have not changed meanwhile.

    StageError when the folder is there already. Raises what reading the rows raises.
    """
    refuse_another_history(folder.files, folder.location, folder.pipeline)
    for sink, rows in tables.items():
        folder.files.make_folder(folder.sink(sink))
        try:
            _write(folder, sink, rows)
        except ExternalRowsError as error:
            raise error.located(sink=sink) from error.__cause__
    for rows in tables.values():
        rows.require_unchanged()


def _write(folder: SegmentFolder, sink: str, rows: Rows) -> None:
    """Files of at most `ROWS_A_FILE` rows or a little more; without rows one file, which has the schema."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    groups, number, ended = _groups(rows), 0, False
    while not ended:
        name = f"part-{number:05}.parquet"
        with folder.files.create(folder.files.uri(folder.sink(sink), name)) as file:
            written = 0
            with pq.ParquetWriter(file, rows.schema, **parquet_settings(rows.schema)) as writer:
                while written < ROWS_A_FILE:
                    group = next(groups, None)
                    if group is None:
                        ended = True
                        break
                    table = pa.Table.from_batches(group, rows.schema)
                    writer.write_table(table, rows_a_group(table))
                    written += table.num_rows
        number += 1


def _groups(rows: Rows) -> Iterator[Sequence[pa.RecordBatch]]:
    group: list[pa.RecordBatch] = []
    for batch in rows.batches():
        group.append(batch)
        if sum(each.nbytes for each in group) >= ROW_GROUP_BYTES:
            yield group
            group = []
    if group:
        yield group


def sink_folders(location: str, sinks: Iterable[str]) -> dict[str, str]:
    """Return where the files of each sink lie: of one sink in the folder itself, of several in folders of their names.

    Raises:
        ExternalRowsError: the folder of several sinks has something else in it.
    """
    names = tuple(sinks)
    if len(names) == 1:
        return {names[0]: location}
    files, folder, only = _folder_of(location)
    with _readable(folder):
        strange = [name for name in files.names(folder) if name not in names and not name.startswith(_HIDDEN)]
    if only or strange:
        raise ExternalRowsError(
            f"{folder} has {only or sorted(strange)[0]}, which belongs to none of the sinks {', '.join(names)}.",
            code="files_of_no_sink",
            remedy="Write the files of each sink into a folder with the name of the sink.",
            path=folder,
            file=only or sorted(strange)[0],
        )
    return {name: files.uri(folder, name) for name in names}


def _folder_of(location: str) -> tuple[FileSystem, str, str]:
    """The file system and folder of a location, and the name of the file if it is one."""
    try:
        files = filesystem(location)
    except ConfigurationError as error:
        raise _unreadable(location) from error
    with _readable(location):
        if (is_bucket(location) and files.seen(location)) or (
            is_hdfs(location) and cast("HdfsFileSystem", files).is_file(location)
        ):
            folder, _, name = files.uri(location).rpartition("/")
            return files, folder, name
        if not is_remote(location) and local_path(location).is_file():
            path = local_path(location)
            return files, files.uri(str(path.parent)), path.name
    return files, files.uri(location), ""


@contextmanager
def _readable(where: str) -> Iterator[None]:
    """Turn errors of the disk into ours. Arrow's own have no number and pass, as a missing file does."""
    try:
        yield
    except PermissionError as error:
        raise ExternalRowsError(
            f"the user of this task may not read {where}.",
            code="files_forbidden",
            remedy="Let the program write files that the user of Airflow's workers can read.",
            path=where,
        ) from error
    except OSError as error:
        if isinstance(error, FileNotFoundError | AirflowFtError) or not error.errno:
            raise
        raise StorageUnavailableError(
            f"{where} cannot be read: {error.strerror or error}.",
            number=error.errno,
            remedy="Check that the disk is mounted and works. Nothing was published.",
            path=where,
        ) from error


def _unreadable(location: str) -> ConfigurationError:
    return ConfigurationError(
        f"{location} cannot be read here.",
        code="path_invalid",
        remedy="Give an absolute path, a file:/// URI, hdfs://NAMENODE:PORT/PATH or s3://CONNECTION@BUCKET/FOLDER. Copy"
        " files from other places there, or give a table in memory.",
        path=location,
    )


def _require_same(schema: pa.Schema, first: str, other: pa.Schema, name: str) -> None:
    if len(other) == len(schema) and all(
        field.name in other.names and other.field(field.name).type == field.type for field in schema
    ):
        return
    mine = {field.name: str(field.type) for field in schema}
    theirs = {field.name: str(field.type) for field in other}
    column = next(each for each in (*mine, *theirs) if mine.get(each) != theirs.get(each))
    raise ExternalRowsError(
        f"{name} has {theirs.get(column, 'no such column')}, but {first} has {mine.get(column, 'no such column')}.",
        code="files_differ",
        column=column,
        remedy="Write all files with the same columns and types.",
        file=name,
        other=first,
    )


def _cast(batch: pa.RecordBatch, schema: pa.Schema, file: str = "") -> pa.RecordBatch:
    import pyarrow as pa

    columns = [_as(batch.column(index), field, file) for index, field in enumerate(schema)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _as(values: pa.Array, field: pa.Field, file: str) -> Any:
    import pyarrow as pa

    try:
        if values.type != field.type:
            values = values.cast(with_plain_dictionaries(values.type)).cast(field.type)
        values.validate(full=True)  # digits of decimals, and UTF-8
    except pa.ArrowException as error:
        raise ExternalRowsError(
            f"a value of type {values.type} does not fit into {field.type}: {str(error).splitlines()[0].rstrip('.')}.",
            code="value_not_exact",
            column=field.name,
            remedy=f"Correct, round or cast column {field.name} in your program. The log keeps times to the"
            " microsecond.",
            file=file,
        ) from error
    return values
