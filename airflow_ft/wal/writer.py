"""Writing a segment: Parquet files are put into a folder of their own, then sealed under a manifest.

Nothing is published here. A folder that was never sealed, or sealed and never published, is waste that retention
sweeps; no reader finds it, because the store does not name it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_ft.core.errors import TransientError, WalCorruptError
from airflow_ft.core.model import Segment
from airflow_ft.core.ports import ColumnStatistics, WalFile
from airflow_ft.wal.filesystem import FileSystem, filesystem
from airflow_ft.wal.manifest import MANIFEST, Manifest, SinkContent, digest, encode_schema

if TYPE_CHECKING:
    import pyarrow as pa

# What a reader holds in memory is at most one row group of compressed pages and one batch of decoded rows.
ROW_GROUP_BYTES = 16 * 1024 * 1024
ROWS_A_FILE = 4_000_000
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
        return self.files.uri(self.root, self.pipeline, f"{self.epoch}-{self.attempt}", str(self.batch))

    def sink(self, name: str) -> str:
        """The URI of the folder into which the Parquet files of a sink go."""
        return self.files.uri(self.location, name)

    def seal(
        self,
        number: int,
        statistics: Mapping[str, Mapping[str, ColumnStatistics] | None],
        positions: Mapping[str, Any],
    ) -> Segment:
        """Makes the files durable, computes their checksums and writes the manifest.

        `statistics` names every sink of the segment, with its columns in any order; None: the job returned nothing
        for this (optional) sink. Returns the segment to publish. After that no file of it may change (I1).
        """
        files = self.files
        sinks = {
            name: self._content(name, columns) if columns is not None else _nothing()
            for name, columns in statistics.items()
        }
        manifest = Manifest(
            pipeline=self.pipeline,
            number=number,
            epoch=self.epoch,
            attempt=self.attempt,
            batch=self.batch,
            sinks=sinks,
            positions=positions,
        )
        text = manifest.text()
        files.write(files.uri(self.location, MANIFEST), text.encode())
        # Power may fail right after publication: what the store names must be found then.
        for name, columns in statistics.items():
            if columns is not None:
                files.sync_folders(self.sink(name), self.sink(name))
        files.sync_folders(self.location, self.root)
        return Segment(
            number=number,
            digest=digest(text),
            location=self.location,
            rows={name: content.rows for name, content in sinks.items()},
            bytes=sum(file.bytes for content in sinks.values() for file in content.files),
        )

    def _content(self, sink: str, columns: Mapping[str, ColumnStatistics]) -> SinkContent:
        folder = self.sink(sink)
        names = sorted((n for n in self.files.names(folder) if n.endswith(".parquet") and n[0] not in "._"), key=_order)
        if not names:
            raise TransientError("Spark wrote no file", sink=sink, remedy="try again; report it if it happens again")
        with ThreadPoolExecutor(max_workers=4) as pool:
            sealed = list(pool.map(lambda name: self._file(sink, name), names))
        schema = sealed[0][1]
        for file, other in sealed:
            if other != schema:
                raise WalCorruptError(f"{file.path} has another schema than {sealed[0][0].path}", sink=sink)
        return SinkContent(
            schema=encode_schema(schema),
            files=tuple(file for file, _ in sealed if file.rows),
            statistics={name: columns[name] for name in schema.names},
        )

    def _file(self, sink: str, name: str) -> tuple[WalFile, pa.Schema]:
        import pyarrow.parquet as pq

        hashed, size = hashlib.sha256(), 0
        with self.files.open(self.files.uri(self.location, sink, name)) as file:
            while chunk := file.read(_CHUNK):
                hashed.update(chunk)
                size += len(chunk)
            self.files.sync_file(file)
            file.seek(0)
            parquet = pq.ParquetFile(file)
            schema, rows = parquet.schema_arrow.remove_metadata(), parquet.metadata.num_rows
        return WalFile(path=f"{sink}/{name}", rows=rows, bytes=size, sha256=hashed.hexdigest()), schema


def write_segment(
    folder: SegmentFolder, number: int, tables: Mapping[str, pa.Table], positions: Mapping[str, Any] | None = None
) -> Segment:
    """A segment straight from Arrow tables, one file a sink: for programs without Spark, and for tests."""
    import pyarrow.parquet as pq

    from airflow_ft.wal.filesystem import local_path
    from airflow_ft.wal.statistics import table_statistics

    for name, table in tables.items():
        path = local_path(folder.sink(name))
        path.mkdir(parents=True, exist_ok=False)
        rows = max(1, ROW_GROUP_BYTES * max(1, table.num_rows) // max(1, table.nbytes))
        pq.write_table(
            table, path / "part-00000.parquet", row_group_size=rows, coerce_timestamps="us", store_schema=False
        )
    return folder.seal(number, {name: table_statistics(table) for name, table in tables.items()}, positions or {})


def _nothing() -> SinkContent:
    import pyarrow as pa

    return SinkContent(schema=encode_schema(pa.schema([])), files=(), statistics={})


def _order(name: str) -> tuple[int, str]:
    """Spark numbers its files by partition, with five digits or more: rows keep the order of the DataFrame."""
    match = re.match(r"part-(\d+)", name)
    return (int(match[1]) if match else -1, name)
