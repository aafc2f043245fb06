"""Format of a savepoint: a folder with a copy of Spark's location, cut at one micro-batch, and a metadata file.

    <folder>/_metadata      written last: a folder without it is no savepoint (yet)
    <folder>/spark/...      offsets, commits, sources, operator state

It needs nothing outside of its folder, so it can be moved as a whole. `_metadata` holds the size and SHA-256 of each
file, and its own SHA-256. A restore reads all of it before it touches anything else.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime
from typing import Any

from airflow_ft.protocol.errors import ConfigurationError, StorageUnavailableError, WalCorruptError
from airflow_ft.protocol.formats import refuse_newer
from airflow_ft.protocol.model import canonical_json
from airflow_ft.spark.state.locations import SparkLocation, is_location
from airflow_ft.spark.state.operators import Operator
from airflow_ft.wal.filesystem import FileSystem, filesystem, is_remote
from airflow_ft.wal.local import local_path
from airflow_ft.wal.parsing import digest_of
from airflow_ft.wal.roots import require

METADATA = "_metadata"
SPARK = "spark"
FORMAT = 1
"""Format of `_metadata`; a newer one is refused by name."""
_CHUNK = 1 << 20
_AT_ONCE = 8
_NAME = re.compile(r"^savepoint-(.+)-(\d+)-[0-9a-f]{8}$")
"""Name of a savepoint's folder, with pipeline and checkpoint."""
_DOOMED = re.compile(r"^\.(.+)\.removed$")
"""Name under which a local disk deletes a folder (`LocalFileSystem.remove_tree`), with the folder's own name."""


@dataclass(frozen=True, slots=True)
class File:
    """A file of the copy: bytes, and SHA-256 as hexadecimal digits."""

    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Savepoint:
    """Contents of `_metadata`.

    `number`: the newest checkpoint that it covers. All of its rows are in the sinks. `batch`: the Spark micro-batch
    that the copy ends with. `positions`: of each source, by name. `backend`: class of Spark's state store ("": no
    operator has state). `drained`: windows that were open then are delivered too (`CheckpointConfig.drain`). `spec`:
    the checkpoint's specification, without secrets. `versions`: of Spark and airflow-ft. `rows`: of the checkpoint, by
    sink. `restored`: the state was restored, or reset, after that checkpoint, and no later one was confirmed. So it is
    not the state that the number left. `segment`: the digest of the checkpoint's rows ("": it has none, or an older
    version took the savepoint).
    """

    id: str
    pipeline: str
    installation: str
    number: int
    batch: int
    taken_at: datetime
    taken_by: str
    positions: Mapping[str, Any]
    operators: tuple[Operator, ...]
    backend: str
    drained: bool
    spec: Mapping[str, Any]
    versions: Mapping[str, str]
    files: Mapping[str, File]
    rows: Mapping[str, int] = field(default_factory=dict)
    restored: bool = False
    segment: str = ""

    @property
    def bytes(self) -> int:
        """Return the size of all its files but `_metadata`."""
        return sum(file.size for file in self.files.values())

    def location(self, uri: str) -> SparkLocation:
        """Spark's location in it, when it lies in the folder `uri`."""
        files = filesystem(uri)
        return SparkLocation(uri, self.pipeline, files.uri(uri, SPARK), self.batch)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "taken_at": self.taken_at.isoformat()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Savepoint:
        """Ignores what an author of the same format has added."""
        known: dict[str, Any] = {each.name: data[each.name] for each in fields(cls) if each.name in data}
        names = {each.name for each in fields(Operator)}
        operators = [
            Operator(
                **{name: value for name, value in each.items() if name in names} | {"stores": tuple(each["stores"])}
            )
            for each in known["operators"]
        ]
        return cls(
            **known
            | {
                "taken_at": datetime.fromisoformat(known["taken_at"]),
                "operators": tuple(operators),
                "files": {name: File(**each) for name, each in known["files"].items()},
            }
        )


def write_metadata(uri: str, savepoint: Savepoint) -> None:
    """Makes the folder a savepoint."""
    data = savepoint.to_json()
    text = canonical_json({"format": FORMAT, "sha256": digest_of(data), "savepoint": data})
    files = filesystem(uri)
    files.write(files.uri(uri, METADATA), text.encode())


def read_metadata(uri: str) -> Savepoint:
    """Read a savepoint's description; `verify` reads its files.

    ConfigurationError when there is none, or it is of a newer format; WalCorruptError when `_metadata` is damaged.
    """
    files = filesystem(uri)
    where = files.uri(uri, METADATA)
    if not files.exists(where):
        require(uri)
        unfinished = files.exists(files.uri(uri, SPARK))
        if not unfinished and _rest_of(files, uri):
            raise ConfigurationError(
                f"{uri} has no savepoint: its deletion was not finished.",
                code="savepoint_unfinished",
                remedy=f"Delete the rest: `airflow ft savepoint dispose {uri}`.",
                path=uri,
            )
        raise ConfigurationError(
            f"{uri} has no savepoint: "
            + ("it was not finished." if unfinished else f"the folder has no file {METADATA}."),
            code="savepoint_unfinished" if unfinished else "savepoint_missing",
            remedy=f"Take another one, and delete this folder: `airflow ft savepoint dispose {uri}`."
            if unfinished
            else "Correct the path. `airflow ft savepoint list` shows the savepoints in [airflow_ft] savepoint_dir, or"
            " in --dir.",
            path=uri,
        )
    try:
        document = json.loads(files.read(where))
        version, data, digest = document["format"], document.get("savepoint"), document.get("sha256")
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise _damaged(uri, f"{METADATA} cannot be read") from error
    refuse_newer(f"the savepoint {uri}", version, FORMAT)
    if data is None or digest_of(data) != digest:
        raise _damaged(uri, f"{METADATA} is not what was written")
    return Savepoint.from_json(data)


def owner_of(uri: str) -> str:
    """Return the pipeline of a savepoint. The folder's name says it if the savepoint is unfinished or damaged.

    Raises what `read_metadata` raises if neither says it.
    """
    try:
        return read_metadata(uri).pipeline
    except (ConfigurationError, WalCorruptError) as error:
        name = _NAME.match(filesystem(uri).uri(uri).rpartition("/")[2])
        if name is None or error.code not in ("savepoint_unfinished", "savepoint_damaged"):
            raise
        return name[1]


def verify(uri: str, savepoint: Savepoint, *, contents: bool = True) -> None:
    """Reads all files; WalCorruptError names the first that is missing, damaged, or was not there then.

    contents: False: only names and sizes are compared, which reads no file.
    """
    files = filesystem(uri)
    found = files.tree(files.uri(uri, SPARK))
    if missing := sorted(set(savepoint.files) - set(found)):
        require(uri)
        raise _damaged(uri, f"{SPARK}/{missing[0]} is missing")
    if added := sorted(set(found) - set(savepoint.files)):
        raise _damaged(uri, f"{SPARK}/{added[0]} was not there when it was taken")
    read = files_of(files.uri(uri, SPARK), savepoint.files) if contents else savepoint.files
    for name, checksum in savepoint.files.items():
        if found[name] != checksum.size or read[name] != checksum:
            raise _damaged(uri, f"{SPARK}/{name} is not what was written")


def files_of(location: str, names: Iterable[str]) -> dict[str, File]:
    """Read files of a location, several at once, since each waits for its server."""
    files, names = filesystem(location), list(names)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        found = pool.map(lambda name: _file_of(files, files.uri(location, *name.split("/"))), names)
        return dict(zip(names, found, strict=True))


def _file_of(files: FileSystem, uri: str) -> File:
    digest, size = hashlib.sha256(), 0
    with files.open(uri) as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            size += len(chunk)
    return File(size, digest.hexdigest())


def listing(folder: str) -> Iterator[tuple[str, Savepoint | None]]:
    """The savepoints in a folder, newest first, by URI; then what was not finished, or cannot be read (None).

    Passes over entries that this user may not look into, such as `lost+found`, unless their name is a savepoint's.
    """
    require(folder)
    files = filesystem(folder)
    found: list[tuple[str, Savepoint]] = []
    broken = []
    for name, is_doomed in _folders(files, folder).items():
        uri = files.uri(folder, name)
        try:
            if is_doomed or files.exists(files.uri(uri, METADATA)) or files.exists(files.uri(uri, SPARK)):
                found.append((uri, read_metadata(uri)))
        except StorageUnavailableError:
            raise
        except (ConfigurationError, WalCorruptError):
            broken.append(uri)
        except OSError:
            if _NAME.match(name):
                broken.append(uri)
    yield from sorted(found, key=lambda each: each[1].taken_at, reverse=True)
    yield from ((uri, None) for uri in broken)


def of_pipeline(
    folder: str, pipeline: str, installation: str, most: int
) -> tuple[list[tuple[str, Savepoint | Exception]], int]:
    """Return the savepoints of a pipeline in a folder by name, newest first, and how many were skipped.

    Unreadable ones come last, with the error, if their folder's name says that they are of the pipeline. Reads at most
    `most`, the highest numbers first. A folder's name holds its pipeline and number, unless a person renamed it: those
    come last.
    """
    require(folder)
    files = filesystem(folder)
    named = {name: _NAME.match(name) for name in _folders(files, folder)}
    wanted = [name for name, metadata in named.items() if metadata is None or metadata[1] == pipeline]

    def place(name: str) -> tuple[int, str]:
        match = named[name]
        return (int(match[2]) if match else -1), name

    wanted.sort(key=place, reverse=True)
    found: list[tuple[str, Savepoint]] = []
    broken: list[tuple[str, Exception]] = []
    for name in wanted[:most]:
        uri = files.uri(folder, name)
        try:
            metadata = read_metadata(uri)
            if (metadata.pipeline, metadata.installation) == (pipeline, installation):
                found.append((name, metadata))
        except StorageUnavailableError:
            raise
        except (ConfigurationError, WalCorruptError, OSError) as error:
            if named[name]:
                broken.append((name, error))
    found.sort(key=lambda each: each[1].taken_at, reverse=True)
    return [*found, *broken], max(0, len(wanted) - most)


def _folders(files: FileSystem, folder: str) -> dict[str, bool]:
    """Return the names in a folder, each with whether its deletion was not finished, and without hidden ones."""
    names = sorted(files.names(folder))
    doomed = [match[1] for name in names if (match := _DOOMED.match(name)) and _NAME.match(match[1])]
    return {name: False for name in names if not name.startswith(".")} | dict.fromkeys(doomed, True)


def _rest_of(files: FileSystem, uri: str) -> str:
    """Return the URI of what an interrupted deletion has left of a savepoint; "": nothing."""
    folder, _, name = files.uri(uri).rpartition("/")
    rest = files.uri(folder, f".{name}.removed") if _NAME.match(name) else ""
    return rest if rest and files.exists(rest) else ""


def is_there(uri: str) -> bool:
    """Return whether `dispose` finds something to delete: a folder, or what an interrupted deletion has left of it."""
    files = filesystem(uri)
    return files.exists(uri) or bool(_rest_of(files, uri))


def dispose(uri: str) -> None:
    """Deletes a savepoint, or what is left of one; ConfigurationError, with nothing deleted, for anything else.

    A savepoint is known by its `_metadata`, which names all of its files. One that was not finished has none: it is
    known by its folder's name, and by what lies in `spark`, which is Spark's location and nothing else.

    `_metadata` goes first: what is left by a crash is no savepoint any more. Called again, it deletes the rest.
    """
    require(uri)
    _refuse_detours(uri)
    files = filesystem(uri)
    if not files.exists(uri):
        if rest := _rest_of(files, uri):
            if set(files.names(rest)) - {METADATA, SPARK}:
                raise _not_ours(rest, "it has other files than a savepoint")
            files.remove_tree(rest)
            return
        raise ConfigurationError(
            f"there is no folder {uri}.",
            code="savepoint_missing",
            remedy="Correct the path. `airflow ft savepoint list` shows the savepoints.",
            path=uri,
        )
    names = set(files.names(uri))
    if not names & {METADATA, SPARK} or names - {METADATA, SPARK}:
        raise _not_ours(uri, "it has other files than a savepoint")
    if METADATA not in names or not _refuse_strange(files, uri):
        if not _NAME.match(files.uri(uri).rpartition("/")[2]):
            raise _not_ours(uri, f"it is not a savepoint: it has no {METADATA} of one")
        if SPARK in names and not is_location(files, files.uri(uri, SPARK)):
            raise _not_ours(uri, f"its folder {SPARK} is not a copy of Spark's checkpoint location")
    files.remove(files.uri(uri, METADATA))
    files.remove_tree(files.uri(uri))


def _refuse_strange(files: FileSystem, uri: str) -> bool:
    """ConfigurationError for files that a savepoint's `_metadata` does not name; False: it is not one of ours."""
    try:
        document = json.loads(files.read(files.uri(uri, METADATA)))
        named = set(document["savepoint"]["files"])
        if not isinstance(document["format"], int) or not isinstance(document["sha256"], str):
            return False
    except (ValueError, KeyError, TypeError):
        return False
    if strange := sorted(set(files.tree(files.uri(uri, SPARK))) - named):
        raise _not_ours(uri, f"it has a file that is not part of the savepoint: {SPARK}/{strange[0]}")
    return True


def _refuse_detours(uri: str) -> None:
    """ConfigurationError for a link, or a path that goes up again: what is deleted has to be what is named."""
    parts = uri.split("/")
    if ".." in parts or (not is_remote(uri) and local_path(uri).is_symlink()):
        why = "its path has '..'" if ".." in parts else "it is a link"
        raise _not_ours(uri, why, "Give the savepoint's own path. `airflow ft savepoint list` shows it.")


def _not_ours(uri: str, why: str, remedy: str = "") -> ConfigurationError:
    return ConfigurationError(
        f"{uri} cannot be deleted: {why}. Nothing was deleted.",
        code="savepoint_not_deleted",
        remedy=remedy or "Give the folder of a savepoint. `airflow ft savepoint list` shows them.",
        path=uri,
    )


def _damaged(uri: str, what: str) -> WalCorruptError:
    return WalCorruptError(
        f"the savepoint {uri} is damaged: {what}. Nothing was changed.",
        code="savepoint_damaged",
        remedy="Restore its folder from a backup, or take another savepoint.",
        path=uri,
    )
