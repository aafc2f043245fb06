"""Folders into which the files sink delivers, in memory: a disk that renames, a bucket that puts, copies and deletes.

The participant, its ledger and what it does with objects are the product's own. What stands for it here is the file
system (`Disk`), or the client of the object store (`obstore`), whose every request can be lost, be answered to nobody,
or arrive late. Rows are files of their own, so that an item of two rows has two of them.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any, BinaryIO

from obstore import exceptions

from airflow_ft.protocol.errors import WalCorruptError
from airflow_ft.protocol.votes import Outcome
from airflow_ft.protocol.write_ahead_log import SegmentReader, WalFile
from airflow_ft.sinks.files.markers import OURS
from tests.simulation.kernel import Kernel, Violation
from tests.simulation.source import Item

_SHOWN = re.compile(r"checkpoint=(\d+)/(.+)")
_HEAD = re.compile(rf"{OURS}/head/(\d+)\.json")
_MARKER = re.compile(rf"{OURS}/markers/(\d+)\.json")
_TRIES = 2  # of the client of a bucket


@dataclass(frozen=True, slots=True)
class Folded:
    """What became visible of a number: some of its rows, or (`is_whole`) all of them with these."""

    number: int
    rows: tuple[tuple[str, Item], ...]
    is_whole: bool


@dataclass
class FolderServer:
    """What lies in one folder, by name, and what of it readers see."""

    kernel: Kernel
    name: str
    data: dict[str, bytes] = field(default_factory=dict)
    visible: dict[str, list[Item]] = field(default_factory=dict)
    commits: list[Folded] = field(default_factory=list)

    def put(self, name: str, data: bytes) -> None:
        if version := _HEAD.fullmatch(name):
            self._look_at_head(int(version[1]), json.loads(data))
        self.data[name] = data
        if marker := _MARKER.fullmatch(name):
            self._look_at_marker(int(marker[1]), json.loads(data))
        self._show([name])

    def move(self, source: str, target: str) -> None:
        """All that lies below a name, to another one, in one step."""
        names = self.below(source)
        if not names:
            raise FileNotFoundError(source)
        if self.below(target):
            raise FileExistsError(17, "it is there already", target)
        moved = [target + name.removeprefix(source) for name in names]
        for name, new in zip(names, moved, strict=True):
            self.data[new] = self.data.pop(name)
        self._show(moved)

    def below(self, name: str) -> list[str]:
        return sorted(each for each in self.data if each.startswith(f"{name}/"))

    def _show(self, names: Sequence[str]) -> None:
        found = [match for match in map(_SHOWN.fullmatch, names) if match and match[2] != OURS]
        if not found:
            return
        rows = tuple(_row(self.data[match[0]]) for match in found)
        for sink, item in rows:
            self.visible.setdefault(sink, []).append(item)
        number = int(found[0][1])
        manifest = self.data.get(f"checkpoint={found[0][1]}/{OURS}")
        if manifest is None:
            raise Violation("I6", f"{self.name} shows rows of {number}, and no manifest says whose they are")
        whole = [f"checkpoint={found[0][1]}/{file['path']}" for file in json.loads(manifest)["files"]]
        is_whole = all(name in self.data for name in whole)
        all_of_them = tuple(_row(self.data[name]) for name in whole) if is_whole else rows
        self.commits.append(Folded(number, all_of_them, is_whole))

    def _look_at_head(self, version: int, head: Mapping[str, Any]) -> None:
        """I5: the newest version has the highest rank; what comes behind newer ones, nobody reads."""
        newest = max((name for name in self.data if _HEAD.fullmatch(name)), default="")
        match = _HEAD.fullmatch(newest)
        before = json.loads(self.data[newest]) if match is not None and int(match[1]) < version else head
        if (head["epoch"], head["attempt"]) < (before["epoch"], before["attempt"]):
            raise Violation("I5", f"the head of {self.name} went back from {before} to {head}")

    def _look_at_marker(self, number: int, marker: Mapping[str, Any]) -> None:
        """Readers of several files go by it."""
        shown = sum(match is not None and int(match[1]) == number and match[2] != OURS
                    for match in map(_SHOWN.fullmatch, self.data))  # fmt: skip
        wanted = sum(marker["counts"].values()) if Outcome(marker["outcome"]) is Outcome.COMMITTED else 0
        if shown != wanted:
            raise Violation("I6", f"{self.name} has a marker of {number} for {wanted} rows, and shows {shown}")


def _row(data: bytes) -> tuple[str, Item]:
    found = json.loads(data)
    return found.pop("sink"), Item(**found)


class ModelFiles:
    """See `airflow_ft.sinks.files.writing.Files`: each row is a file."""

    def __init__(self, files: Any, root: str, *_: Any) -> None:
        self._files, self._root = files, root
        self._written: list[WalFile] = []

    def adopt(self, reader: SegmentReader, file: WalFile, sink: str) -> None:
        for rows in reader.batches(sink, file):
            for item in rows:  # type: ignore[attr-defined]
                name = f"part-{len(self._written):05}"
                data = json.dumps({"sink": sink, **asdict(item)}).encode()
                with self._files.create(self._files.uri(self._root, name)) as out:
                    out.write(data)
                self._written.append(WalFile(name, 1, len(data), ""))

    def close(self) -> list[WalFile]:
        return self._written

    def abandon(self) -> None:
        pass


class _Writing(io.BytesIO):
    """A file that is there when it is closed."""

    def __init__(self, done: Callable[[bytes], None]) -> None:
        super().__init__()
        self._done = done

    def close(self) -> None:
        if not self.closed:
            data = self.getvalue()
            super().close()
            self._done(data)


class Disk:
    """See `airflow_ft.wal.filesystem.FileSystem`; URIs are `/<name of the server>/...`."""

    def __init__(self, server: FolderServer) -> None:
        self._server = server

    def uri(self, location: str, *names: str) -> str:
        return "/".join([location.rstrip("/"), *names])

    def hadoop_path(self, uri: str) -> str:
        return uri

    def _name(self, uri: str) -> str:
        return uri.removeprefix(f"/{self._server.name}").strip("/")

    # --- reading --------------------------------------------------------------------------------------------------

    def exists(self, uri: str) -> bool:
        name = self._name(uri)
        return bool(self._see(f"is there {name}", lambda: name in self._server.data or self._server.below(name)))

    def names(self, uri: str) -> list[str]:
        return list(dict.fromkeys(name.partition("/")[0] for name in self.tree(uri)))

    def tree(self, uri: str) -> dict[str, int]:
        name = self._name(uri)
        start = f"{name}/" if name else ""

        def listed() -> dict[str, int]:
            found = self._server.data.items()
            return {each.removeprefix(start): len(data) for each, data in found if each.startswith(start)}

        return dict(self._see(f"lists {name}", listed))

    def read(self, uri: str) -> bytes:
        found = self._see(f"reads {self._name(uri)}", lambda: self._server.data.get(self._name(uri)))
        if found is None:
            raise WalCorruptError(f"{uri} is missing")
        return bytes(found)

    # --- changing -------------------------------------------------------------------------------------------------

    def create(self, uri: str) -> BinaryIO:
        return _Writing(lambda data: self._perform(f"writes {self._name(uri)}", lambda: self._new(uri, data)))

    def write(self, uri: str, data: bytes) -> None:
        self._perform(f"writes {self._name(uri)}", lambda: self._new(uri, data))

    def _new(self, uri: str, data: bytes) -> None:
        if self._name(uri) in self._server.data:
            raise FileExistsError(17, "it is there already", uri)
        self._server.put(self._name(uri), data)

    def make_folder(self, uri: str) -> None:
        pass

    def make_like(self, uri: str, model: str) -> bool:
        return True

    def remove(self, uri: str) -> None:
        self._perform(f"removes {self._name(uri)}", lambda: self._server.data.pop(self._name(uri), None))

    def remove_tree(self, uri: str) -> None:
        """First out of its name, in one step; then one after the other."""
        name = self._name(uri)
        folder, _, last = name.rpartition("/")
        doomed = f"{folder}/.{last}.removed"
        if self._server.below(doomed):
            self._drop(doomed)
        if self._see(f"is there {name}", lambda: self._server.below(name)):
            try:
                self._perform(f"renames {name}", lambda: self._server.move(name, doomed))
            except (FileNotFoundError, FileExistsError):
                return
            self._drop(doomed)

    def _drop(self, name: str) -> None:
        for each in self._server.below(name):
            self._perform(f"removes {each}", lambda gone=each: self._server.data.pop(gone, None))  # type: ignore[misc]

    def rename_folder(self, source: str, target: str) -> None:
        names = self._name(source), self._name(target)
        self._perform(f"renames {names[0]} to {names[1]}", lambda: self._server.move(*names))

    def sync_file(self, file: BinaryIO) -> None:
        pass

    def sync_folders(self, uri: str, up_to: str) -> None:
        pass

    def sync_tree(self, uri: str, up_to: str, synced: object) -> None:
        pass

    def _perform(self, what: str, call: Callable[[], Any]) -> Any:
        return self._server.kernel.call(f"{self._server.name} {what}", call, _broken, local=True)

    def _see(self, what: str, call: Callable[[], Any]) -> Any:
        return self._server.kernel.call(f"{self._server.name} {what}", call, _broken, writes=False, local=True)


def _broken(_: bool) -> Exception:
    return OSError(5, "Input/output error")


# --- the client of a bucket -------------------------------------------------------------------------------------------


class _LostError(Exception):
    """No answer has come."""


@dataclass(frozen=True)
class Bucket:
    """See `obstore.store.S3Store`. The first part of a key is the name of a server, whose folder it is."""

    find: Callable[[str], FolderServer]

    config = None

    def at(self, key: str) -> tuple[FolderServer, str]:
        """Whose it is, and its name there."""
        server, _, name = key.partition("/")
        return self.find(server), name

    def ask(self, what: str, key: str, call: Callable[[FolderServer, str], Any], *, writes: bool = True) -> Any:
        """The client repeats what was not answered, whatever came of it."""
        server, name = self.at(key)
        for tried in range(_TRIES):
            text = f"{server.name} {what} {name}" + (" again" if tried else "")
            try:
                return server.kernel.call(text, lambda: call(server, name), _lost, writes=writes)
            except _LostError:
                continue
        raise exceptions.GenericError("Error performing a request: no answer")


def _lost(_: bool) -> Exception:
    return _LostError()


def _put(store: Bucket, key: str, data: bytes, *, mode: str = "overwrite", **_: Any) -> None:
    def call(server: FolderServer, name: str) -> None:
        if mode == "create" and name in server.data:
            raise exceptions.AlreadyExistsError(key)
        server.put(name, data)

    store.ask("put", key, call)


def _get(store: Bucket, key: str) -> Any:
    def call(server: FolderServer, name: str) -> bytes:
        if name not in server.data:
            raise FileNotFoundError(key)
        return server.data[name]

    data = store.ask("get", key, call, writes=False)
    return SimpleNamespace(bytes=lambda: data)


def _head(store: Bucket, key: str) -> dict[str, int]:
    return {"size": len(_get(store, key).bytes())}


def _list(store: Bucket, key: str, offset: str | None = None) -> Iterator[list[dict[str, Any]]]:
    def call(server: FolderServer, _: str) -> list[dict[str, Any]]:
        own = {f"{server.name}/{name}": len(data) for name, data in sorted(server.data.items())}
        found = [path for path in own if path.startswith(f"{key}/") and (offset is None or path > offset)]
        return [{"path": path, "size": own[path]} for path in found]

    yield store.ask("list", key, call, writes=False)


def _list_with_delimiter(store: Bucket, key: str) -> dict[str, Any]:
    [found] = _list(store, key)
    names = dict.fromkeys(each["path"].removeprefix(f"{key}/").partition("/")[0] for each in found)
    return {"common_prefixes": [f"{key}/{name}" for name in names], "objects": []}


def _copy(store: Bucket, source: str, target: str) -> None:
    def call(server: FolderServer, name: str) -> None:
        data, to = server.data.get(name), store.at(target)[1]
        if data is None:
            raise FileNotFoundError(source)
        if server.data.get(to, data) != data:
            raise Violation("I2", f"{to} is replaced by other rows")
        if to not in server.data:
            server.put(to, data)

    store.ask("copy", source, call)


def _delete(store: Bucket, keys: str | Sequence[str]) -> None:
    gone = [keys] if isinstance(keys, str) else list(keys)

    def call(server: FolderServer, _: str) -> None:
        for name in (store.at(key)[1] for key in gone):
            if _SHOWN.fullmatch(name) and not name.endswith(f"/{OURS}"):
                raise Violation("I2", f"visible rows are deleted: {name}")
            server.data.pop(name, None)

    store.ask("delete", gone[0], call)


def _open_writer(store: Bucket, key: str, **_: Any) -> BinaryIO:
    return _Writing(lambda data: _put(store, key, data))


def obstore() -> ModuleType:
    """In place of the client."""
    made = ModuleType("obstore")
    made.__spec__ = ModuleSpec("obstore", None)  # by which it counts as installed
    for name, call in {
        "put": _put,
        "get": _get,
        "head": _head,
        "list": _list,
        "list_with_delimiter": _list_with_delimiter,
        "copy": _copy,
        "delete": _delete,
        "open_writer": _open_writer,
        "exceptions": exceptions,
    }.items():
        setattr(made, name, call)
    return made
