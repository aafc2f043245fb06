"""The file system of the log and of savepoints, in memory: what `airflow_ft.wal.filesystem` is to the product.

Spark's locations are those of the model's log: `offsets/<n>`, `commits/<n>` and a file of state for each batch are
shown as Spark would have them there, and a copy of such files is a location again. All else are bytes by name. Whatever
changes a file is a call; a copy is one call a file, and others go on meanwhile.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Any, BinaryIO

from airflow_ft.core.errors import TransientError, WalCorruptError
from tests.simulation.kernel import Kernel
from tests.simulation.source import Wal

LOG = "file:///wal/"
STATE = "state/0/0"
_TRIES = 10


class Files:
    """See `airflow_ft.wal.filesystem.FileSystem`."""

    def __init__(self, kernel: Kernel, wal: Wal) -> None:
        self._kernel, self._wal = kernel, wal
        self.saved: dict[str, bytes] = {}  # outside of the log, by URI
        self._copies: set[str] = set()
        self.version = 0

    # --- reading --------------------------------------------------------------------------------------------------

    def uri(self, location: str, *names: str) -> str:
        return "/".join([location.rstrip("/"), *names])

    def hadoop_path(self, uri: str) -> str:
        return uri

    def exists(self, uri: str) -> bool:
        return bool(self._found(uri)) or uri in self._wal.states

    def names(self, uri: str) -> list[str]:
        return list(dict.fromkeys(name.partition("/")[0] for name in self.tree(uri)))

    def tree(self, uri: str) -> dict[str, int]:
        return {name: len(data) for name, data in self._found(uri).items() if name}

    def open(self, uri: str) -> BinaryIO:
        return io.BytesIO(self.read(uri))

    def read(self, uri: str) -> bytes:
        data = self._found(uri).get("")
        if data is None:
            raise WalCorruptError(f"{uri} is missing")
        return data

    def size(self, uri: str) -> int:
        return len(self.read(uri))

    def _found(self, uri: str) -> dict[str, bytes]:
        """What lies at and below a URI, by relative name ("": the file itself)."""
        if uri.startswith(LOG):
            parts = uri.removeprefix(LOG).split("/")
            below, files = "/".join(parts[3:]), self._location(LOG + "/".join(parts[:3]))
        else:
            below, files = uri, self.saved
        found = {"": files[below]} if below in files else {}
        start = f"{below}/" if below else ""
        return found | {name[len(start) :]: data for name, data in files.items() if name.startswith(start)}

    def _location(self, uri: str) -> dict[str, bytes]:
        state, ends = self._wal.states.get(uri, {}), self._wal.ends.get(uri, {})
        told = ends or uri in self._copies  # a run that is no stream tells none
        offsets = ends if told else {batch: batch for batch in state}
        return {
            **{f"offsets/{batch}": _offsets(end) for batch, end in offsets.items() if batch > 0},
            **{f"commits/{batch}": b"v1\n{}" for batch in state if batch > 0},
            **{f"{STATE}/{batch + 1}.delta": variant.encode() for batch, variant in state.items() if batch > 0},
        }

    # --- writing --------------------------------------------------------------------------------------------------

    def write(self, uri: str, data: bytes) -> None:
        self._act(f"writes {_short(uri)}", lambda: self._put(uri, data))

    def make_folder(self, uri: str) -> None:
        if self.exists(uri):
            raise FileExistsError(uri)

    def remove(self, uri: str) -> None:
        self._act(f"removes {_short(uri)}", lambda: self.saved.pop(uri, None))

    def remove_tree(self, uri: str) -> None:
        self._act(f"removes all of {_short(uri)}", lambda: self._drop(uri))

    def sync_tree(self, uri: str, up_to: str, synced: Any) -> None:
        self._act(f"syncs {_short(uri)}", lambda: None)

    def link_tree(self, source: str, target: str, keep: Callable[[PurePosixPath], bool]) -> int:
        for _ in range(_TRIES):
            if not self.exists(source):
                raise WalCorruptError(f"{source} is missing")
            self.make_folder(target)
            if target.startswith(LOG):
                self._act(f"makes {_short(target)}", lambda: self._begin(target))
            names = [name for name in self.tree(source) if keep(PurePosixPath(name))]
            if all(self._link(source, target, name) for name in names):
                return len(names)
            self._drop(target)
        raise TransientError(f"{source} changes faster than it can be copied")

    def _link(self, source: str, target: str, name: str) -> bool:
        """Whether the file is still there."""

        def link() -> bool:
            data = self._found(self.uri(source, name)).get("")
            if data is not None:
                self._put(self.uri(target, name), data)
            return data is not None

        return bool(self._act(f"links {name} into {_short(target)}", link))

    def _begin(self, uri: str) -> None:
        self._wal.states[uri], self._wal.ends[uri] = {}, {}
        self._copies.add(uri)

    def _put(self, uri: str, data: bytes) -> None:
        if not uri.startswith(LOG):
            if uri in self.saved:
                raise FileExistsError(uri)
            self.saved[uri] = data
            return
        *folders, kind, name = uri.split("/")  # a folder that was swept meanwhile is made again
        if kind == "offsets":
            end = json.loads(data.splitlines()[2])["orders"]["0"]
            self._wal.ends.setdefault("/".join(folders), {})[int(name)] = end
        elif kind != "commits":
            self._wal.states.setdefault("/".join(folders[:-2]), {})[int(name.partition(".")[0]) - 1] = data.decode()

    def _drop(self, uri: str) -> None:
        self._wal.states.pop(uri, None)
        self._wal.ends.pop(uri, None)
        for name in [name for name in self.saved if name.startswith(f"{uri}/")]:
            del self.saved[name]

    def _act(self, what: str, act: Callable[[], Any]) -> Any:
        def changed() -> Any:
            self.version += 1
            return act()

        return self._kernel.call(f"files: {what}", changed, lambda _: OSError(5, "Input/output error"), local=True)


def _offsets(end: int) -> bytes:
    return b"v1\n{}\n" + json.dumps({"orders": {"0": end}}).encode()


def _short(uri: str) -> str:
    return uri.removeprefix("file:///")
