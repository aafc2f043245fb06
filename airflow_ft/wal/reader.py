"""Reading published segments: nothing is handed out that was not checked against the manifest's checksums."""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from airflow_ft.protocol.errors import StorageUnavailableError, WalCorruptError
from airflow_ft.protocol.model import Plan, Segment
from airflow_ft.protocol.numbers import count_text
from airflow_ft.protocol.write_ahead_log import ColumnStatistics, WalFile
from airflow_ft.wal import roots
from airflow_ft.wal.dead_letters import ParquetDeadLetters
from airflow_ft.wal.filesystem import FileSystem, filesystem, is_remote
from airflow_ft.wal.manifest import MANIFEST, Manifest, SinkContent, decode_schema, digest

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

ROWS_A_BATCH = 65_536
BYTES_A_BATCH = 64 * 1024 * 1024
_CHUNK = 1 << 20
_MANIFESTS = 16  # of remote segments that this process has read
_RESTORE = (
    "Restore the file from a backup. Or, unless the checkpoint is decided, run `airflow ft rewind`. Damaged rows are"
    " not delivered."
)


class ParquetWal:
    """The `WalReader` of airflow_ft.protocol.write_ahead_log over Parquet files."""

    def open(self, segment: Segment) -> ParquetSegment:
        """Reads and checks the manifest: its digest must be `segment.digest`, else WalCorruptError."""
        files = filesystem(segment.location)
        roots.require(segment.location)
        # Several sinks of a checkpoint open it, and each look is a request.
        manifest = _known_manifest if is_remote(segment.location) else _manifest
        return ParquetSegment(segment, manifest(segment.location, segment.digest, segment.number), files)

    def dead_letters(self, plan: Plan) -> ParquetDeadLetters:
        """The dead letters of this plan, beside its segments."""
        return ParquetDeadLetters.of(plan)


@dataclass(frozen=True, slots=True)
class ParquetSegment:
    """The `SegmentReader` of airflow_ft.protocol.write_ahead_log: one published segment and its manifest."""

    segment: Segment
    manifest: Manifest
    filesystem: FileSystem

    def sinks(self) -> Sequence[str]:
        return list(self.manifest.sinks)

    def schema(self, sink: str) -> pa.Schema:
        return decode_schema(self._content(sink).schema)

    def files(self, sink: str) -> Sequence[WalFile]:
        return self._content(sink).files

    def statistics(self, sink: str) -> Mapping[str, ColumnStatistics]:
        return self._content(sink).statistics

    def batches(self, sink: str, file: WalFile) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one file in order, at most 65,536 a batch, fewer when they are wide.

        Checks the whole file before it yields the first row, and the number of rows at the end. A caller that did not
        reach the end must not commit. Memory: one row group of compressed pages and one batch.

        Raises:
            WalCorruptError: a check failed.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        where = self.filesystem.uri(self.segment.location, *file.path.split("/"))
        schema = self.schema(sink)
        with self.filesystem.open(where) as source:
            hashed = hashlib.sha256()
            try:
                while chunk := source.read(_CHUNK):
                    hashed.update(chunk)
            except OSError as error:
                raise self._unreadable(where, error, sink) from error
            if hashed.hexdigest() != file.sha256:
                raise self._corrupt(f"{where} does not match its checksum.", "checksum_mismatch", sink, where)
            source.seek(0)
            try:
                parquet = pq.ParquetFile(source, pre_buffer=False, buffer_size=_CHUNK)
                rows = 0
                # A long repeated text is stored once a row group: only the statistics show its size in memory.
                largest = sum(column.max_bytes or 8 for column in self.statistics(sink).values())
                size = rows_a_batch(parquet.metadata, largest)
                for batch in parquet.iter_batches(batch_size=size, use_threads=False):
                    rows += batch.num_rows
                    yield batch if batch.schema.equals(schema) else batch.cast(schema)
            except StorageUnavailableError:  # it says nothing of the rows
                raise
            except (pa.ArrowException, OSError) as error:
                if isinstance(error, OSError) and error.errno:  # of the disk: Arrow's own have no number
                    raise self._unreadable(where, error, sink) from error
                raise self._corrupt(f"{where} cannot be read: {error}.", "file_damaged", sink, where) from error
            if rows != file.rows:
                what = f"{where} has {count_text(rows, 'row')}, but {file.rows:,} were published."
                raise self._corrupt(what, "file_damaged", sink, where)

    def _content(self, sink: str) -> SinkContent:
        try:
            return self.manifest.sinks[sink]
        except KeyError:
            raise WalCorruptError(
                f"the checkpoint has no rows for this sink, only for {', '.join(self.manifest.sinks)}.",
                code="sink_missing",
                pipeline=self.manifest.pipeline,
                checkpoint=self.segment.number,
                sink=sink,
                remedy="Declare the sinks as they were when the checkpoint was staged, or run `airflow ft rewind`.",
                known=list(self.manifest.sinks),
            ) from None

    def _unreadable(self, where: str, error: OSError, sink: str) -> StorageUnavailableError:
        """A disk that fails, or a mount that went away, says nothing of the rows."""
        if isinstance(error, StorageUnavailableError):
            return error
        return StorageUnavailableError(
            f"{where} cannot be read: {error.strerror or error}.",
            number=error.errno or errno.EIO,
            pipeline=self.manifest.pipeline,
            checkpoint=self.segment.number,
            sink=sink,
            remedy="Check that the disk is mounted and works.",
            path=where,
        )

    def _corrupt(self, what: str, code: str, sink: str, where: str) -> WalCorruptError:
        return WalCorruptError(
            what,
            code=code,
            pipeline=self.manifest.pipeline,
            checkpoint=self.segment.number,
            sink=sink,
            remedy=_RESTORE,
            path=where,
        )


def rows_a_batch(metadata: pq.FileMetaData, largest: int) -> int:
    """Return how many rows fit into the budget.

    It depends on the average size of a row in the file, and on `largest`: the bytes of the largest value of each
    column, added up.
    """
    size: int = sum(metadata.row_group(index).total_byte_size for index in range(metadata.num_row_groups))
    average: int = max(1, size // max(1, metadata.num_rows))
    return max(1, min(ROWS_A_BATCH, BYTES_A_BATCH // average, 4 * BYTES_A_BATCH // max(1, largest)))


def _manifest(location: str, wanted: str, number: int) -> Manifest:
    """Read a manifest; WalCorruptError if it has another digest than `wanted`."""
    files = filesystem(location)
    where = files.uri(location, MANIFEST)
    data = files.read(where)
    if (found := digest(data)) != wanted:
        raise WalCorruptError(
            f"the manifest {where} has digest {found[:12]}..., but {wanted[:12]}... was published.",
            code="checksum_mismatch",
            checkpoint=number,
            remedy=_RESTORE,
            path=where,
            found=found,
            expected=wanted,
        )
    return Manifest.parse(data, where)


_known_manifest = lru_cache(_MANIFESTS)(_manifest)
