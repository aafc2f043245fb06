"""Files of Spark's on a local disk, compared with the checksums beside them, in Hadoop's format: `.NAME.crc`.

HDFS and stores of objects keep their own. A file without one is read as it is. Hadoop writes some, and
`airflow_ft.spark.state.sealing` those of the files on which everything rests.
"""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path

from airflow_ft.protocol.errors import WalCorruptError
from airflow_ft.wal.filesystem import FileSystem, is_remote

RESTORE_STATE = (
    "Restore it from a backup, or restore a savepoint (`airflow ft savepoint list`). While rows wait for delivery,"
    " `airflow ft rewind PIPELINE` goes back to older state and computes them again. Otherwise"
    " `airflow ft reset-state PIPELINE` drops the state and keeps the positions."
)
"""Remedy for damaged or missing files of Spark's state."""
_HEAD = struct.Struct(">4si")  # of `ChecksumFileSystem`: mark, bytes for each checksum
_MARK = b"crc\0"
_SIZE, _MOST = 512, 1 << 20


def read_checked(files: FileSystem, uri: str) -> bytes:
    """Return the whole file; WalCorruptError when there is none, or it is not what its checksums say."""
    data = files.read(uri)
    if not _fits(files, uri, data):  # it may have been replaced between two reads: look once more
        data = files.read(uri)
        if not _fits(files, uri, data):
            raise damaged(uri)
    return data


def damaged(name: str) -> WalCorruptError:
    """Return the error for a file whose contents are not what was written."""
    return WalCorruptError(
        f"{name}, a file of Spark's state, does not match its checksum.",
        code="checksum_mismatch",
        remedy=RESTORE_STATE,
        path=name,
    )


def _fits(files: FileSystem, uri: str, data: bytes) -> bool:
    if is_remote(uri):
        return True
    folder, _, name = uri.rpartition("/")
    try:
        with files.open_plain(f"{folder}/.{name}.crc") as file:
            sums = file.read()
    except FileNotFoundError:
        return True
    if len(sums) < _HEAD.size or not sums.startswith(_MARK):  # no checksum file: Hadoop passes it over, too
        return True
    _, size = _HEAD.unpack_from(sums)
    if not 0 < size <= _MOST:
        return False
    return sums[_HEAD.size :] == _sums(data, size)


def _sums(data: bytes, size: int) -> bytes:
    return b"".join(struct.pack(">I", zlib.crc32(data[at : at + size])) for at in range(0, len(data), size))


def write_checksum(path: Path) -> None:
    """Put a checksum beside a file on a local path, as Hadoop does; the caller syncs its folder.

    Not for a file that may be replaced: its checksum would no longer match.
    """
    data = path.read_bytes()
    sums = _HEAD.pack(_MARK, _SIZE) + _sums(data, _SIZE)
    temporary = path.with_name(f".{path.name}.crc.{os.getpid()}.tmp")
    temporary.write_bytes(sums)
    temporary.replace(path.with_name(f".{path.name}.crc"))
