"""Identity of a storage root: a marker file that distinguishes the right disk from an empty mount point.

    <root>/.airflow-ft-root.json      {"format": 1, "id": "<UUID>"}

The first stage (or savepoint) that uses a root writes the marker, and the decision log remembers its id. From then on
a root without that marker is *away*: StorageUnavailableError, and the task retries. Nothing is read from it, written
to it, deleted in it or concluded from it. The marker is written once; a lost one is never written again by this
package.

If the process dies ...
- after the marker is written, before the log remembers it: the next process adopts the marker that it finds.
- between any check and what it protects: a publication checks once more after its files are durable, and looks whether
  they are there (`require_files`).
Two processes at once, also of two decision logs: the second cannot create the file, and adopts the first one's.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Protocol
from uuid import uuid4

from airflow_ft.protocol.errors import ConfigurationError, StorageUnavailableError
from airflow_ft.protocol.known_roots import know, root_of
from airflow_ft.wal import markers
from airflow_ft.wal.filesystem import filesystem
from airflow_ft.wal.markers import MARKER, read, wrong

FORMAT = 1


class RootLog(Protocol):
    """The memory of the decision log for storage roots."""

    def root(self, uri: str) -> str | None:
        """Return the id that the marker of a storage root holds; None: the log does not know this root."""

    def remember_root(self, uri: str, id: str) -> str:
        """Remember the id of a root, unless one is known; return the id that counts."""

    def locations_below(self, uri: str) -> frozenset[str]:
        """Return Spark locations of all pipelines' bases, and segments of open checkpoints, that lie below a URI."""


def claim(store: RootLog, root: str) -> None:
    """Prove that a root is there, before it is used; at its first use, create the folder and write the marker.

    StorageUnavailableError when the log knows the root by another marker, or knows of data in it that is not there.
    """
    files = filesystem(root)
    uri = files.uri(root)
    expected = store.root(uri)
    if expected is not None:
        know(uri, expected)
        return require(uri)
    found = read(files, uri)
    if found is None:
        _require_data(uri, store.locations_below(uri))
        text = json.dumps({"format": FORMAT, "id": str(uuid4()), "made_at": datetime.now(UTC).isoformat()})
        with suppress(FileExistsError):  # another process was faster
            files.write_marker(files.uri(uri, MARKER), text.encode())
        found = read(files, uri)
    if found is None:
        raise wrong(uri, "its marker file was written, and is gone")
    know(uri, store.remember_root(uri, found))
    require(uri)


def is_remembered(store: RootLog, root: str) -> bool:
    """Return whether the log knows a root, so that `claim` proves it and creates nothing."""
    return store.root(filesystem(root).uri(root)) is not None


def recall(store: RootLog, root: str) -> None:
    """Learn what the log remembers of a root: for a process that has had the log open since before its first use."""
    uri = filesystem(root).uri(root)
    if not is_known(uri) and (id := store.root(uri)) is not None:
        know(uri, id)


def require(uri: str) -> None:
    """Raise StorageUnavailableError when a known root is at or above `uri`, and does not hold its marker."""
    if error := away(uri):
        raise error


def away(uri: str) -> StorageUnavailableError | None:
    """Return the error to raise when a known root at or above `uri` lacks its marker; None: go ahead."""
    try:
        return markers.away(filesystem(uri), uri)
    except ConfigurationError:  # no place that a root could have
        return None


def is_known(uri: str) -> bool:
    """Return whether a known root is at or above `uri`."""
    try:
        return root_of(filesystem(uri).uri(uri)) is not None
    except ConfigurationError:
        return False


def require_files(uri: str, sizes: Iterable[tuple[str, int | None]]) -> None:
    """Raise StorageUnavailableError unless the files are below the proven root, each with its size in bytes if given.

    For a publication: what was written while the root was away lies elsewhere. Does nothing below an unknown root.
    """
    if not is_known(uri):
        return
    require(uri)
    files = filesystem(uri)
    for name, size in sizes:
        where = files.uri(uri, *name.split("/"))
        try:
            found = files.size(where)
        except OSError as error:
            require(uri)
            raise StorageUnavailableError(
                f"{where} was written and is gone: its disk was not mounted for a while.",
                code="file_missing",
                number=error.errno or errno.ENODEV,
                remedy="Do nothing: nothing was published, and the next try computes the rows again.",
                path=where,
            ) from error
        if size is not None and found != size:
            raise StorageUnavailableError(
                f"{where} has {found} bytes, but {size} were written: its disk was not mounted for a while.",
                code="file_damaged",
                number=errno.ENODEV,
                remedy="Do nothing: nothing was published, and the next try computes the rows again.",
                path=where,
                found=found,
                expected=size,
            )
    require(uri)


def _require_data(root: str, locations: frozenset[str]) -> None:
    """Raise StorageUnavailableError if nothing is there of what the log knows below a root without a marker.

    A restore writes into a new root before the root gets its marker.
    """
    files = filesystem(root)
    if locations and not any(files.exists(each) for each in locations):
        raise wrong(root, f"it lacks the files that the log expects, for example {min(locations)}", str(uuid4()))
