"""The files in folders of other programs: which there are, and which of them hold rows."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, cast

from airflow_ft.clients.buckets import is_bucket
from airflow_ft.protocol.errors import (
    AirflowFtError,
    ConfigurationError,
    ExternalRowsError,
    StorageUnavailableError,
)
from airflow_ft.protocol.secrets import safe_uri
from airflow_ft.wal.filesystem import FileSystem, filesystem, is_hdfs, is_remote
from airflow_ft.wal.local import local_path
from airflow_ft.wal.writer import part_order

if TYPE_CHECKING:
    from airflow_ft.wal.hdfs import HdfsFileSystem
    from airflow_ft.wal.local import LocalFileSystem
    from airflow_ft.wal.s3 import S3FileSystem

_OF_DATABRICKS = re.compile(r"part-\d+-tid-([a-z0-9]+)-")
_COMMITTED = re.compile(r"_committed_[a-z0-9]+")
_AGAIN = (
    "Write the rows again, into an empty folder: clear the task `folder` with all its downstream tasks, or empty a"
    " folder of your own. So that failed tries leave no files, set"
    " spark.sql.sources.commitProtocolClass to"
    " org.apache.spark.sql.execution.datasources.SQLHadoopMapReduceCommitProtocol."
)
_RUNS = "Wait until the job has ended. If it has failed, do the following. "
Marks = Mapping[str, tuple[object, ...]]
"""Names of files, with what differs in a later file in its place."""
_HIDDEN = ("_", ".")
_UNFINISHED = "_temporary"
_TABLES = {
    r"_delta_log/": "a table of Delta Lake",
    r"\.hoodie/": "a table of Hudi",
    r"_spark_metadata/": "the output of a Spark stream",
    r"metadata/.*\.metadata\.json$": "a table of Iceberg",
    r"snapshot/snapshot-": "a table of Paimon",
}
"""By a file in its folder: what has files that are not all part of it."""


def look(files: FileSystem, location: str, only: str) -> Marks:
    """Return for each file of a folder its size and what else differs in a later file in its place.

    That is inode and time on local disks, the time of the last write on HDFS, and the object's tag in buckets.
    `only`: the name of the one file to look at; "": all.
    """
    with readable(location):
        if not is_remote(location):
            return cast("LocalFileSystem", files).marks(location, only)
        marks = cast("HdfsFileSystem | S3FileSystem", files).marks(location)
        return {name: mark for name, mark in marks.items() if only in ("", name)}


def with_rows(location: str, found: Marks) -> list[str]:
    """Return the names of the files that hold rows, in their order.

    Raises:
        ExternalRowsError: there are none, or the folder holds something else than files of rows.
    """
    _refuse_tables(location, found)
    if unfinished := [name for name in found if _UNFINISHED in name.split("/")]:
        raise ExternalRowsError(
            f"{location} has {unfinished[0]}: the job that writes there has not ended, or has died.",
            code="writer_unfinished",
            remedy="Wait until the job has ended. If it is dead, let it write again, into an empty folder.",
            path=location,
        )
    seen = [name for name in found if not any(part.startswith(_HIDDEN) for part in name.split("/"))]
    if nested := sorted(name for name in seen if "/" in name):
        raise ExternalRowsError(
            f"{location} has files in folders, such as {nested[0]}.",
            code="files_nested",
            remedy="Write the files into the folder itself, without partition folders. Keep the columns of"
            " partitions in the files. The files of several sinks lie in folders with the names of the sinks.",
            path=location,
            file=nested[0],
        )
    if dangling := sorted(name for name in seen if not found[name]):
        raise ExternalRowsError(
            f"{dangling[0]} in {location} is a link to a file that does not exist.",
            code="parquet_unreadable",
            remedy="Restore the file, or remove the link.",
            path=location,
            file=dangling[0],
        )
    if not seen:
        raise ExternalRowsError(
            f"there are no files in {location}.",
            code="files_none",
            remedy="Check that the program has written to this folder. To deliver no rows, write one file without"
            " rows, which says what the columns are.",
            path=location,
        )
    return sorted(seen, key=part_order)


def require_committed(files: FileSystem, location: str, names: Collection[str], found: Marks) -> None:
    """Raise ExternalRowsError if files are not those that jobs of Databricks have committed.

    These jobs write into the folder itself. Its readers take what a file `_committed_<job>` lists as added and none
    lists as removed: failed jobs and tasks leave their files ("Uncommitted files causing data duplication",
    kb.databricks.com). FileNotFoundError if such a list has vanished since the look.
    """
    added: set[str] = set()
    removed: set[str] = set()
    for name in found:
        if _COMMITTED.fullmatch(name):
            new, old = _change(files, location, name)
            added.update(new)
            removed.update(old)
    if replaced := sorted(removed.intersection(names)):
        raise _uncommitted(location, replaced[0], f"a later job of Databricks has removed {replaced[0]}")
    ours = [name for name in names if _OF_DATABRICKS.match(name)]
    if unknown := sorted(set(ours) - added):
        why = f"no _committed_ file of Databricks lists {unknown[0]}"
        job = _OF_DATABRICKS.match(unknown[0])
        runs = job is not None and f"_started_{job[1]}" in found and f"_committed_{job[1]}" not in found
        raise _uncommitted(location, unknown[0], why, _RUNS if runs else "")
    missing = sorted(added - removed - set(names))
    if len(missing) > len(names) - len(ours):  # each file with another name may be one of them
        raise ExternalRowsError(
            f"{missing[0]} is missing in {location}, and a _committed_ file of Databricks lists it.",
            code="part_missing",
            remedy=_AGAIN,
            path=location,
            file=missing[0],
        )


def _change(files: FileSystem, location: str, name: str) -> Sequence[list[str]]:
    """Return the files that a `_committed_` file adds and removes. It is empty if its job was cancelled."""
    where = files.uri(location, name)
    with readable(where), files.open_plain(where) as file:
        text = file.read()
    with suppress(ValueError, TypeError, KeyError, RecursionError):
        change = json.loads(text or b'{"added": [], "removed": []}')
        lists = [change["added"], change["removed"]]
        if all(isinstance(each, list) and all(isinstance(file, str) for file in each) for each in lists):
            return lists
    raise _uncommitted(location, name, f"{name} is not JSON with lists of files")


def _uncommitted(location: str, name: str, why: str, first: str = "") -> ExternalRowsError:
    return ExternalRowsError(
        f"the rows in {location} are not known to be committed: {why}.",
        code="files_uncommitted",
        remedy=f"{first}{_AGAIN} Give the folder, and not a single file in it.",
        path=location,
        file=name,
    )


def _refuse_tables(location: str, found: Marks) -> None:
    for pattern, table in _TABLES.items():
        if marker := next((name for name in found if re.match(pattern, name)), None):
            raise ExternalRowsError(
                f"{location} is {table} ({marker}). Its folder also has files with rows that were removed, written"
                " again or never committed.",
                code="files_of_a_table",
                remedy="Read the table in your program, and give the DataFrame or the table of PyArrow.",
                path=location,
                file=marker,
            )


def sink_folders(location: str, sinks: Iterable[str]) -> dict[str, str]:
    """Return where the files of each sink lie: of one sink in the folder itself, of several in folders of their names.

    Raises:
        ExternalRowsError: the folder of several sinks has something else in it.
    """
    names = tuple(sinks)
    if len(names) == 1:
        return {names[0]: location}
    files, folder, only = folder_of(location)
    with readable(folder):
        strange = [name for name in files.names(folder) if name not in names and not name.startswith(_HIDDEN)]
    if only or strange:
        raise ExternalRowsError(
            f"{folder} has {only or sorted(strange)[0]}, which belongs to none of the sinks {', '.join(names)}.",
            code="files_of_no_sink",
            remedy="Write the files of each sink into a folder with the name of the sink.",
            path=folder,
            file=only or sorted(strange)[0],
        )
    return {name: files.uri(folder, name) for name in names}


def folder_of(location: str) -> tuple[FileSystem, str, str]:
    """The file system and folder of a location, and the name of the file if it is one."""
    try:
        files = filesystem(location)
    except ConfigurationError as error:
        raise _unreadable(location) from error
    with readable(location):
        if (is_bucket(location) and files.seen(location)) or (
            is_hdfs(location) and cast("HdfsFileSystem", files).is_file(location)
        ):
            folder, _, name = files.uri(location).rpartition("/")
            return files, folder, name
        if not is_remote(location) and local_path(location).is_file():
            path = local_path(location)
            return files, files.uri(str(path.parent)), path.name
    return files, files.uri(location), ""


@contextmanager
def readable(where: str) -> Iterator[None]:
    """Turn errors of the disk into ours. Arrow's own have no number and pass, as a missing file does."""
    try:
        yield
    except PermissionError as error:
        raise ExternalRowsError(
            f"the user of this task may not read {where}.",
            code="files_forbidden",
            remedy="Let the program write files that the user of Airflow's workers can read.",
            path=where,
        ) from error
    except OSError as error:
        if isinstance(error, FileNotFoundError | AirflowFtError) or not error.errno:
            raise
        raise StorageUnavailableError(
            f"{where} cannot be read: {error.strerror or error}.",
            number=error.errno,
            remedy="Check that the disk is mounted and works. Nothing was published.",
            path=where,
        ) from error


def _unreadable(location: str) -> ConfigurationError:
    shown = safe_uri(location)
    return ConfigurationError(
        f"{shown} cannot be read here.",
        code="path_invalid",
        remedy="Give an absolute path, a file:/// URI, hdfs://NAMENODE:PORT/PATH or s3://CONNECTION@BUCKET/FOLDER. Copy"
        " files from other places there, or give a table in memory.",
        path=shown,
    )
