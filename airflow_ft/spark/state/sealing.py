"""Checksums of the small files of a location on a local path: Spark's logs, notes, and what describes the state.

Without a checksum, nothing would notice a changed bit in them. Spark would continue at another offset, read a file
again, or read its state by other types. In a JVM that runs its tasks itself Hadoop writes none (`driver.local_files`).
Both Hadoop and this package compare the checksums that are written here (`airflow_ft.wal.checksums`). Files of the
state itself are many, and have checksums of their own (LZ4, zip, RocksDB), unless they are compressed with zstd.

If the process dies between a file and its checksum, the file has none, and is read as it is.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from airflow_ft.spark.state.location_files import COMMITS, OFFSETS
from airflow_ft.wal.checksums import write_checksum
from airflow_ft.wal.filesystem import is_remote
from airflow_ft.wal.local import local_path

_NOTES = ("", "airflow_ft_topics", "airflow_ft_left/*")
"""Folders of this package's notes; the topmost holds Spark's `metadata`, too."""
_LOGS = (OFFSETS, COMMITS, "sources/*")
_DESCRIPTIONS = ("state/*/_metadata", "state/*/_metadata/v2", "state/*/_stateSchema/*",
                 "state/*/0/**/_metadata")  # fmt: skip
"""Folders to which Spark writes at the first micro-batch of an attempt, if at all."""
_ANY, _NOTE = re.compile(r"[^.]"), re.compile("airflow_ft_")
_CHECKSUM = re.compile(r"\.(.+)\.crc")
_CHANGES = re.compile(r"\d+(?:_[^.]+)?\.(?:delta|changelog|snapshot)$")


@dataclass(frozen=True, slots=True)
class Lacking:
    """Files that have no checksum unless they are sealed. Hadoop would fail if one exists before its own.

    `logs`: Spark's logs, and the descriptions of its state. `state`: also the changes of its state.
    """

    logs: bool = False
    state: bool = False


def seal(location: str, lacking: Lacking, *, first: bool) -> None:
    """Write the checksums of notes, and of what is lacking them; `first`: also of what an attempt writes only once.

    The caller syncs the location. Nothing is done on HDFS and in buckets, which have their own.
    """
    if is_remote(location):
        return
    base = local_path(location)
    patterns = (*_NOTES, *(_LOGS if lacking.logs else ()), *(_DESCRIPTIONS if lacking.logs and first else ()))
    for pattern in patterns:
        for folder in base.glob(pattern) if pattern else (base,):
            _seal(folder, _ANY if lacking.logs or pattern else _NOTE)
    if lacking.state:
        for folder in (*base.glob("state/*/*"), *base.glob("state/*/*/*")):
            _seal(folder, _CHANGES)


def _seal(folder: Path, wanted: re.Pattern[str]) -> None:
    if not folder.is_dir():
        return
    names = {path.name for path in folder.iterdir()}
    for name in names:
        # Spark removes old files of its logs without their checksums, which would gather for ever in a stream.
        if (of := _CHECKSUM.fullmatch(name)) and of[1] not in names and wanted.match(of[1]):
            (folder / name).unlink(missing_ok=True)
            continue
        path = folder / name
        if wanted.match(name) and f".{name}.crc" not in names and path.is_file():
            with suppress(FileNotFoundError):  # Spark has removed it meanwhile, since it is too old
                write_checksum(path)
