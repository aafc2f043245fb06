"""The last look before a publication: everything that it names lies below the root that the decision log knows.

Spark and this package create folders as they need them. So a driver whose disk is unmounted writes below the mount
point, and a disk that was away for a moment misses files that were written meanwhile. Either would be published, and be
missing for good. Of a bucket only the identity counts: each put was answered, and a look costs a request.
"""

from __future__ import annotations

import errno

from airflow_ft.clients.buckets import is_bucket
from airflow_ft.protocol.errors import StorageUnavailableError
from airflow_ft.protocol.model import Segment, SparkPosition
from airflow_ft.spark.state.files import stores_of
from airflow_ft.wal.filesystem import FileSystem, filesystem, is_remote
from airflow_ft.wal.manifest import MANIFEST, Manifest, digest
from airflow_ft.wal.roots import is_known, require, require_files


def require_proven(root: str, segment: Segment, position: SparkPosition | None) -> None:
    """Raise StorageUnavailableError unless the segment, and Spark's own files up to the position, are there.

    Call it when all of them are durable. Does nothing where the process knows no root (tools without a decision log).
    """
    if not is_known(root):
        return
    require(root)
    if is_bucket(root):
        return
    files = filesystem(segment.location)
    where = files.uri(segment.location, MANIFEST)
    require_files(segment.location, [(MANIFEST, None)])
    data = files.read(where)
    if digest(data) != segment.digest:
        raise _lost(where)
    manifest = Manifest.parse(data, where)
    written = [(file.path, file.bytes) for content in manifest.sinks.values() for file in content.files]
    require_files(segment.location, written)
    if position is not None and position.batch >= 0:
        names = [f"{log}/{position.batch}" for log in ("offsets", "commits")]
        require_files(position.location, [(name, None) for name in names])
        if not is_remote(position.location):  # which has no mount point below which files could be written
            _require_state(filesystem(position.location), position)
    require(root)


def _require_state(files: FileSystem, position: SparkPosition) -> None:
    """Each partition that has the state of the batch before has that of this batch, which Spark writes for all."""
    version = position.batch + 1
    for folder, found in stores_of(files, files.uri(position.location, "state")):
        versions = {number for number, _, _ in found}
        if version - 1 in versions and version not in versions:
            raise _lost(files.uri(folder, str(version)))


def _lost(where: str) -> StorageUnavailableError:
    return StorageUnavailableError(
        f"{where} was written but does not exist now: its disk was not mounted for a while.",
        number=errno.ENODEV,
        remedy="Check the mount of the disk. Nothing was published: the next try computes the rows again.",
        path=where,
    )
