"""One version of one store: the newest full snapshot up to it, and the changes since.

Files are only read, and only those up to the version that is asked for: what Spark writes meanwhile is never seen. What
it removes meanwhile is an error that says so (TransientError), and never half a state.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping

from airflow_ft.protocol.errors import TransientError, WalCorruptError
from airflow_ft.state import records
from airflow_ft.state.snapshots import Snapshot
from airflow_ft.state.streams import decompressed
from airflow_ft.wal.checksums import read_checked
from airflow_ft.wal.filesystem import FileSystem, filesystem, is_remote
from airflow_ft.wal.parsing import parsing
from airflow_ft.wal.roots import require

_FILE = re.compile(r"^(\d+)(?:_([^.]+))?\.(delta|changelog|snapshot|zip)$")
_CHANGES, _FULL = ("delta", "changelog"), ("snapshot", "zip")


def has_version(folder: str, version: int) -> bool:
    """Return whether the store in a folder has written this version."""
    return any(number == version for number, _, _ in _files(filesystem(folder), folder))


def open_version(folder: str, version: int, unique_id: str = "") -> Store:
    """Opens it; the caller closes it. `unique_id`: what Spark's commit says, where names of files have one.

    TransientError when a file is not there (any more), WalCorruptError when one is damaged.
    """
    files = filesystem(folder)
    full, changes = _chain(files, folder, version, unique_id)
    if full.endswith(".snapshot"):
        full, changes = "", [full, *changes]
    found = _changes(files, folder, changes)
    try:
        return Store(Snapshot(folder, full) if full else None, found)
    except WalCorruptError as error:
        if _is_gone(error):
            raise gone(folder, full) from error
        raise


def bytes_to_read(folder: str, version: int, unique_id: str = "") -> int:
    """Return how many bytes of files `open_version` reads as a whole, into memory; at most.

    For RocksDB on HDFS or in a bucket it also copies them.

    Raises:
        TransientError: a file does not exist (any more).
    """
    files = filesystem(folder)
    full, changes = _chain(files, folder, version, unique_id)
    whole = [*changes, full] if full.endswith(".snapshot") or (is_remote(folder) and full) else changes
    try:
        read = sum(files.size(files.uri(folder, name)) for name in whole)
    except FileNotFoundError as error:
        raise gone(folder, f"version {version}") from error
    copied = files.tree(files.uri(folder, "SSTs")) if full.endswith(".zip") and is_remote(folder) else {}
    return read + sum(copied.values())


def changed_keys(folder: str, since: int, version: int) -> set[bytes] | None:
    """Return the keys that versions after `since` up to `version` wrote; None if files of changes do not show them."""
    files = filesystem(folder)
    names = {number: name for number, id, name in _files(files, folder) if name.endswith(_CHANGES) and not id}
    wanted = range(since + 1, version + 1)
    if any(number not in names for number in wanted):
        return None
    found = _changes(files, folder, [names[number] for number in wanted])
    return found.values.keys() | found.added.keys()


def _chain(files: FileSystem, folder: str, version: int, unique_id: str) -> tuple[str, list[str]]:
    """The names of the full snapshot ("": none) and of the changes since, oldest first."""
    names: dict[tuple[int, str], dict[str, str]] = {}
    for number, id, name in _files(files, folder):
        names.setdefault((number, id), {})[name.rpartition(".")[2]] = name
    ids = {version: unique_id}
    changes: list[str] = []
    for number in range(version, 0, -1):
        there = names.get((number, ids.get(number, "")), {})
        if full := next((there[kind] for kind in _FULL if kind in there), ""):
            return full, changes[::-1]
        change = next((there[kind] for kind in _CHANGES if kind in there), "")
        if not change:
            raise gone(folder, f"version {number}")
        if unique_id and number - 1 not in ids:
            data = _read(files, folder, change)
            with parsing(files.uri(folder, change)):
                ids |= dict(records.lineage(data))
        changes.append(change)
    return "", changes[::-1]


def _files(files: FileSystem, folder: str) -> list[tuple[int, str, str]]:
    """Version, unique id and name."""
    return [(int(m[1]), m[2] or "", m[0]) for m in map(_FILE.match, files.names(folder)) if m]


def _changes(files: FileSystem, folder: str, names: list[str]) -> records.Changes:
    found = records.Changes()
    for name in names:
        found.apply(_read(files, folder, name), files.uri(folder, name))
    return found


def _read(files: FileSystem, folder: str, name: str) -> bytes:
    uri = files.uri(folder, name)
    try:
        return decompressed(read_checked(files, uri), uri)
    except WalCorruptError as error:
        if _is_gone(error):
            raise gone(folder, name) from error
        raise


def _is_gone(error: BaseException) -> bool:
    """Return whether it came about because there is no such file."""
    cause = error.__cause__
    return isinstance(cause, FileNotFoundError) or "No such file" in str(cause)


def gone(folder: str, what: str) -> TransientError:
    """Return the error for something that is missing."""
    require(folder)
    return TransientError(
        f"Spark's state in {folder} has no {what}. The pipeline may have removed it meanwhile.",
        code="state_pruned",
        remedy="Try again with a newer checkpoint. The pipeline keeps state of CheckpointConfig.num_retained"
        " checkpoints.",
        path=folder,
        missing=what,
    )


class Store:
    """Keys and values of a store, by their bytes: a snapshot of RocksDB (None: there is none) and the changes since."""

    def __init__(self, snapshot: Snapshot | None, changes: records.Changes) -> None:
        self._snapshot, self._changes = snapshot, changes
        self._sorted: list[bytes] | None = None
        self.families: Mapping[str, int] = snapshot.families if snapshot else {}
        """Number of each column family by name; {}: the store has none."""

    def get(self, key: bytes) -> bytes | None:
        if key in self._changes.values:
            return self._changes.values[key]
        found = self._snapshot.get(key) if self._snapshot else None
        added = self._changes.added.get(key)
        return found if added is None else (found or b"") + added

    def items(self, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Yield the entries whose key begins with `prefix`, unordered."""
        changed = self._changed(prefix)
        if self._snapshot:
            of_changed = set(changed)
            yield from (each for each in self._snapshot.items(prefix) if each[0] not in of_changed)
        for key in changed:
            if (value := self.get(key)) is not None:
                yield key, value

    def _changed(self, prefix: bytes) -> list[bytes]:
        if self._sorted is None:
            self._sorted = sorted(self._changes.values.keys() | self._changes.added.keys())
        first = bisect_left(self._sorted, prefix)
        last = first
        while last < len(self._sorted) and self._sorted[last].startswith(prefix):
            last += 1
        return self._sorted[first:last]

    def close(self) -> None:
        if self._snapshot:
            self._snapshot.close()
