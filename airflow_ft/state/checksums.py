"""Files of Spark's on a local disk, compared with the checksums that Hadoop puts beside them: `.NAME.crc`.

HDFS keeps its own, and its clients compare them. A file without one is read as it is: this package has put it there.
"""

from __future__ import annotations

import struct
import zlib

from airflow_ft.core.errors import WalCorruptError
from airflow_ft.wal.filesystem import FileSystem, is_hdfs

_HEAD = struct.Struct(">4si")  # of `ChecksumFileSystem`: mark, bytes for each checksum
_MARK = b"crc\0"
_MOST = 1 << 20


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
        f"{name}, a file of Spark's state, is damaged",
        remedy="restore it from a backup, or rewind the pipeline to compute it again",
    )


def _fits(files: FileSystem, uri: str, data: bytes) -> bool:
    if is_hdfs(uri):
        return True
    folder, _, name = uri.rpartition("/")
    try:
        with files.open_plain(f"{folder}/.{name}.crc") as file:
            told = file.read()
    except FileNotFoundError:
        return True
    if len(told) < _HEAD.size:
        return False
    mark, size = _HEAD.unpack_from(told)
    if mark != _MARK or not 0 < size <= _MOST:
        return False
    sums = b"".join(struct.pack(">I", zlib.crc32(data[at : at + size])) for at in range(0, len(data), size))
    return told[_HEAD.size :] == sums
