"""Does the store under the write-ahead log keep what exactly-once needs, and may these keys do it?"""

from __future__ import annotations

import uuid

from airflow_ft.clients.buckets import BucketPlace, settings_of
from airflow_ft.protocol.doctor import Examination
from airflow_ft.protocol.errors import ConfigurationError, UnfitTargetError
from airflow_ft.wal.s3 import S3FileSystem

_FOLDER = ".airflow-ft-probe-"
_TRIES = 10


def examine_bucket(exam: Examination, root: str) -> bool:
    """Probe the store in a folder of its own below `root`, which is removed. Returns whether it was reached."""
    files = S3FileSystem()
    where = exam.attempt("place", lambda: f"{files.uri(root)} at {settings_of(BucketPlace.of(root)).endpoint}")
    if where is None:
        return False
    folder = files.uri(root, f"{_FOLDER}{uuid.uuid4().hex}")
    try:
        if not exam.passes("writable", f"an object was put below {where} and read", lambda: _visible(files, folder)):
            return False
        exam.passes("condition", "the store refuses to replace an existing object", lambda: _condition(files, folder))
        exam.passes("copy", "the store copies objects", lambda: _copies(files, folder))
    finally:
        exam.passes("removable", "the objects were removed", lambda: _removed(files, folder))
    return True


def _visible(files: S3FileSystem, folder: str) -> None:
    """Each object is read, and is in the list, right after it was put."""
    for number in range(_TRIES):
        uri = files.uri(folder, str(number))
        files.write_marker(uri, str(number).encode())
        if files.read(uri) != str(number).encode() or str(number) not in files.names(folder):
            raise _unfit(uri, "an object is not visible right after it was put", "read after write")


def _condition(files: S3FileSystem, folder: str) -> None:
    uri = files.uri(folder, "condition")
    files.write_marker(uri, b"1")
    try:
        files.write_marker(uri, b"2")
    except FileExistsError:
        if files.read(uri) == b"1":
            return
    raise _unfit(uri, "the store overwrites objects although If-None-Match forbids it", "If-None-Match")


def _copies(files: S3FileSystem, folder: str) -> None:
    files.link_file(files.uri(folder, "0"), files.uri(folder, "copy"))
    if files.read(files.uri(folder, "copy")) != b"0":
        raise _unfit(folder, "a copy differs from its object", "CopyObject")


def _removed(files: S3FileSystem, folder: str) -> None:
    files.remove_tree(folder)
    if found := files.names(folder):
        raise ConfigurationError(
            f"{folder} still has {found[0]} after its deletion.",
            code="file_system_unsupported",
            remedy="Let the keys of the connection delete objects there.",
            path=folder,
        )


def _unfit(uri: str, what: str, feature: str) -> UnfitTargetError:
    return UnfitTargetError(
        f"{what}: {uri}.",
        code="file_system_unsupported",
        remedy="Use a store, or a version of it, that has it (docs/object-storage.md). Exactly-once needs it.",
        path=uri,
        feature=feature,
    )
