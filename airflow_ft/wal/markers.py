"""The marker file of a storage root, which lets a file system distinguish a lost file from an unavailable root.

`airflow_ft.wal.roots` explains its purpose. This module is below the file systems, which call it.
"""

from __future__ import annotations

import errno
import json
from abc import abstractmethod
from collections.abc import Callable
from typing import BinaryIO, Protocol, TypeVar

from airflow_ft.protocol.errors import ConfigurationError, StorageUnavailableError, WalCorruptError
from airflow_ft.protocol.known_roots import root_of

MARKER = ".airflow-ft-root.json"
T = TypeVar("T")
OR_A_SAVEPOINT = "If that does not help, restore a savepoint (`airflow ft savepoint list`)."
"""End of a fix that proposes a rewind: a rewind may need the very file."""


class Reading(Protocol):
    """The part of a file system that this module needs."""

    def uri(self, location: str, *names: str) -> str: ...

    def open_plain(self, uri: str) -> BinaryIO: ...


class RootedFiles(Reading):
    """Base of the file systems. If a file is not found, they first check that its root is there."""

    returns_unnoticed = True
    """Whether a root can go away and be back by the next look."""

    @abstractmethod
    def seen(self, uri: str) -> bool: ...

    @abstractmethod
    def _names(self, uri: str) -> list[str]: ...

    @abstractmethod
    def _tree(self, uri: str) -> dict[str, int]: ...

    def seen_folder(self, uri: str) -> bool:
        return self.seen(uri)

    def exists(self, uri: str) -> bool:
        return self._looked(uri, self.seen)

    def names(self, uri: str) -> list[str]:
        return self._looked(uri, self._names)

    def tree(self, uri: str) -> dict[str, int]:
        return self._looked(uri, self._tree)

    def _looked(self, uri: str, look: Callable[[str], T]) -> T:
        return looked(self, uri, lambda: look(uri), twice=self.returns_unnoticed)

    def open(self, uri: str) -> BinaryIO:
        return opened(self, uri)

    def read(self, uri: str) -> bytes:
        with self.open(uri) as file:
            return file.read()


def require(files: Reading, uri: str) -> None:
    """Raise StorageUnavailableError when a known root is at or above `uri`, and does not hold its marker."""
    if error := away(files, uri):
        raise error


def away(files: Reading, uri: str) -> StorageUnavailableError | None:
    """Return the error to raise when a known root at or above `uri` lacks its marker; None: go ahead."""
    if (known := root_of(files.uri(uri))) is None:
        return None
    root, ids = known
    try:
        found = read(files, root)
    except StorageUnavailableError as error:
        return error
    if found in ids:
        return None
    id = min(ids)
    if found is None:
        return wrong(root, f"its marker file {MARKER} is missing", id)
    return wrong(root, f"its marker file {MARKER} has the id {found}, not {id}", id)


def opened(files: Reading, uri: str) -> BinaryIO:
    """The file, open for reading; WalCorruptError without such a file, StorageUnavailableError when its root is away.

    A file that is not there is looked for twice: its root may have been away at the first look, and be back by now.
    """
    for is_last in (False, True):
        try:
            return files.open_plain(uri)
        except (FileNotFoundError, NotADirectoryError) as error:
            require(files, uri)
            if is_last or root_of(files.uri(uri)) is None:
                if isinstance(error, NotADirectoryError):
                    raise
                raise missing(uri) from error
    raise AssertionError


def missing(uri: str) -> WalCorruptError:
    """Return the error for a file or folder that was written and is gone."""
    return WalCorruptError(
        f"{uri} is missing.",
        code="file_missing",
        remedy=f"Restore {uri} from a backup. Or run `airflow ft rewind`: the next run computes undelivered rows again."
        f" {OR_A_SAVEPOINT}",
        path=uri,
    )


def looked(files: Reading, uri: str, look: Callable[[], T], *, twice: bool = True) -> T:
    """Return what `look` finds at `uri`; StorageUnavailableError if that is nothing (false), and its root is away.

    It looks twice: the root may have been away at the first look, and be back by now. The marker itself may be missing.
    `twice`: False where a root cannot go away and come back unnoticed.
    """
    if (found := look()) or root_of(files.uri(uri)) is None or uri.endswith(f"/{MARKER}"):
        return found
    require(files, uri)
    return look() if twice else found


def read(files: Reading, root: str) -> str | None:
    """Return the id in a root's marker; None: there is no marker.

    Raises:
        StorageUnavailableError: the marker cannot be read.
        ConfigurationError: the root is in a bucket that has no keys.
    """
    where, text = files.uri(root, MARKER), b""
    try:
        with files.open_plain(where) as file:
            text = file.read()
        return str(json.loads(text)["id"])
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (StorageUnavailableError, ConfigurationError):
        raise
    except OSError as error:
        raise StorageUnavailableError(
            f"{where} cannot be read: {error.strerror or error}.",
            number=error.errno or errno.EIO,
            remedy="Check that the disk is mounted and works.",
            path=where,
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        failure = wrong(root, f"its marker file {MARKER} is {'damaged' if text else 'empty'}")
        if not text:  # without hard links, a process that died at the root's first use leaves that
            failure.remedy = f"Delete {where} if no pipeline has used this root yet. If one has: {failure.remedy}"
        raise failure from error


def wrong(root: str, why: str, id: str = "") -> StorageUnavailableError:
    """Return the error for a root that is not the known one."""
    contents = f' with the contents {{"id": "{id}"}}' if id else " from its backup"
    return StorageUnavailableError(
        f"{root} is not the disk that the decision log knows: {why}.",
        code="wrong_disk",
        number=errno.ENODEV,
        remedy=f"Mount the right disk at {root}. If its contents are lost, restore a backup. Without one, run"
        " `airflow ft rewind`: it discards undelivered rows, and the next run computes them again (or a program gives"
        f" them again). To continue with what is there, create the file {MARKER}{contents} in {root}.",
        path=root,
        id=id,
    )
