"""Limits of file systems and object stores on the path of a partition below a folder."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from airflow_ft.sinks.files.objects import Objects
from airflow_ft.wal.filesystem import FileSystem
from airflow_ft.wal.local import LocalFileSystem, local_path

_LOCAL = 4095  # PATH_MAX of Linux, without the NUL at its end
_HDFS = 8000  # characters (org.apache.hadoop.hdfs.server.common.HdfsServerConstants.MAX_PATH_LENGTH)
_S3 = 1024  # bytes of a key (docs.aws.amazon.com/AmazonS3/latest/userguide/object-keys.html)
_OURS = 200
"""Bytes kept free for names around it: `_<folder>.airflow_ft/<number>.<epoch>-<attempt>/`, and the file's own name."""


def room(files: FileSystem | Objects, root: str) -> int:
    """Return how many bytes a path below the folder `root` (a URI) may have; at least 1."""
    if isinstance(files, Objects):
        most, taken = _S3, len(root.split("://", 1)[-1].partition("/")[2].encode())
    elif isinstance(files, LocalFileSystem):
        path = local_path(root)
        most, taken = _most(path), len(os.fsencode(path))
    else:
        most, taken = _HDFS, len(root.split("://", 1)[-1].partition("/")[2].encode()) + 1
    return max(1, most - taken - _OURS)


def _most(path: Path) -> int:
    """Return PATH_MAX of the file system that a folder lies in, or will lie in."""
    for there in (path, *path.parents):
        with suppress(OSError, ValueError):
            return min(_LOCAL, os.pathconf(there, "PC_PATH_MAX") - 1)
    return _LOCAL
