"""What a table remembers of a pipeline: a chain of documents beside Paimon's own files.

    <table>/_airflow_ft/<pipeline>/<participant>/0000000007.json     head and markers

Each document replaces the one before it. Its name is created once (a hard link), so the chain is a compare-and-set: the
order of its documents is the order of ranks (I5). A document that adds rows names the number of one snapshot of the
table, which is created once, too, and its UUID. It counts only together with that snapshot:

1. The document is written: it awaits its snapshot. It also holds the memory without these rows.
2. The snapshot is created: rows and marker count, at the same moment. If another writer has taken the number, neither
   ever will. A consumer of the table keeps the snapshot from expiring until the third step.
3. The next document repeats the memory and awaits nothing. The snapshot's number and UUID stay in the memory: a writer
   that replaces it is found out (`Version.check_newest`).

A process that reads a document which awaits its snapshot looks for that snapshot (`Version.holds`). If the snapshot may
still come, the process gives its number to one without rows before it writes the next document.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

from airflow_ft.protocol.errors import WalCorruptError
from airflow_ft.protocol.model import canonical_json
from airflow_ft.sinks.base.document import DocumentLedger, OvertakenError
from airflow_ft.sinks.base.memory import damaged
from airflow_ft.sinks.files.markers import sealed, unsealed
from airflow_ft.wal.filesystem import FileSystem

OURS = "_airflow_ft"
"""A folder that Paimon's writers and readers pass."""
_CONSUMERS = "consumer"
_KEPT = 16  # documents before the one that counts
_NAME = re.compile(r"(\d{10})\.json")


@dataclass(frozen=True, slots=True)
class Written:
    """A snapshot that the sink writes: its number, its UUID, and a file that it adds."""

    snapshot: int
    uuid: str
    file: str


@dataclass(frozen=True, slots=True)
class Awaited(Written):
    """The snapshot that a document awaits. `without` is the memory if it is never created."""

    without: str | None


@dataclass(frozen=True, slots=True)
class Chain:
    """The chain of one pipeline and participant."""

    files: FileSystem
    root: str
    group: str

    @property
    def _names(self) -> tuple[str, ...]:
        return (OURS, *self.group.split("/"))

    @property
    def folder(self) -> str:
        """Return the folder of the documents."""
        return self.files.uri(self.root, *self._names)

    def uri(self, number: int) -> str:
        """Return where a document lies."""
        return self.files.uri(self.root, *self._names, f"{number:010}.json")

    def newest(self) -> Document:
        """Return the newest document; before the first one an empty one with the number 0.

        Raises:
            OvertakenError: it was removed while it was read.
            StoreBehindSinkError: it is damaged.
        """
        newest = max(self._numbers(), default=0)
        if not newest:
            return Document(0, None, None)
        try:
            return Document.read(newest, self.files.read(self.uri(newest)), self.uri(newest))
        except WalCorruptError as error:  # it was removed since: there are newer ones
            raise OvertakenError from error

    def append(self, document: Document) -> None:
        """Write a document, durably. OvertakenError: its number is given already, also if that document was swept."""
        uri = self.uri(document.number)
        try:
            self.files.write(uri, document.data)
        except FileExistsError as error:
            raise OvertakenError from error
        # Others may have written this number, and swept it, while this process slept.
        if document.number + _KEPT <= max(self._numbers(), default=0):
            self.files.remove(uri)
            raise OvertakenError
        self.files.sync_folders(self.folder, self.root)

    def sweep(self, number: int) -> None:
        """Remove outdated documents, and consumers that kept snapshots for them."""
        for old in self._numbers():
            if old + _KEPT <= number:
                self.files.remove(self.uri(old))
        prefix = self._consumer("")
        for name in self.files.names(self.files.uri(self.root, _CONSUMERS)):
            if name.startswith(prefix) and name[len(prefix) :].isdigit() and int(name[len(prefix) :]) <= number:
                self.files.remove(self.files.uri(self.root, _CONSUMERS, name))

    def keep(self, number: int, snapshot: int) -> None:
        """Keep a snapshot, and those after it, from expiring until document `number` or a later one is swept."""
        data = json.dumps({"nextSnapshot": snapshot}).encode()
        self.files.replace(self.files.uri(self.root, _CONSUMERS, self._consumer(str(number))), data)

    def accepted(self, uuid: str) -> str:
        """Return the URI of the file by which a person accepts that a snapshot is gone, and that its rows count."""
        return self.files.uri(self.root, *self._names, f"accepted-{uuid}")

    def _consumer(self, number: str) -> str:
        name = hashlib.sha256(self.group.encode()).hexdigest()[:16]
        return f"consumer-airflow_ft-{name}-{number}"

    def _numbers(self) -> Sequence[int]:
        names = self.files.names(self.folder)
        return [int(match[1]) for name in names if (match := _NAME.fullmatch(name))]


@dataclass(frozen=True, slots=True)
class Document:
    """One document. `memory` is the text of a `DocumentLedger`; None: there is none."""

    number: int
    memory: str | None
    awaited: Awaited | None

    @classmethod
    def read(cls, number: int, data: bytes, uri: str) -> Self:
        """Return the document of a file's content. StoreBehindSinkError: it is damaged."""
        with damaged(uri):
            found = unsealed(data)
            awaited = found["awaits"]
            if awaited:
                awaited = Awaited(**{**awaited, "without": _text(awaited["without"])})
            return cls(number, _text(found["memory"]), awaited or None)

    @property
    def data(self) -> bytes:
        """The content of its file."""
        awaits = asdict(self.awaited) if self.awaited is not None else None
        if awaits is not None:
            awaits["without"] = _record(awaits["without"])
        return sealed({"memory": _record(self.memory), "awaits": awaits})


class Ledger(DocumentLedger):
    """The memory as of one document. `found` is that document, `pending`: its snapshot may still be created."""

    def __init__(self, chain: Chain, found: Document, memory: str | None, *, pending: bool) -> None:
        super().__init__(memory, chain.uri(found.number), written=None)
        self.chain, self.found, self.pending = chain, found, pending
        self.before = memory

    @property
    def written(self) -> Written | None:
        """The newest snapshot of the table that the sink has written; None: it has written none."""
        found = self.others["written"]
        return Written(**found) if found is not None else None

    @written.setter
    def written(self, written: Written) -> None:
        self.others["written"] = {"snapshot": written.snapshot, "uuid": written.uuid, "file": written.file}

    def append(self, awaited: Awaited | None = None) -> Document:
        """Write the memory as the next document. OvertakenError: another process was faster."""
        made = Document(self.found.number + 1, self.text, awaited)
        self.chain.append(made)
        return made


def _record(memory: str | None) -> Any:
    return json.loads(memory) if memory is not None else None


def _text(memory: Any) -> str | None:
    return canonical_json(memory) if memory is not None else None
