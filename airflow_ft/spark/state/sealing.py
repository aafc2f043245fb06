"""Checksums of the small files of a location on a local path: Spark's logs, notes, and what describes the state.

Without a checksum, nothing would notice a changed bit in them. Spark would continue at another offset, read a file
again, or read its state by other types. In a JVM that runs its tasks itself Hadoop writes none (`driver.local_files`).
Both Hadoop and this package compare the checksums that are written here (`airflow_ft.wal.checksums`). Files of the
state itself are left out: they are many, and have checksums of their own (LZ4, zip, RocksDB).

If the process dies between a file and its checksum, the file has none, and is read as it is.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from airflow_ft.spark.state.location_files import COMMITS, OFFSETS
from airflow_ft.wal.checksums import write_checksum
from airflow_ft.wal.filesystem import is_hdfs, local_path

_NOTES = ("", "airflow_ft_topics", "airflow_ft_left/*")
"""Folders of this package's notes; the topmost holds Spark's `metadata`, too."""
_LOGS = (OFFSETS, COMMITS, "sources/*")
_DESCRIPTIONS = ("state/*/_metadata", "state/*/_metadata/v2", "state/*/_stateSchema/*",
                 "state/*/0/**/_metadata")  # fmt: skip
"""Folders to which Spark writes at the first micro-batch of an attempt, if at all."""


def seal(location: str, *, first: bool, notes_only: bool = False) -> None:
    """Write the checksums that are missing; `first`: also those of what an attempt writes only once.

    `notes_only`: Hadoop writes those of Spark's files. It would fail where one is there before its own. The caller
    syncs the location. Nothing is done on HDFS, which has its own.
    """
    if is_hdfs(location):
        return
    base = local_path(location)
    patterns = _NOTES if notes_only else (*_NOTES, *_LOGS, *(_DESCRIPTIONS if first else ()))
    for pattern in patterns:
        for folder in base.glob(pattern) if pattern else (base,):
            _seal(folder, "airflow_ft_" if notes_only and not pattern else "")


def _seal(folder: Path, prefix: str) -> None:
    if not folder.is_dir():
        return
    names = {path.name for path in folder.iterdir()}
    for name in names:
        path = folder / name
        if name[0] != "." and name.startswith(prefix) and f".{name}.crc" not in names and path.is_file():
            with suppress(FileNotFoundError):  # Spark has removed it meanwhile, since it is too old
                write_checksum(path)
