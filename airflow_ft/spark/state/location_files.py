"""Files of a checkpoint location: notes of this package, as JSON, and Spark's logs of its micro-batches.

    offsets/<batch>    v1, JSON (watermark, time, settings), a line for each use of a source: its offsets, "-": none
    commits/<batch>    v1 or v2, JSON (the next watermark, the unique ids of the state's files)

Files are replaced, never changed in place, because copied locations share them. Hadoop's checksum beside a file would
no longer fit and is removed first; Spark reads a file without one.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow_ft.protocol.formats import refuse_newer
from airflow_ft.protocol.model import canonical_json
from airflow_ft.wal import markers
from airflow_ft.wal.checksums import read_checked
from airflow_ft.wal.filesystem import FileSystem, filesystem, is_remote
from airflow_ft.wal.parsing import parsing

OFFSETS, COMMITS = "offsets", "commits"
PATHS_FILE = "airflow_ft_paths.json"  # declared paths of file sources, by name
KINDS_FILE = "airflow_ft_kinds.json"  # kinds of declared sources, and classes of custom ones, by name
_NONE = "-"


@dataclass(frozen=True, slots=True)
class Entry:
    """Entry of Spark's log for a micro-batch. `lines` are those of the sources, only in `offsets`."""

    version: str
    metadata: Mapping[str, Any]
    lines: tuple[str, ...] = ()

    def data(self) -> bytes:
        """As it lies in the file."""
        return "\n".join([self.version, json.dumps(self.metadata, separators=(",", ":")), *self.lines]).encode()


def has_entry(location: str, log: str, batch: int) -> bool:
    """Return whether a log has one of the micro-batch."""
    files = filesystem(location)
    return files.exists(files.uri(location, log, str(batch)))


def entry(location: str, log: str, batch: int) -> Entry:
    """FileNotFoundError where there is none, WalCorruptError where it is damaged, NewerReleaseError for another format
    (Spark 4.2 can write offsets as v2: with the sources' ids, in any order).
    """
    files = filesystem(location)
    where = files.uri(location, log, str(batch))
    data = read_checked(files, where)
    with parsing(where):
        version, _, body = data.decode().partition("\n")
        refuse_newer(where, int(version.removeprefix("v")), 2 if log == COMMITS else 1)
        first, *lines = body.split("\n")
        metadata = json.loads(first or "{}")
        if not isinstance(metadata, dict):
            raise ValueError(f"{first[:40]!r} is not a JSON object")
        return Entry(version, metadata, tuple(lines))


def add_entry(location: str, log: str, batch: int, content: Entry) -> None:
    """FileExistsError where there is one."""
    files = filesystem(location)
    files.write(files.uri(location, log, str(batch)), content.data())


def replace_entry(location: str, log: str, batch: int, content: Entry) -> None:
    """In place of the one that is there."""
    replace_file(location, (log, str(batch)), content.data())


def replace_file(location: str, names: tuple[str, ...], data: bytes) -> None:
    """Replace a file by its path in the location; it has no checksum until the location is sealed again."""
    files = filesystem(location)
    files.remove(_checksum(location, names))
    files.replace(files.uri(location, *names), data)


def renew_query_id(location: str) -> None:
    """Give the location's query an id of its own: in one JVM, Spark stops the older of two queries with one id."""
    replace_file(location, ("metadata",), json.dumps({"id": str(uuid.uuid4())}).encode())


def batches(location: str, log: str) -> list[int]:
    """Return the batches of a log, in order."""
    files = filesystem(location)
    return sorted(int(name) for name in files.names(files.uri(location, log)) if name.isdigit())


def newest_batch(location: str, log: str = COMMITS) -> int:
    """The last one that a log has; -1: none."""
    return max(batches(location, log), default=-1)


def offsets_of(line: str) -> Any:
    """A source's offsets: JSON of every source that Spark brings, else the text; None: it has none yet."""
    return None if line == _NONE else parsed_offsets(line)


def offsets_line(offsets: Any) -> str:
    """The opposite of `offsets_of`."""
    if offsets is None or isinstance(offsets, str):
        return offsets or _NONE
    return json.dumps(offsets, separators=(",", ":"))


def parsed_offsets(text: str) -> Any:
    """JSON, else the text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def note(location: str, name: str) -> Any:
    """Return what `keep` has written under the name, a path in the location; None: nothing."""
    files = filesystem(location)
    where = files.uri(location, *name.split("/"))
    found = markers.looked(files, where, lambda: _found(files, where)) if is_remote(where) else None
    if found is None and (is_remote(where) or not files.exists(where)):
        return None
    data = read_checked(files, where) if found is None else found
    with parsing(where):
        return json.loads(data)


def _found(files: FileSystem, where: str) -> bytes | None:
    """Return the contents of a file in one request, where its server sees to checksums; None: there is none."""
    try:
        with files.open_plain(where) as file:
            return file.read()
    except FileNotFoundError:
        return None


def keep(location: str, name: str, data: Any) -> None:
    """Notes JSON in a location, in place of what was noted before; None: nothing any more."""
    names, files = tuple(name.split("/")), filesystem(location)
    where, checksum = files.uri(location, *names), _checksum(location, names)
    if data is not None and note(location, name) == data:
        return
    if files.exists(checksum):
        files.remove(checksum)
    if data is None:
        files.remove(where)
    else:
        files.replace(where, canonical_json(data).encode())


def copy_source_notes(old: str, new: str) -> None:
    """Copy the notes on declared sources to another location. They stay with the positions."""
    for name in (PATHS_FILE, KINDS_FILE):
        if (found := note(old, name)) is not None:
            keep(new, name, found)


def _checksum(location: str, names: tuple[str, ...]) -> str:
    return filesystem(location).uri(location, *names[:-1], f".{names[-1]}.crc")
