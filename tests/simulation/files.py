"""The file system of the log and of savepoints, in memory: what `airflow_ft.wal.filesystem` is to the product.

Spark's locations are those of the model's log: `offsets/<n>`, `commits/<n>` and a file of state for each batch are
shown as Spark would have them there, and a copy of such files is a location again. All else are bytes by name, in them
and outside of them. Whatever changes a file is a call; a copy is one call a file, and others go on meanwhile.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from pathlib import PurePosixPath
from typing import Any, BinaryIO

from airflow_ft.protocol.errors import TransientError, WalCorruptError
from airflow_ft.spark.state.location_files import offsets_of
from tests.simulation.kernel import Kernel
from tests.simulation.operators import BORN
from tests.simulation.source import NO_WATERMARK, ORDERS, Wal

LOG = "file:///wal/"
STATE = "state/0/0"
_TRIES = 10


class Files:
    """See `airflow_ft.wal.filesystem.FileSystem`."""

    def __init__(self, kernel: Kernel, wal: Wal, *, by_operator: bool = False) -> None:
        """`by_operator`: state is kept by the operators of a job, and the variant is told with Spark's commit."""
        self._kernel, self._wal, self.by_operator = kernel, wal, by_operator
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

    seen = exists

    def names(self, uri: str) -> list[str]:
        return list(dict.fromkeys(name.partition("/")[0] for name in self.tree(uri)))

    def tree(self, uri: str) -> dict[str, int]:
        return {name: len(data) for name, data in self._found(uri).items() if name}

    def open_plain(self, uri: str) -> BinaryIO:
        if not self.exists(uri):
            raise FileNotFoundError(uri)
        return self.open(uri)

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
        if uri in self._wal.frozen:
            return {"": self._wal.frozen[uri]}
        if uri.startswith(LOG):
            parts = uri.removeprefix(LOG).split("/")
            if len(parts) < 3:
                return {name.removeprefix(f"{uri}/"): data for name, data in self._wal.frozen.items()}
            below, files = "/".join(parts[3:]), self._location(LOG + "/".join(parts[:3]))
        else:
            below, files = uri, self.saved
        found = {"": files[below]} if below in files else {}
        start = f"{below}/" if below else ""
        return found | {name[len(start) :]: data for name, data in files.items() if name.startswith(start)}

    def _location(self, uri: str) -> dict[str, bytes]:
        if uri not in self._wal.states:
            return {}
        state, ends, metadata = self._wal.states[uri], self._wal.ends.get(uri, {}), self._wal.metadata.get(uri, {})
        lines = self._wal.lines.get(uri, {})
        # A run that is no stream tells no ends.
        offsets = ends if ends or uri in self._copies else {batch: batch for batch in state}
        first = 0 if uri.endswith(BORN) else self._wal.starts.get(uri, 0) + 1
        shown = {batch: variant for batch, variant in state.items() if batch >= first}
        own = {f"{STATE}/{batch + 1}.delta": variant.encode() for batch, variant in shown.items()}
        return {
            **self._wal.files.get(uri, {}),
            **{
                f"offsets/{n}": _offsets(end, metadata.get(n, NO_WATERMARK), lines.get(n))
                for n, end in offsets.items()
                if n >= first
            },
            **{f"commits/{batch}": self._commit(variant) for batch, variant in shown.items()},
            **({} if self.by_operator else own),
        }

    def _commit(self, variant: str) -> bytes:
        return b"v1\n" + (json.dumps({"variant": variant}).encode() if self.by_operator else b"{}")

    # --- writing --------------------------------------------------------------------------------------------------

    def write(self, uri: str, data: bytes) -> None:
        def write() -> None:
            if "" in self._found(uri):
                raise FileExistsError(uri)
            self._put(uri, data)

        self._perform(f"writes {_short(uri)}", write)

    def replace(self, uri: str, data: bytes) -> None:
        self._perform(f"replaces {_short(uri)}", lambda: self._put(uri, data))

    def make_folder(self, uri: str) -> None:
        if self.exists(uri):
            raise FileExistsError(uri)

    def remove(self, uri: str) -> None:
        self._perform(f"removes {_short(uri)}", lambda: self._forget(uri))

    def remove_tree(self, uri: str) -> None:
        self._perform(f"removes all of {_short(uri)}", lambda: self._drop(uri))

    def sync_tree(self, uri: str, up_to: str, synced: Any) -> None:
        self._perform(f"syncs {_short(uri)}", lambda: None)

    def link_tree(self, source: str, target: str, keep: Callable[[PurePosixPath], bool]) -> int:
        for _ in range(_TRIES):
            if not self.exists(source):
                raise WalCorruptError(f"{source} is missing")
            self.make_folder(target)
            if target.startswith(LOG) and not _place(target)[1]:
                self._perform(f"makes {_short(target)}", lambda: self._begin(target))
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

        return bool(self._perform(f"links {name} into {_short(target)}", link))

    def _begin(self, uri: str) -> None:
        self._wal.states[uri], self._wal.ends[uri] = {}, {}
        self._copies.add(uri)

    def _put(self, uri: str, data: bytes) -> None:
        if not uri.startswith(LOG):
            self.saved[uri] = data
            return
        location, name = _place(uri)  # a folder that was swept meanwhile is made again
        if not name:
            self._wal.frozen[uri] = data
            return
        self._wal.states.setdefault(location, {})
        folder, _, last = name.rpartition("/")
        if folder == "offsets":
            _, metadata, *lines = data.decode().splitlines()
            [end] = [found for line in lines if ORDERS in (found := offsets_of(line) or {})]
            self._wal.ends.setdefault(location, {})[int(last)] = end[ORDERS]["0"]
            self._wal.metadata.setdefault(location, {})[int(last)] = metadata
            self._wal.lines.setdefault(location, {})[int(last)] = tuple(lines)
        elif folder == "commits" and self.by_operator:
            self._wal.states[location][int(last)] = json.loads(data.splitlines()[1])["variant"]
        elif folder == STATE and not self.by_operator:
            self._wal.states[location][int(last.partition(".")[0]) - 1] = data.decode()
        elif folder != "commits":
            self._wal.files.setdefault(location, {})[name] = data

    def _forget(self, uri: str) -> None:
        self.saved.pop(uri, None)
        self._wal.frozen.pop(uri, None)
        if uri.startswith(LOG):
            location, name = _place(uri)
            self._wal.files.get(location, {}).pop(name, None)

    def _drop(self, uri: str) -> None:
        if uri in self._wal.states:
            del self._wal.states[uri]
            self._wal.forget(uri)
        elif uri.startswith(LOG):
            location, below = _place(uri)
            others = self._wal.files.get(location, {})
            for name in [name for name in others if name.startswith(f"{below}/")]:
                del others[name]
        for name in [name for name in self.saved if name.startswith(f"{uri}/")]:
            del self.saved[name]

    def _perform(self, what: str, call: Callable[[], Any]) -> Any:
        def changed() -> Any:
            self.version += 1
            return call()

        return self._kernel.call(f"files: {what}", changed, lambda _: OSError(5, "Input/output error"), local=True)


def _offsets(end: int, metadata: str, lines: Sequence[str] | None) -> bytes:
    return "\n".join(["v1", metadata, *(lines or [json.dumps({ORDERS: {"0": end}})])]).encode()


def _place(uri: str) -> tuple[str, str]:
    """Spark's location, and the name in it."""
    parts = uri.removeprefix(LOG).split("/")
    return LOG + "/".join(parts[:3]), "/".join(parts[3:])


def _short(uri: str) -> str:
    return uri.removeprefix("file:///")
