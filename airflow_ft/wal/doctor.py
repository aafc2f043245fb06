"""Can the write-ahead log be written durably, is there room, and are the rows that are still needed there?"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from airflow_ft.clients.buckets import is_bucket
from airflow_ft.clients.mounts import file_system
from airflow_ft.protocol.doctor import Check, Examination
from airflow_ft.protocol.errors import ConfigurationError, WalCorruptError
from airflow_ft.protocol.known_roots import know
from airflow_ft.protocol.model import Segment
from airflow_ft.protocol.numbers import count_text
from airflow_ft.protocol.write_ahead_log import SegmentReader, WalReader
from airflow_ft.wal import roots
from airflow_ft.wal.bucket_doctor import examine_bucket
from airflow_ft.wal.filesystem import filesystem, is_hdfs
from airflow_ft.wal.hdfs_doctor import examine_hdfs
from airflow_ft.wal.local import local_path
from airflow_ft.wal.markers import MARKER
from airflow_ft.wal.roots import RootLog

MINIMUM_FREE = 1 << 30  # bytes
_VOLATILE = {"tmpfs", "ramfs"}


def examine_wal(root: str, wal: WalReader, needed: Sequence[Segment], store: RootLog | None = None) -> list[Check]:
    """`needed` are published segments that no sink has confirmed yet. A file is written, synced and removed again.

    `store`: the decision log, which knows the root by its marker.
    """
    exam = Examination(f"write-ahead log {root}")
    if is_hdfs(root):
        reached = examine_hdfs(exam, root, max((segment.bytes for segment in needed), default=0))
    elif is_bucket(root):
        reached = examine_bucket(exam, root)
    else:
        reached = _examine_local(exam, root, needed, store)
    if reached and store is not None:
        _marker(exam, store, root)
    if reached and needed:
        rows = sum(segment.total_rows for segment in needed)
        exam.passes(
            "rows",
            f"{count_text(rows, 'row')} of {count_text(len(needed), 'undelivered checkpoint')}, with all files",
            lambda: [*map(_checked, map(wal.open, needed))],
        )
    return exam.checks


def _checked(reader: SegmentReader) -> SegmentReader:
    """Return it; WalCorruptError if a file of the segment is missing or has another size. Reads no rows."""
    location = reader.segment.location
    files = filesystem(location)
    found = files.tree(location)
    for sink in reader.sinks():
        for file in reader.files(sink):
            if found.get(file.path) != file.bytes:
                where = files.uri(location, *file.path.split("/"))
                is_missing = file.path not in found
                raise WalCorruptError(
                    f"{where} is missing." if is_missing else f"{where} has another size than when it was published.",
                    code="file_missing" if is_missing else "file_damaged",
                    remedy=f"Restore {where} from a backup. Or, unless checkpoint {reader.segment.number} is decided,"
                    " run `airflow ft rewind`.",
                    checkpoint=reader.segment.number,
                    sink=sink,
                    path=where,
                )
    return reader


def _marker(exam: Examination, store: RootLog, root: str) -> None:
    """Return whether this is the disk that the decision log knows; nothing is written."""
    uri = filesystem(root).uri(root)
    expected = _expected(store, root)
    if expected is None:
        exam.ok("identity", f"the first run creates the file {MARKER} there, which identifies the disk from then on")
        return
    know(uri, expected)
    exam.passes("identity", f"its file {MARKER} has the id that the decision log knows", lambda: roots.require(uri))


def _expected(store: RootLog, root: str) -> str | None:
    """Return the id that the decision log knows of this root; None: no run has used it."""
    return store.root(filesystem(root).uri(root))


def _examine_local(exam: Examination, root: str, needed: Sequence[Segment], store: RootLog | None) -> bool:
    path = exam.attempt("place", lambda: local_path(root))
    if path is None:
        return False
    existing = _nearest(path)
    if existing != path and (store is None or _expected(store, root) is None):
        exam.ok("place", f"{path} does not exist yet: the first run creates it. All workers need the same path")
    if exam.passes("writable", f"a file was written to {existing}, synced and removed", lambda: _try(existing)):
        _room(exam, existing, needed)
    if (kind := file_system(existing)) in _VOLATILE:
        exam.problem("disk", f"{existing} is in memory ({kind})", "Move `wal_root` to a disk that survives a restart.")
    return True


def _nearest(path: Path) -> Path:
    while not path.exists():
        path = path.parent
    return path


def _try(folder: Path) -> None:
    try:
        # Unnamed where the system can do that, else removed at once: nothing stays, whatever kills this process.
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"airflow-ft")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise ConfigurationError(
            f"{folder} cannot be written and synced: {error.strerror}.",
            code="folder_not_writable",
            remedy="Let the user of the workers and of Spark own the folder. Check that its disk is neither full nor"
            " read-only.",
            path=str(folder),
        ) from error


def _room(exam: Examination, folder: Path, needed: Sequence[Segment]) -> None:
    free = shutil.disk_usage(folder).free
    text = f"{free / (1 << 30):.1f} GB are free"
    largest = max((segment.bytes for segment in needed), default=0)
    if free < max(MINIMUM_FREE, 3 * largest):
        exam.warn("room", text, "Free space. A checkpoint that does not fit fails, and the next try computes it again.")
    else:
        exam.ok("room", text)
