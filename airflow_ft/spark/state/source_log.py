"""Spark's own log of the files that a source has read: `sources/<index>/<id>` of a checkpoint location.

    v1
    {"path":"file:///in/a%20b.json","timestamp":1795299002009,"batchId":7}

One entry a file. Each tenth id is `<id>.compact`, and holds all entries up to it; the ids before it may be gone then.
The offset of such a source, {"logOffset": 7}, is an id of this log and not a batch of the query. A batch reads the
entries after the offset of the batch before, up to its own. A file in the log counts as read for good.
"""

from __future__ import annotations

import json
import re
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from airflow_ft.protocol.errors import WalCorruptError
from airflow_ft.wal.checksums import read_checked
from airflow_ft.wal.filesystem import FileSystem
from airflow_ft.wal.markers import OR_A_SAVEPOINT
from airflow_ft.wal.parsing import parsing

FOLDER = "sources"
_NAME = re.compile(r"^\.?(\d+)(?:\.compact)?(?:\.crc)?$")
_FIRST_ENTRY = re.compile(rb'^v\d+\s*\n\{"path":')
_URI = re.compile(r"^(?:(?P<scheme>[A-Za-z][\w+.-]*):)?(?://(?P<authority>[^/]*))?(?P<path>/.*)$", re.DOTALL)
NOTHING_READ = -1
READ_BEFORE = 2**62  # an id that no log reaches (Spark refuses negative ones)


def last_id(offset: Any) -> int | None:
    """The id that a source's offset names; None when it is no offset of such a log."""
    return int(offset["logOffset"]) if isinstance(offset, dict) and offset.keys() == {"logOffset"} else None


def last_ids(files: FileSystem, location: str, offsets: list[Any]) -> dict[str, int]:
    """By index of each source that has such a log: the last id that belongs to these offsets.

    A source that has no offset yet has read nothing, though it may have logged files for a batch that never was.
    """
    found: dict[str, int] = {}
    for index in files.names(files.uri(location, FOLDER)):
        offset = offsets[int(index)] if index.isdigit() and int(index) < len(offsets) else None
        if (number := last_id(offset)) is not None:
            found[index] = number
        elif offset is None and _is_log(files, location, index):
            found[index] = NOTHING_READ
    return found


def newest_id(files: FileSystem, location: str, index: str) -> int:
    """The newest id in the log of a source; NOTHING_READ: there is none."""
    names = (_NAME.match(name) for name in files.names(files.uri(location, FOLDER, index)) if name[0] != ".")
    return max((int(match[1]) for match in names if match), default=NOTHING_READ)


def survives(name: PurePosixPath, last: dict[str, int]) -> bool:
    """Return whether a file below `sources/` belongs to the ids up to `last`. Unpublished files are listed again.

    Otherwise the next attempt would have to read an entry of an unpublished batch exactly as it was listed. A file
    that was removed or replaced would block it for good.
    """
    match = _NAME.match(name.name)
    return len(name.parts) != 3 or match is None or name.parts[1] not in last or int(match[1]) <= last[name.parts[1]]


def entries(files: FileSystem, location: str, index: str, after: int, last: int) -> dict[str, int]:
    """The files that were logged after the id `after`, up to `last`: place -> time of modification in milliseconds.

    WalCorruptError when the log does not reach that far.
    """
    return dict(each_entry(files, location, index, after, last))


def each_entry(files: FileSystem, location: str, index: str, after: int, last: int) -> list[tuple[str, int]]:
    """The same, with each entry of the log: a place that was logged twice is there twice."""
    found: list[tuple[str, int]] = []
    names = set(files.names(files.uri(location, FOLDER, index)))
    for number in range(after + 1, last + 1):
        name = next((name for name in (str(number), f"{number}.compact") if name in names), None)
        if name is None:
            raise WalCorruptError(
                f"Spark's log of read files, {location}/{FOLDER}/{index}, lacks {number}.",
                code="state_files_missing",
                remedy="Restore the folder from a backup, or rewind to an older checkpoint: `airflow ft rewind"
                f" PIPELINE`. {OR_A_SAVEPOINT}",
                path=f"{location}/{FOLDER}/{index}",
                number=number,
            )
        for entry in _read(files, location, index, name):
            if entry["batchId"] == number:  # a compacted one holds those of all ids before it
                found.append((place(entry["path"], encoded=True), int(entry["timestamp"])))
    return found


def all_entries(files: FileSystem, location: str, index: str, last: int) -> list[dict[str, Any]]:
    """Every entry up to the id `last`, of ids that are gone from a compacted one; WalCorruptError when some lack."""
    return [entry for name in _names(files, location, index, last) for entry in _read(files, location, index, name)]


def count(files: FileSystem, location: str, index: str, last: int) -> int:
    """Return how many entries `all_entries` would find: they are not read one by one."""
    where = (files.uri(location, FOLDER, index, name) for name in _names(files, location, index, last))
    return sum(read_checked(files, each).count(b"\n{") for each in where)


def _names(files: FileSystem, location: str, index: str, last: int) -> list[str]:
    """The newest compacted file up to the id `last`, and those after it."""
    names = set(files.names(files.uri(location, FOLDER, index)))
    compacted = max((n for n in range(last, -1, -1) if f"{n}.compact" in names), default=NOTHING_READ)
    first = [] if compacted < 0 else [f"{compacted}.compact"]
    return [*first, *map(str, range(compacted + 1, last + 1))]


def as_read_before(read: list[dict[str, Any]]) -> bytes:
    """A first file of a log, with which Spark knows these files, and reads none of them in any batch."""
    lines = [json.dumps({**entry, "batchId": READ_BEFORE}, separators=(",", ":")) for entry in read]
    return "\n".join(["v1", *lines]).encode()


def place(uri: str, *, encoded: bool = False) -> str:
    """One spelling of a file's URI: Spark's log writes `file:///a%20b`, Hadoop's listings `file:/a b`."""
    match = _URI.match(uri)
    if match is None:
        return uri
    path = unquote(urlsplit(uri).path) if encoded else match["path"]
    return f"{match['scheme'] or 'file'}://{match['authority'] or ''}{path}"


def _read(files: FileSystem, location: str, index: str, name: str) -> list[dict[str, Any]]:
    where = files.uri(location, FOLDER, index, name)
    data = read_checked(files, where)
    with parsing(where):
        _, *lines = data.decode().splitlines()
        return [json.loads(line) for line in lines if line]


def _is_log(files: FileSystem, location: str, index: str) -> bool:
    names = [name for name in files.names(files.uri(location, FOLDER, index)) if name[0] != "." and _NAME.match(name)]
    return any(_FIRST_ENTRY.match(files.read(files.uri(location, FOLDER, index, name))) for name in names)
