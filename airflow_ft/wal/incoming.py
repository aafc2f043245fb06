"""Rows that a program of the author has written, on their way into a segment.

Files of others are read, and written again as files of the log. So a process that still writes into a folder after its
rows were sealed changes nothing that is delivered (I1). The log's files always have types that Spark writes, small row
groups and the log's compression.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO, Protocol

from airflow_ft.protocol.errors import AirflowFtError, ExternalRowsError, StageError
from airflow_ft.wal.arrow_types import log_schema
from airflow_ft.wal.filesystem import refuse_another_history
from airflow_ft.wal.incoming_files import folder_of, look, readable, require_committed, with_rows
from airflow_ft.wal.incoming_values import cast, in_old_calendar, refuse_old_days
from airflow_ft.wal.reader import BYTES_A_BATCH, ROWS_A_BATCH, rows_a_batch
from airflow_ft.wal.writer import (
    ROW_GROUP_BYTES,
    ROWS_A_FILE,
    SegmentFolder,
    longest_in_dictionaries,
    parquet_settings,
    rows_a_group,
)

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq


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
        average = max(1, self._table.nbytes // max(1, self._table.num_rows))
        for batch in self._table.to_batches(max_chunksize=max(1, min(ROWS_A_BATCH, BYTES_A_BATCH // average))):
            yield from _cast_in_parts(batch, self.schema)

    def require_unchanged(self) -> None:
        """Nothing: tables of Arrow are immutable."""


class ParquetRows:
    """The Parquet files of a folder, without those below it; or a single file.

    Names that begin with '.' or '_' are left out, as Spark does. Files keep Spark's order, others that of their names.

    `count`: the number of rows, by the files' footers. `keeps`: what lives as long as this.

    Raises:
        ExternalRowsError: there are no files, one cannot be read, or they do not fit together.
        StorageUnavailableError: the disk fails.
        ConfigurationError: `location` is on no file system of the log.
    """

    keeps: object = None

    def __init__(self, location: str) -> None:
        self._files, self.location, self._only = folder_of(location)
        self._found = look(self._files, self.location, self._only)
        self.sources = with_rows(self.location, self._found)
        try:
            require_committed(self._files, self.location, self.sources, self._found)
        except FileNotFoundError as error:
            raise self._changed() from error
        self.count = 0
        self._in_old_calendar: dict[str, frozenset[str]] = {}
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
                    for exact in _cast_in_parts(batch.select(self.schema.names), self.schema, name):
                        refuse_old_days(exact, self._in_old_calendar[name], name)
                        yield exact

    def require_unchanged(self) -> None:
        if look(self._files, self.location, self._only) != self._found:
            raise self._changed()

    def _schema(self, name: str) -> pa.Schema:
        with self._open(name) as (_, parquet):
            self.count += parquet.metadata.num_rows
            columns = [parquet.schema.column(index) for index in range(len(parquet.schema))]
            instants = {column.path for column in columns if column.physical_type == "INT96"}
            schema = log_schema(parquet.schema_arrow, instants, name)
            self._in_old_calendar[name] = in_old_calendar(parquet.metadata.metadata, schema.names, instants)
            return schema

    @contextmanager
    def _open(self, name: str) -> Iterator[tuple[BinaryIO, pq.ParquetFile]]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        where = self._files.uri(self.location, *name.split("/"))
        try:
            with readable(where), self._files.open_plain(where) as file:
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
    size = 0
    for batch in rows.batches():
        group.append(batch)
        size += batch.nbytes
        if size >= ROW_GROUP_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


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


def _cast_in_parts(batch: pa.RecordBatch, schema: pa.Schema, file: str = "") -> Iterator[pa.RecordBatch]:
    """Yield the rows as `cast` returns them, in parts if it cannot: a column of text holds at most 2 GB."""
    try:
        exact = cast(batch, schema, file)
    except ExternalRowsError:
        if batch.num_rows <= 1:
            raise
        half = batch.num_rows // 2
        for part in (batch.slice(0, half), batch.slice(half)):
            yield from _cast_in_parts(part, schema, file)
    else:
        yield exact
