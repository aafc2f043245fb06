"""Local disks under the log, and everything mounted as one."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import BinaryIO
from urllib.parse import unquote, urlsplit

from airflow_ft.clients.mounts import mounts
from airflow_ft.protocol.errors import ConfigurationError, StorageUnavailableError
from airflow_ft.protocol.secrets import safe_uri
from airflow_ft.wal import markers
from airflow_ft.wal.access import make_like, may_be_linked
from airflow_ft.wal.copying import CHUNK, COPY_TRIES, changing

_NO_LINKS = {
    errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV, errno.EINVAL
}  # fmt: skip
"""Errors of file systems without hard links."""
_REMOVED = ".removed"
Synced = dict[str, dict[str, tuple[int, int, int]]]
"""Durable part of a tree: by folder and name, the values that distinguish an entry from a later one in its place."""


@lru_cache(1024)
def local_path(uri: str) -> Path:
    """The path that an absolute path or a `file:` URI names; ConfigurationError for anything else."""
    parts = urlsplit(uri)
    if parts.scheme == "file" and parts.netloc in ("", "localhost") and parts.path.startswith("/"):
        return Path(unquote(parts.path))
    if uri.startswith("/"):
        return Path(uri)
    shown = safe_uri(uri)
    raise ConfigurationError(
        f"{shown!r} cannot hold a write-ahead log or savepoints.",
        code="path_invalid",
        remedy="Give an absolute path, a file:/// URI, hdfs://NAMENODE:PORT/PATH, or s3://CONNECTION@BUCKET/FOLDER.",
        path=shown,
    )


class LocalFileSystem(markers.RootedFiles):
    """Local disks and everything mounted as one; hard links need `source` and `target` on one volume."""

    def uri(self, location: str, *names: str) -> str:
        return local_path(location).joinpath(*names).as_uri()

    def hadoop_path(self, uri: str) -> str:
        return f"file://{local_path(uri)}"

    def seen(self, uri: str) -> bool:
        return local_path(uri).exists()

    def _names(self, uri: str) -> list[str]:
        try:
            return os.listdir(local_path(uri))  # noqa: PTH208 - a sink's folder may have very many
        except FileNotFoundError:
            return []

    def _tree(self, uri: str) -> dict[str, int]:
        base, found = local_path(uri), {}
        walk = os.walk(base, onerror=_raise_if_there)
        for path in (Path(folder, name) for folder, _, names in walk for name in names):
            with contextlib.suppress(FileNotFoundError):  # its owner has removed or renamed it meanwhile
                found[path.relative_to(base).as_posix()] = path.stat().st_size
        return found

    def marks(self, uri: str, only: str = "") -> dict[str, tuple[object, ...]]:
        """Return the files of `tree`, each with its bytes, inode and time of the last write; (): a link to nothing.

        A linked folder is not entered, and its name ends with '/'. `only`: the name of the one file to look at.
        """
        return self._looked(uri, lambda uri: _marks(local_path(uri), only))

    def open_plain(self, uri: str) -> BinaryIO:
        return local_path(uri).open("rb")

    def size(self, uri: str) -> int:
        return local_path(uri).stat().st_size

    def create(self, uri: str) -> BinaryIO:
        markers.require(self, uri)
        path = local_path(uri)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("xb")

    def write(self, uri: str, data: bytes) -> None:
        markers.require(self, uri)
        self._write(uri, data)

    def write_marker(self, uri: str, data: bytes) -> None:
        self._write(uri, data, of_all=True)

    def _write(self, uri: str, data: bytes, *, of_all: bool = False) -> None:
        """Create a file as a whole. `of_all`: several processes may create it at once."""
        path = local_path(uri)
        with self._temporary(path, data) as temporary:
            try:
                path.hardlink_to(temporary)  # unlike a rename it never replaces what is there
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                # The log's folders belong to one attempt, so looking first is enough; a sink asks `has_links` before.
                # Where sources begin is shared by attempts: a late one may replace it here, and still cannot publish
                # from it.
                if of_all:
                    path.open("xb").close()
                elif path.exists():
                    raise FileExistsError(str(path)) from None
                try:
                    temporary.rename(path)
                except OSError:
                    if of_all:
                        path.unlink()
                    raise
        _sync_folder(path.parent)

    def has_links(self, uri: str) -> bool:
        """Return whether hard links work; without them `write` may replace a file that another process writes
        meanwhile.

        `uri` is an unused name.
        """
        path = local_path(uri)
        with self._temporary(path, b"") as temporary:
            try:
                path.hardlink_to(temporary)
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                return False
            finally:
                path.unlink(missing_ok=True)
        return True

    def replace(self, uri: str, data: bytes) -> None:
        markers.require(self, uri)
        path = local_path(uri)
        with self._temporary(path, data) as temporary:
            temporary.replace(path)
        _sync_folder(path.parent)

    def make_folder(self, uri: str) -> None:
        markers.require(self, uri)
        local_path(uri).mkdir(parents=True)

    def make_like(self, uri: str, model: str) -> bool:
        markers.require(self, uri)
        return make_like(local_path(uri), local_path(model))

    def remove(self, uri: str) -> None:
        markers.require(self, uri)
        local_path(uri).unlink(missing_ok=True)

    @contextlib.contextmanager
    def _temporary(self, path: Path, data: bytes) -> Iterator[Path]:
        """Yield a durable hidden file beside `path`, and remove it afterwards unless it was renamed."""
        path.parent.mkdir(parents=True, exist_ok=True)
        # A name of its own: what a dead process left may be a second link to a file that counts.
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        try:
            with temporary.open("xb") as file:
                file.write(data)
                self.sync_file(file)
            yield temporary
        finally:
            with contextlib.suppress(OSError):  # report the original error instead
                temporary.unlink(missing_ok=True)

    def sync_file(self, file: BinaryIO) -> None:
        if file.writable():
            file.flush()
        os.fsync(file.fileno())

    def sync_folders(self, uri: str, up_to: str) -> None:
        folder, top = local_path(uri), local_path(up_to)
        while True:
            _sync_folder(folder)
            if folder == top or folder == folder.parent:
                return
            folder = folder.parent

    def sync_tree(self, uri: str, up_to: str, synced: Synced) -> None:
        found: Synced = {}
        folders = [str(local_path(uri))]
        while folders:
            folder = folders.pop()
            known, now = synced.get(folder, {}), found.setdefault(folder, {})
            # What is replaced or removed meanwhile belongs to a later batch: it is seen the next time.
            with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                        now[entry.name] = (entry.inode(), 0, 0)
                    elif (mark := _sync_entry(entry, known.get(entry.name))) is not None:
                        now[entry.name] = mark
            if any(known.get(name) != mark for name, mark in now.items()):
                with contextlib.suppress(FileNotFoundError):
                    _sync_folder(Path(folder))
        self.sync_folders(uri, up_to)
        synced.clear()
        synced.update(found)

    def link_tree(self, source: str, target: str, keep: Callable[[PurePosixPath], bool]) -> int:
        base, copy = local_path(source), local_path(target)
        markers.require(self, target)
        for _ in range(COPY_TRIES):
            if not base.is_dir():
                markers.require(self, source)
                raise markers.missing(source)
            copy.mkdir(parents=True, exist_ok=False)  # a folder belongs to one attempt: finding it there is a bug
            try:
                return _link_files(base, copy, keep)
            except FileNotFoundError:
                # Its owner replaced several files by one (a compacted log) while we were between listing and linking:
                # take both the list and the files again.
                shutil.rmtree(copy)
        raise changing(source)

    def link_file(self, source: str, target: str) -> None:
        markers.require(self, target)
        path, place = local_path(source), local_path(target)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.open("xb").close()  # what a new file gets there
        if not may_be_linked(path, place) or not _linked(path, place):
            with place.open("wb") as copy, path.open("rb") as data:
                shutil.copyfileobj(data, copy, CHUNK)
                self.sync_file(copy)

    def rename_folder(self, source: str, target: str) -> None:
        markers.require(self, target)
        try:  # rename(2) replaces a file by a file, and a folder by nothing but an empty one
            local_path(source).rename(local_path(target))
        except (FileExistsError, NotADirectoryError) as error:
            raise FileExistsError(errno.EEXIST, "it exists already", target) from error
        except OSError as error:
            if error.errno != errno.ENOTEMPTY:
                raise
            raise FileExistsError(errno.EEXIST, "it exists already", target) from error

    def remove_tree(self, uri: str) -> None:
        markers.require(self, uri)
        path = local_path(uri)
        if path.is_symlink():  # its target may belong to others
            return path.unlink(missing_ok=True)
        _refuse_mounts(path)
        # First rename it in one step, so that no reader finds half a folder under its name.
        is_doomed = path.name.endswith(_REMOVED)  # another process renamed it, and could not delete it
        doomed = path if is_doomed else path.with_name(f".{path.name}{_REMOVED}")
        _remove(doomed)  # another process began, and died
        with contextlib.suppress(FileNotFoundError):
            path.rename(doomed)
        _remove(doomed)


def _refuse_mounts(folder: Path) -> None:
    """StorageUnavailableError where the folder, or one below it, is a mount point: what is mounted is not ours."""
    real = folder.resolve()
    for point, _ in mounts():
        if point.is_relative_to(real):
            raise StorageUnavailableError(
                f"{folder} is not deleted: another file system is mounted on {point}.",
                code="folder_busy",
                number=errno.EBUSY,
                remedy=f"Run `umount {point}`, or delete {folder} by hand. Nothing was deleted.",
                path=str(folder),
                mounted=str(point),
            )


def _remove(folder: Path) -> None:
    """Remove the folder, also when another process removes it at the same moment."""
    while folder.exists():
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(folder)


def _link_files(base: Path, copy: Path, keep: Callable[[PurePosixPath], bool]) -> int:
    count = 0
    # A folder that vanishes meanwhile is an error: a copy must not lack it unnoticed.
    for folder, _, files in os.walk(base, onerror=_raise):
        place = copy / Path(folder).relative_to(base)
        wanted = [name for name in files if keep(PurePosixPath(place.relative_to(copy).as_posix(), name))]
        if wanted:
            place.mkdir(parents=True, exist_ok=True)
        for name in wanted:
            _link_or_copy(Path(folder, name), place / name)
            count += 1
    return count


def _raise(error: OSError) -> None:
    """For `os.walk`, which passes over what it cannot list."""
    raise error


def _raise_if_there(error: OSError) -> None:
    """The same, but a folder may have gone meanwhile, or never have been one."""
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error


def _link_or_copy(path: Path, place: Path) -> None:
    if not _is_link_made(path, place):
        shutil.copy2(path, place)


def _is_link_made(path: Path, place: Path) -> bool:
    """Create a hard link; return False on another volume, or a file system without hard links."""
    try:
        os.link(path, place)
    except FileNotFoundError:  # a newer attempt has removed the folder
        raise
    except OSError:
        return False
    return True


def _linked(path: Path, place: Path) -> bool:
    """Replace a file by a link to another one; return whether that works."""
    link = place.with_name(f".{place.name}")
    if is_made := _is_link_made(path, link):
        link.replace(place)
    return is_made


def _marks(base: Path, only: str) -> dict[str, tuple[object, ...]]:
    names = [only] if only else []
    for folder, folders, files in [] if only else os.walk(base, onerror=_raise_if_there):
        linked = [f"{name}/" for name in folders if Path(folder, name).is_symlink()]
        at = Path(folder).relative_to(base)
        names += [f"{at.as_posix()}/{name}".removeprefix("./") for name in (*files, *linked)]
    found: dict[str, tuple[object, ...]] = {}
    for name in sorted(names):
        try:
            found[name] = _mark((base / name).stat())
        except FileNotFoundError:  # else its owner has removed it meanwhile
            if (base / name).is_symlink():
                found[name] = ()
    return found


def _mark(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_ino, status.st_mtime_ns, status.st_size


def _sync_entry(entry: os.DirEntry[str], known: tuple[int, int, int] | None) -> tuple[int, int, int] | None:
    """Syncs a file unless it is the one that is known: then it is not even opened. What it is; None: it has gone."""
    with contextlib.suppress(FileNotFoundError):
        mark = _mark(entry.stat(follow_symlinks=False))
        if mark != known:
            with Path(entry.path).open("rb") as file:
                mark = _mark(os.fstat(file.fileno()))
                os.fsync(file.fileno())
        return mark
    return None


def folders_above(path: Path) -> Iterator[Path]:
    """Yield the folders above a file or folder, on its disk. Any of them may be new."""
    disk = path.stat().st_dev
    return (folder for folder in path.absolute().parents if folder.stat().st_dev == disk)


def sync_above(path: Path) -> None:
    """Return when the entries of all folders that lead to a file or folder survive a power cut."""
    for folder in folders_above(path):
        with contextlib.suppress(PermissionError):  # a folder that this process may not read is not its own
            _sync_folder(folder)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
