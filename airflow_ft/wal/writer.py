"""Writing a segment: Parquet files are put into a folder of their own, then sealed under a manifest.

Nothing is published here. A folder that was never sealed, or sealed and never published, is waste that retention
sweeps; no reader finds it, because the store does not name it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from airflow_ft.protocol.errors import JobError, TransientError, WalCorruptError
from airflow_ft.protocol.model import Segment
from airflow_ft.protocol.numbers import count_text
from airflow_ft.protocol.write_ahead_log import WalFile
from airflow_ft.wal import roots
from airflow_ft.wal.filesystem import FileSystem, another_history, filesystem, is_remote, refuse_another_history
from airflow_ft.wal.manifest import MANIFEST, Manifest, SinkContent, digest, encode_schema
from airflow_ft.wal.reader import BYTES_A_BATCH, ROWS_A_BATCH

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from airflow_ft.wal.statistics import Statistics

# What a reader holds in memory is at most one row group of compressed pages and one batch of decoded rows.
ROW_GROUP_BYTES = 16 * 1024 * 1024
# Columns whose values hardly repeat are found out early: what went into a dictionary by then is encoded twice.
DICTIONARY_BYTES = 64 * 1024
ROWS_A_FILE = 4_000_000
COMPRESSION = "lz4_raw"  # as small as snappy, and read in a third of the time (docs/adr/0030-log-format.md)
LONG_BYTES = 1024  # values that repeat and are longer are looked at as dictionaries
THREADS = 4  # that look at files, or wait for the disk
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class SegmentFolder:
    """The folder of one batch of one attempt: `<root>/<pipeline>/<epoch>-<attempt>/<batch>/`.

    Sealed at most once; a second process never gets the same one, since attempts are numbered by the store.
    """

    root: str
    pipeline: str
    epoch: int
    attempt: int
    batch: int

    @property
    def files(self) -> FileSystem:
        """The file system that it lies on."""
        return filesystem(self.root)

    @property
    def location(self) -> str:
        """Its URI, which is the segment's location."""
        return self._of_attempt(str(self.batch))

    @property
    def beside(self) -> str:
        """Return the URI of a folder for what is needed until the segment is sealed."""
        return self._of_attempt(".given")

    def _of_attempt(self, name: str) -> str:
        return self.files.uri(self.root, self.pipeline, f"{self.epoch}-{self.attempt}", name)

    def sink(self, name: str) -> str:
        """The URI of the folder into which the Parquet files of a sink go."""
        return self.files.uri(self.location, name)

    def seal(
        self,
        number: int,
        returned: Mapping[str, bool],
        positions: Mapping[str, Any],
        lineage: Mapping[str, Any] | None = None,
    ) -> Segment:
        """Make the files durable, compute checksums and statistics of every row, and write the manifest.

        `returned` names every sink of the segment; False: the job returned nothing at all for this (optional) one.
        `lineage`: see `Manifest`. Returns the segment to publish. After that no file of it may change (I1).

        Raises:
            JobError: text is not UTF-8, which Parquet demands and no sink takes. Found here, nothing is published yet;
                a sink might find it when another one has committed already.
            TransientError: a newer attempt deleted the files meanwhile.
            StageError: it was sealed before.
        """
        try:
            return self._seal(number, returned, positions, lineage or {})
        except FileExistsError as error:
            raise another_history(self.location, self.pipeline) from error
        except (FileNotFoundError, WalCorruptError) as error:
            roots.require(self.root)
            if all(self.files.exists(self.sink(name)) for name, rows in returned.items() if rows):
                raise
            raise TransientError(
                "the files of this attempt disappeared before they were published.",
                code="file_missing",
                remedy="Do nothing: if a newer attempt took over, it deleted them. Otherwise the next try computes them"
                " again.",
                pipeline=self.pipeline,
                checkpoint=number,
            ) from error

    def _seal(
        self, number: int, returned: Mapping[str, bool], positions: Mapping[str, Any], lineage: Mapping[str, Any]
    ) -> Segment:
        files = self.files
        with ThreadPoolExecutor(max_workers=THREADS) as pool:
            sinks = {name: self._content(pool, number, name) if rows else _nothing() for name, rows in returned.items()}
        manifest = Manifest(
            pipeline=self.pipeline,
            number=number,
            epoch=self.epoch,
            attempt=self.attempt,
            batch=self.batch,
            sinks=sinks,
            positions=positions,
            lineage=lineage,
        )
        text = manifest.text()
        files.write(files.uri(self.location, MANIFEST), text.encode())
        # Power may fail right after publication: what the store names must be found then.
        for name, rows in returned.items():
            if rows:
                files.sync_folders(self.sink(name), self.sink(name))
        files.sync_folders(self.location, self.root)
        return Segment(
            number=number,
            digest=digest(text),
            location=self.location,
            rows={name: content.rows for name, content in sinks.items()},
            bytes=sum(file.bytes for content in sinks.values() for file in content.files),
        )

    def _content(self, pool: ThreadPoolExecutor, number: int, sink: str) -> SinkContent:
        folder = self.sink(sink)
        names = sorted(
            (n for n in self.files.names(folder) if n.endswith(".parquet") and n[0] not in "._"), key=part_order
        )
        if not names:
            raise TransientError(
                "Spark wrote no file for this sink.",
                code="file_missing",
                sink=sink,
                remedy="Try again. If it happens again, report it as a bug.",
                path=folder,
            )
        # The disk works while we compute. Elsewhere a closed file is as durable as its server makes it.
        durable = [] if is_remote(self.root) else [pool.submit(self._sync, sink, name) for name in names]
        sealed = list(pool.map(lambda name: self._file(sink, name), names))
        files, (first, schema, statistics) = [each[0] for each in sealed], sealed[0]
        for file, other, of_file in sealed[1:]:
            if other != schema:
                raise WalCorruptError(
                    f"{file.path} has another schema than {first.path}.",
                    code="file_damaged",
                    sink=sink,
                    remedy="Let the task retry: the next try computes the rows again.",
                    path=file.path,
                )
            statistics.merge(of_file)
        for column, malformed in statistics.malformed().items():
            raise JobError(
                f"the rows have {count_text(malformed, 'value')} of invalid UTF-8. Perhaps the job casts"
                " bytes to string.",
                code="text_not_utf8",
                remedy=f"Find the values with `F.is_valid_utf8({column!r})`. Repair them with"
                f" `F.make_valid_utf8({column!r})`, or keep the column binary.",
                values=malformed,
                pipeline=self.pipeline,
                checkpoint=number,
                sink=sink,
                column=column,
            )
        for synced in durable:
            synced.result()
        return SinkContent(
            schema=encode_schema(schema),
            files=tuple(file for file in files if file.rows),
            statistics=statistics.columns(),
        )

    def _sync(self, sink: str, name: str) -> None:
        with self.files.open(self.files.uri(self.location, sink, name)) as file:
            self.files.sync_file(file)

    def _file(self, sink: str, name: str) -> tuple[WalFile, pa.Schema, Statistics]:
        """Its checksum, and the statistics of its rows. Memory: one batch, and one row group of compressed pages."""
        import pyarrow.parquet as pq

        from airflow_ft.wal.statistics import Statistics

        hashed, size = hashlib.sha256(), 0
        with self.files.open(self.files.uri(self.location, sink, name)) as file:
            while chunk := file.read(_CHUNK):
                hashed.update(chunk)
                size += len(chunk)
            file.seek(0)
            parquet = pq.ParquetFile(file)
            schema, metadata = parquet.schema_arrow.remove_metadata(), parquet.metadata
            statistics, rows = Statistics(schema), 0
            longest = longest_in_dictionaries(file, metadata, schema)
            long = [name for name, size in longest.items() if size > LONG_BYTES]
            spread_out = sum(size for size in longest.values() if size <= LONG_BYTES)
            file.seek(0)
            parquet = pq.ParquetFile(
                file, metadata=metadata, read_dictionary=long, pre_buffer=False, buffer_size=_CHUNK
            )
            groups = map(metadata.row_group, range(metadata.num_row_groups))
            widest = max((group.total_byte_size // max(1, group.num_rows) for group in groups), default=0)
            at_once = max(1, min(ROWS_A_BATCH, BYTES_A_BATCH // max(1, widest, spread_out)))
            for batch in parquet.iter_batches(batch_size=at_once, use_threads=False):
                statistics.add(batch)
                rows += batch.num_rows
            if rows != metadata.num_rows:
                raise WalCorruptError(
                    f"{sink}/{name} has {count_text(rows, 'row')}, but its footer says {metadata.num_rows}.",
                    code="file_damaged",
                    sink=sink,
                    remedy="Let the task retry: the next try computes the rows again.",
                    path=f"{sink}/{name}",
                )
        return WalFile(path=f"{sink}/{name}", rows=rows, bytes=size, sha256=hashed.hexdigest()), schema, statistics


def write_table(table: pa.Table, to: Any, rows: int | None = None) -> None:
    """Writes a table as Spark's files are; `to`: a path or a stream, `rows`: of a row group."""
    import pyarrow.parquet as pq

    pq.write_table(table, to, row_group_size=rows, **parquet_settings(table.schema))


def parquet_settings(schema: pa.Schema) -> dict[str, Any]:
    """Return PyArrow's arguments for a file as Spark's are."""
    return {
        "coerce_timestamps": "us",
        "store_schema": False,
        "compression": "lz4",  # what PyArrow calls so is lz4_raw
        "write_statistics": bounded_columns(schema),
    }


def rows_a_group(table: pa.Table) -> int:
    """Return as many rows of a table as fit into a row group."""
    rows: int = table.num_rows
    size: int = table.nbytes
    return max(1, ROW_GROUP_BYTES * max(1, rows) // max(1, size))


def bounded_columns(schema: pa.Schema) -> list[str]:
    """Return paths of columns whose bounds a Parquet file should hold: none of floating point.

    PyArrow leaves NaN out of the bounds. Spark sorts NaN as the largest number and would skip a file that contains
    one.
    """
    import pyarrow as pa

    def paths(name: str, of: pa.DataType) -> Iterator[str]:
        if pa.types.is_struct(of):
            for field in of:
                yield from paths(f"{name}.{field.name}", field.type)
        elif not pa.types.is_floating(of) and not pa.types.is_nested(of):
            yield name

    return [path for field in schema for path in paths(field.name, field.type)]


def write_segment(
    folder: SegmentFolder,
    number: int,
    tables: Mapping[str, pa.Table],
    positions: Mapping[str, Any] | None = None,
    lineage: Mapping[str, Any] | None = None,
) -> Segment:
    """A segment straight from Arrow tables, one file a sink: for programs without Spark, and for tests.

    StageError when the folder is there already.
    """
    files = folder.files
    refuse_another_history(folder.files, folder.location, folder.pipeline)
    for name, table in tables.items():
        files.make_folder(folder.sink(name))
        with files.create(files.uri(folder.sink(name), "part-00000.parquet")) as file:
            write_table(table, file, rows_a_group(table))
    return folder.seal(number, dict.fromkeys(tables, True), positions or {}, lineage)


def _nothing() -> SinkContent:
    import pyarrow as pa

    return SinkContent(schema=encode_schema(pa.schema([])), files=(), statistics={})


def longest_in_dictionaries(file: Any, metadata: pq.FileMetaData, schema: pa.Schema) -> dict[str, int]:
    """Return the bytes of the longest value in a dictionary, by column of text or bytes that has one.

    A dictionary holds a value once, however many rows have it: long ones must not be spread out over the rows of a
    batch. Such a column is read as dictionary and indices, which takes three times as long where most values differ.
    The first row of a row group brings its whole dictionary.
    """
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    from airflow_ft.wal.statistics import is_bytes, is_text

    groups = (metadata.row_group(index) for index in range(metadata.num_row_groups))
    chunks = (group.column(index) for group in groups for index in range(group.num_columns))
    have = {chunk.path_in_schema for chunk in chunks if chunk.has_dictionary_page}
    names = [item.name for item in schema if item.name in have and (is_text(item.type) or is_bytes(item.type))]
    longest = dict.fromkeys(names, 0)
    file.seek(0)
    parquet = pq.ParquetFile(file, metadata=metadata, read_dictionary=names, pre_buffer=False, buffer_size=_CHUNK)
    for index in range(metadata.num_row_groups if names else 0):
        for row in islice(parquet.iter_batches(1, [index], names, use_threads=False), 1):
            for name in names:
                size = pc.max(pc.binary_length(row.column(name).dictionary)).as_py() or 0
                longest[name] = max(longest[name], size)
    return longest


def part_order(name: str) -> tuple[int, str]:
    """Spark numbers its files by partition, with five digits or more: rows keep the order of the DataFrame."""
    match = re.match(r"part-(\d+)", name)
    return (int(match[1]) if match else -1, name)
