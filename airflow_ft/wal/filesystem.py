"""The file system under the log: the one place that knows what a URI is and how bytes become durable.

Local paths (`/abs/path` or `file:///abs/path`), HDFS (`airflow_ft.wal.hdfs`) and buckets (`airflow_ft.wal.s3`).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePosixPath
from typing import BinaryIO, Protocol

from airflow_ft.clients.buckets import BucketPlace, is_bucket
from airflow_ft.protocol.errors import StageError
from airflow_ft.wal.copying import copy_file, copy_tree
from airflow_ft.wal.hdfs import SCHEME, HdfsFileSystem, hdfs_path
from airflow_ft.wal.local import LocalFileSystem, Synced, local_path
from airflow_ft.wal.s3 import FOREIGN_COPIES, S3FileSystem


class FileSystem(Protocol):
    """File system operations of the log. Locations are URIs; relative names use `/`."""

    def uri(self, location: str, *names: str) -> str:
        """The URI of a file or folder below `location`."""

    def hadoop_path(self, uri: str) -> str:
        """Return the path in the form that Spark needs (Hadoop takes percent signs literally)."""

    def seen(self, uri: str) -> bool:
        """`exists` without a look at the root, for a caller that polls until something is there."""

    def seen_folder(self, uri: str) -> bool:
        """As `seen`, for a folder."""

    # StorageUnavailableError of these three: nothing is there, and its root is away.
    def exists(self, uri: str) -> bool: ...

    def names(self, uri: str) -> list[str]:
        """Names of the entries of a folder, unordered; empty when there is no such folder."""

    def tree(self, uri: str) -> dict[str, int]:
        """All files of a folder and those below it, by relative name, with their bytes; empty when there is none."""

    def open(self, uri: str) -> BinaryIO:
        """Opens for reading; WalCorruptError without such a file, StorageUnavailableError when its root is away."""

    def open_plain(self, uri: str) -> BinaryIO:
        """Opens for reading; FileNotFoundError when there is no such file."""

    def read(self, uri: str) -> bytes:
        """The whole file; WalCorruptError when there is no such file."""

    def size(self, uri: str) -> int:
        """Bytes of a file; FileNotFoundError when there is none."""

    def create(self, uri: str) -> BinaryIO:
        """Opens a new file for writing, piece by piece; folders are made. Durable after `sync_file` and its close."""

    def write(self, uri: str, data: bytes) -> None:
        """Creates a file all at once and durably; folders are made. Refuses to replace another's."""

    def write_marker(self, uri: str, data: bytes) -> None:
        """As `write`, for the marker of a root that is not known yet (`airflow_ft.wal.roots`)."""

    def replace(self, uri: str, data: bytes) -> None:
        """Puts a file into its place all at once and durably, also where one is: other links to that one keep it."""

    def make_folder(self, uri: str) -> None:
        """Make a folder, and those above it. Raises FileExistsError if it exists."""

    def make_like(self, uri: str, model: str) -> bool:
        """Give a folder the mode, group and ACLs of the folder `model`; make it if it is missing.

        Returns False if it stays different.
        """

    def remove(self, uri: str) -> None:
        """Removes a file if it is there."""

    def sync_file(self, file: BinaryIO) -> None:
        """Returns when the contents of an open file survive a power cut."""

    def sync_folders(self, uri: str, up_to: str) -> None:
        """Returns when the entries of the folder, and of each parent down from `up_to`, survive a power cut."""

    def sync_tree(self, uri: str, up_to: str, synced: Synced) -> None:
        """Returns when everything in a folder survives a power cut.

        `synced` is the memory between calls: what was synced, and is still the same, is skipped.
        """

    def link_tree(self, source: str, target: str, keep: Callable[[PurePosixPath], bool]) -> int:
        """Copies a folder, which others may still be writing to, without its later changes; returns the files copied.

        `keep` is asked with each file's relative name. Files are immutable in their place: writers replace, never
        change them.
        """

    def link_file(self, source: str, target: str) -> None:
        """The file under a second name, where nothing is yet: by a hard link, else a copy. Folders are made.

        Owner, mode and group are those of a new file there: a link that would have others is not made.
        """

    def rename_folder(self, source: str, target: str) -> None:
        """Rename a folder that is not empty, atomically. The new parent exists. Durable by `sync_folders`.

        Raises FileExistsError if the target exists (an empty folder may be replaced), FileNotFoundError if there is no
        such folder.
        """

    def remove_tree(self, uri: str) -> None:
        """Removes a folder if it is there; of a link the link alone.

        StorageUnavailableError, with nothing removed, where another disk is mounted in it.
        """


def filesystem(uri: str) -> FileSystem:
    """The file system of a URI or absolute path; ConfigurationError when there is none for it."""
    if is_hdfs(uri):
        hdfs_path(uri)
        return HdfsFileSystem()
    if is_bucket(uri):
        BucketPlace.of(uri)
        return S3FileSystem()
    local_path(uri)
    return LocalFileSystem()


def link_tree(source: str, target: str, keep: Callable[[PurePosixPath], bool]) -> int:
    """`FileSystem.link_tree`, also from one file system to another: then it is a copy."""
    files, others = filesystem(source), filesystem(target)
    if type(files) is type(others):
        return files.link_tree(source, target, keep)
    at_once = {"at_once": FOREIGN_COPIES} if is_bucket(source) or is_bucket(target) else {}
    return copy_tree(files, source, others, target, keep, **at_once)


def link_file(source: str, target: str) -> None:
    """`FileSystem.link_file`, also from one file system to another: then it is a copy."""
    files, others = filesystem(source), filesystem(target)
    if type(files) is type(others):
        files.link_file(source, target)
    else:
        copy_file(files, source, others, target)


def is_hdfs(uri: str) -> bool:
    """Return whether a URI names a place on HDFS."""
    return uri.startswith(f"{SCHEME}://")


def is_remote(uri: str) -> bool:
    """Return whether a URI names a place that only its server's client reaches: no local path, no mount."""
    return is_hdfs(uri) or is_bucket(uri)


def identity(uri: str) -> str:
    """Return one spelling for all URIs of a place. Two connections may lead to one bucket.

    For what must not be deleted: a place under another connection's name may be the same one.
    """
    files = filesystem(uri)
    return files.hadoop_path(uri) if is_bucket(uri) else files.uri(uri)


def refuse_another_history(files: FileSystem, uri: str, pipeline: str) -> None:
    """Raise StageError if an attempt's folder exists: see `another_history`."""
    if files.seen_folder(uri) if is_remote(uri) else files.exists(uri):
        raise another_history(uri, pipeline)


def another_history(uri: str, pipeline: str) -> StageError:
    """Return the error for an attempt's folder that exists already: another decision log made it.

    A log that was restored from a backup, or created again, repeats numbers. Spark would continue from the old files
    and skip rows that this log never saw (I10).
    """
    return StageError(
        f"{uri} exists already: another history of the decision log made it (before a restore, or by an older log).",
        code="attempt_folder_exists",
        remedy="Do nothing if the decision log was restored or replaced: the next try uses a new folder.",
        pipeline=pipeline,
        path=uri,
    )
