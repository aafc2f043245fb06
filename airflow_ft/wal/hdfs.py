"""HDFS under the log: `hdfs://namenode:port/path`, or `hdfs://nameservice/path`, as in Spark.

Uses hdfs-native, which speaks the protocol of Hadoop's own client without a JVM. Like that client, it reads
$HADOOP_CONF_DIR (high availability, Kerberos) and the user from $HADOOP_USER_NAME.

- Publication: a file is written under a unique name and then renamed. HDFS renames in one step. It either refuses or
  replaces an existing file, as requested.
- Durability: files written here are synced (hsync), block by block, to the disks of all DataNodes that hold them.
  DataNodes acknowledge Spark's files on close, and sync them to disk if `dfs.datanode.synconclose` is true. No client
  can sync them afterwards. The NameNode syncs its journal before it answers.
- There are no hard links and no copies within the cluster: the cut-back copy of a location reads and writes.
"""

from __future__ import annotations

import errno
import io
import os
import sys
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar, cast
from urllib.parse import urlsplit

from airflow_ft.protocol.background import beside
from airflow_ft.protocol.errors import AirflowFtError, ConfigurationError, StorageUnavailableError, TransientError
from airflow_ft.protocol.secrets import safe_uri
from airflow_ft.wal import hdfs_quotas, markers
from airflow_ft.wal.copying import CHUNK, copy_file, copy_tree
from airflow_ft.wal.hdfs_errors import quota_exceeded, translated_errors

if TYPE_CHECKING:
    from hdfs_native import Client

SCHEME = "hdfs"
TIMEOUT = 120.0
"""Seconds for one answer. The client itself would wait for ever for a NameNode that hangs."""
# Attempts to connect, in about 5 s; by itself it tries for minutes.
_SETTINGS = {"dfs.client.failover.max.attempts": "3", "dfs.client.failover.sleep.max.millis": "2000"}
_MEASURE = 10.0  # seconds for the sum of a folder, while a checkpoint waits
_MAKE_TRIES = 10
_SMALLEST_BLOCK = 1 << 20  # dfs.namenode.fs-limits.min-block-size
_NEW = ".new"  # an empty folder on its way to its name; at most one is left of a crash
T = TypeVar("T")
_clients: dict[tuple[int, str, str], Client] = {}
"""By process, since a client does not survive a fork; by NameNode and user. Never closed: there is no such call."""


def hdfs_path(uri: str) -> tuple[str, str]:
    """The authority and the path that a URI names; ConfigurationError when it does not name both."""
    parts = urlsplit(uri)
    path = uri.partition("://")[2].removeprefix(parts.netloc)  # Hadoop takes `?`, `#` and percent signs literally
    if not parts.netloc or "@" in parts.netloc or not path.startswith("/"):
        what = f"{(shown := safe_uri(uri))!r} is not a place on HDFS."
        remedy = "Give hdfs://NAMENODE:PORT/PATH, or hdfs://NAMESERVICE/PATH. $HADOOP_USER_NAME is the user."
        raise ConfigurationError(what, code="path_invalid", remedy=remedy, path=shown)
    return parts.netloc, str(PurePosixPath(path.replace("//", "/")))


class HdfsFileSystem(markers.RootedFiles):
    """One HDFS; see the module, and `airflow_ft.wal.filesystem.FileSystem` for what the methods promise."""

    def uri(self, location: str, *names: str) -> str:
        authority, path = hdfs_path(location)
        return f"{SCHEME}://{authority}{PurePosixPath(path).joinpath(*names)}"

    def hadoop_path(self, uri: str) -> str:
        return self.uri(uri)

    def seen(self, uri: str) -> bool:
        try:
            self._ask(uri, lambda client, path: client.get_file_info(path))
        except FileNotFoundError:
            return False
        return True

    def _names(self, uri: str) -> list[str]:
        try:
            found = self._ask(uri, lambda client, path: list(client.list_status(path)))
        except FileNotFoundError:
            return []
        return [each.path.rpartition("/")[2] for each in found]

    def _tree(self, uri: str) -> dict[str, int]:
        return {name: each.length for name, each in self._files(uri).items()}

    def marks(self, uri: str) -> dict[str, tuple[object, ...]]:
        """Return the files of `tree`, each with its bytes and the time of its last write."""
        return {name: (each.length, each.modification_time) for name, each in self._looked(uri, self._files).items()}

    def _files(self, uri: str) -> dict[str, Any]:
        """Folder by folder: one that its owner has removed or renamed meanwhile hides no other one."""
        authority, top = hdfs_path(uri)
        base = f"{top.rstrip('/')}/"
        found, folders = {}, [top]
        while folders:
            folder = f"{SCHEME}://{authority}{folders.pop()}"
            with suppress(FileNotFoundError):
                for each in self._ask(folder, lambda client, path: list(client.list_status(path))):
                    if each.isdir:
                        folders.append(each.path)
                    else:
                        found[each.path.removeprefix(base)] = each
        return found

    def open_plain(self, uri: str) -> BinaryIO:
        reader = self._ask(uri, lambda client, path: client.read(path))
        return cast(BinaryIO, io.BufferedReader(_Reader(uri, reader), CHUNK))

    def is_file(self, uri: str) -> bool:
        try:
            return not self._ask(uri, lambda client, path: client.get_file_info(path)).isdir
        except FileNotFoundError:
            return False

    def size(self, uri: str) -> int:
        return int(self._ask(uri, lambda client, path: client.get_file_info(path)).length)

    def create(self, uri: str) -> BinaryIO:
        def block() -> int:
            return int(self._ask(uri, lambda client, path: client.get_file_info(path)).blocksize or 0)

        return cast(BinaryIO, _Writer(uri, self._ask(uri, _create), block))

    def write(self, uri: str, data: bytes) -> None:
        self._put(uri, data, overwrite=False)

    def _put(self, uri: str, data: bytes, *, overwrite: bool) -> None:
        temporary = self._filled(uri, lambda file: file.write(data))
        try:
            self._rename(temporary, uri, overwrite=overwrite)
        except FileNotFoundError:
            # The client repeats what was not answered: an earlier try may have been the one that renamed it.
            if not self.exists(uri) or self.read(uri) != data:
                raise
        except BaseException:
            self._discard(temporary)
            raise

    def write_marker(self, uri: str, data: bytes) -> None:
        self.write(uri, data)

    def replace(self, uri: str, data: bytes) -> None:
        self._put(uri, data, overwrite=True)

    def make_folder(self, uri: str) -> None:
        # HDFS accepts an existing folder; only a rename shows who created it.
        new = self.uri(self.parent(uri), _NEW)
        for _ in range(_MAKE_TRIES):
            self._ask(new, lambda client, path: client.mkdirs(path, create_parent=True))
            try:
                return self._rename(new, uri)
            except FileNotFoundError:  # another process was faster with its own
                continue
        what = f"{uri} could not be created: other processes create folders beside it."
        raise TransientError(what, code="folder_busy", remedy="Try again.", path=uri)

    def make_like(self, uri: str, model: str) -> bool:
        self._ask(uri, lambda client, path: client.mkdirs(path, create_parent=True))
        wanted, found = self._access(model), self._access(uri)
        if found == wanted:
            return True
        mode, group, _ = wanted
        changes: list[Callable[[Client, str], object]] = []
        if found[0] != mode:  # first: the group is refused to most users
            changes.append(lambda client, path: client.set_permission(path, mode))
        if found[1] != group:
            changes.append(lambda client, path: client.set_owner(path, group=group))
        for change in changes:
            try:
                self._ask(uri, change)
            except StorageUnavailableError as error:
                if error.errno != errno.EACCES:  # the folder is another user's, or the group is not this user's
                    raise
        return self._access(uri) == wanted

    def _access(self, uri: str) -> tuple[int, str, list[Any]]:
        """Return who may use a file or folder: its mode, its group, and its access lists (ACLs)."""
        status = self._ask(uri, lambda client, path: client.get_file_info(path))
        try:
            lists = self._ask(uri, lambda client, path: client.get_acl_status(path)).entries
        except StorageUnavailableError as error:
            if "dfs.namenode.acls.enabled" not in error.what:
                raise
            lists = []
        found = sorted((each.scope, each.type, each.name or "", each.permissions) for each in lists)
        return status.permission, status.group, found

    def remove(self, uri: str) -> None:
        self._ask(uri, lambda client, path: client.delete(path))

    def sync_file(self, file: BinaryIO) -> None:
        """Do nothing: a closed file is as durable as the DataNodes make it (see the module)."""

    def sync_folders(self, uri: str, up_to: str) -> None:
        """The NameNode has synced its journal."""

    def sync_tree(self, uri: str, up_to: str, synced: object) -> None:
        """As `sync_file` and `sync_folders`."""

    def link_tree(self, source: str, target: str, keep: Callable[[PurePosixPath], bool]) -> int:
        return copy_tree(self, source, self, target, keep)

    def link_file(self, source: str, target: str) -> None:
        copy_file(self, source, self, target)

    def rename_folder(self, source: str, target: str) -> None:
        try:
            self._rename(source, target)
        except StorageUnavailableError as error:  # a file in the place of a folder has an error of its own
            if self.exists(source) and self.exists(target):
                raise FileExistsError(errno.EEXIST, "it exists already", target) from error
            raise

    def remove_tree(self, uri: str) -> None:
        self._ask(uri, lambda client, path: client.delete(path, True))  # in one step

    def parent(self, uri: str) -> str:
        """The folder above; that of the topmost one is itself."""
        authority, path = hdfs_path(uri)
        return f"{SCHEME}://{authority}{PurePosixPath(path).parent}"

    def quota(self, uri: str) -> tuple[int, int]:
        """Return the bytes that the folder may hold, and those that it holds, with replicas; (0, ...): no bound."""
        found = self._summary(uri)
        return hdfs_quotas.bound(found.space_quota) or 0, int(found.space_consumed)

    def require_room(self, folder: str, source: str, marker: str) -> None:
        """Raise StorageUnavailableError if the quotas of a folder do not allow a rename of `source` into it.

        `marker`: a file like the one that follows the rename. HDFS reserves a whole block to write it. A folder that
        cannot be measured is accepted: the NameNode counts all files in it, and the rename asks it again.
        """
        try:
            found = self._summary(folder, _MEASURE)
            if not hdfs_quotas.has_any(found):
                return
            more = self._summary(source, _MEASURE)
            like = self._ask(marker, lambda client, path: client.get_file_info(path))
        except StorageUnavailableError as error:
            if error.errno not in (errno.EACCES, errno.ETIMEDOUT):  # EACCES: this user cannot list a folder in it
                raise
            return
        if exceeded := hdfs_quotas.exceeded(found, more, like):
            raise quota_exceeded(folder, exceeded)

    def _summary(self, uri: str, timeout: float | None = None) -> Any:
        return self._ask(uri, lambda client, path: client.get_content_summary(path), timeout)

    def publish(self, uri: str, write: Callable[[BinaryIO], object]) -> bool:
        """Create a large file, which `write` fills piece by piece. It appears as a whole, or not at all.

        Returns False if another process was faster; its file stays.
        """
        temporary = self._filled(uri, write)
        try:
            self._rename(temporary, uri)
        except (FileExistsError, FileNotFoundError):  # not found: an unanswered try of the client has renamed it
            if not self.exists(uri):
                raise
            self._discard(temporary)
            return False
        except BaseException:
            self._discard(temporary)
            raise
        return True

    def _filled(self, uri: str, write: Callable[[BinaryIO], object]) -> str:
        folder, _, name = uri.rpartition("/")
        temporary = f"{folder}/.{name}.{uuid.uuid4().hex}"
        try:
            with self.create(temporary) as file:
                write(file)
        except BaseException:
            self._discard(temporary)
            raise
        return temporary

    def _discard(self, temporary: str) -> None:
        try:
            self.remove(temporary)
        except (AirflowFtError, OSError):  # report the original error instead
            return

    def _rename(self, source: str, target: str, *, overwrite: bool = False) -> None:
        to = hdfs_path(target)[1]
        self._ask(source, lambda client, path: client.rename(path, to, overwrite))

    def _ask(self, uri: str, call: Callable[[Client, str], T], timeout: float | None = None) -> T:
        authority, path = hdfs_path(uri)
        return answered(uri, lambda: call(_client(authority), path), timeout)


def answered(uri: str, call: Callable[[], T], timeout: float | None = None) -> T:
    """The call's result; what the client raises, as the errors of this package or those of a local file system."""
    seconds = min(TIMEOUT, timeout or TIMEOUT)
    with translated_errors(uri, seconds):
        return beside(call, "hdfs").result(seconds)


class _Reader(io.RawIOBase):
    """A file of HDFS as Python's buffers want it."""

    def __init__(self, uri: str, reader: Any) -> None:
        self._uri, self._reader = uri, reader

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return int(self._reader.tell())

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._reader.seek(offset, whence)
        return self.tell()

    def readinto(self, buffer: Any) -> int:
        data = answered(self._uri, lambda: self._reader.read(len(buffer)))
        buffer[: len(data)] = data
        return len(data)


class _Writer(io.RawIOBase):
    """A new file of HDFS: synced and closed when it is left without an error; otherwise it is left unclosed.

    `hsync` reaches only the block that is being written, so each is synced when it is full. `block` asks for its size.
    """

    def __init__(self, uri: str, writer: Any, block: Callable[[], int]) -> None:
        self._uri, self._writer, self._size = uri, writer, 0
        self._ask_block, self._block = block, 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._size

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        if not self._block and self._size + len(view) >= _SMALLEST_BLOCK:
            self._block = self._ask_block() or sys.maxsize
        begin = 0
        while begin < len(view):
            left = self._block - self._size % self._block if self._block else CHUNK
            part = bytes(view[begin : begin + min(CHUNK, left)])
            answered(self._uri, lambda part=part: self._writer.write(part))  # type: ignore[misc]
            begin += len(part)
            self._size += len(part)
            if len(part) == left and self._block:
                answered(self._uri, self._writer.hsync)
        return len(view)

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
        self._writer = None

    def close(self) -> None:
        if not self.closed and self._writer is not None:
            writer, self._writer = self._writer, None
            if self._size:
                answered(self._uri, writer.hsync)
            answered(self._uri, writer.close)
        super().close()


def _create(client: Client, path: str) -> Any:
    from hdfs_native import WriteOptions

    return client.create(path, WriteOptions(create_parent=True))


def _client(authority: str) -> Client:
    try:
        from hdfs_native import Client
    except ImportError as error:
        what = f"hdfs://{authority} needs the package hdfs-native, which is not installed on this machine."
        remedy = "Run `pip install 'airflow-ft[hdfs]'` on every machine that runs tasks or the command line."
        raise ConfigurationError(what, code="package_missing", remedy=remedy, package="hdfs-native") from error
    key = (os.getpid(), authority, os.environ.get("HADOOP_USER_NAME", ""))
    if key not in _clients:
        _clients[key] = Client(f"{SCHEME}://{authority}", _SETTINGS)
    return _clients[key]
