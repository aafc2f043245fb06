"""The folder of a Paimon table, whose schemas and snapshots have numbers and are created once."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from airflow_ft.protocol.errors import SinkAccessError, StoreBehindSinkError, WalCorruptError
from airflow_ft.sinks.base.document import OvertakenError
from airflow_ft.sinks.files.failures import lacks_links
from airflow_ft.sinks.paimon.manifests import unreadable
from airflow_ft.sinks.paimon.memory import OURS
from airflow_ft.wal.filesystem import FileSystem, filesystem
from airflow_ft.wal.local import LocalFileSystem, local_path

if TYPE_CHECKING:
    from pathlib import Path

SCHEMAS, SNAPSHOTS = "schema", "snapshot"
_LATEST = "LATEST"


@dataclass(frozen=True)
class Place:
    """The folder of a table."""

    files: FileSystem
    root: str

    @classmethod
    def of(cls, path: Path) -> Self:
        """Return the place of a table's folder."""
        return cls(filesystem(str(path)), path.as_uri())

    def __str__(self) -> str:
        return str(local_path(self.root))

    def refuse_file(self) -> None:
        """Raise SinkAccessError if a file lies in its place."""
        if local_path(self.root).is_file():
            what, remedy = f"{self} is not a folder.", f"Move {self} away, or correct the folder: table= of the sink."
            raise SinkAccessError(what, code="folder_unusable", remedy=remedy, path=str(self))

    def uri(self, *names: str) -> str:
        """Return the URI of a file or folder in it."""
        return self.files.uri(self.root, *names)

    def numbers(self, folder: str) -> list[int]:
        """Return the numbers of schemas or snapshots, ascending."""
        pattern = re.compile(rf"{folder}-(\d+)")
        return sorted(
            int(found[1]) for name in self.files.names(self.uri(folder)) if (found := pattern.fullmatch(name))
        )

    def record(self, folder: str, number: int) -> dict[str, Any] | None:
        """Return a schema or snapshot; None: there is none. SinkAccessError: it is damaged."""
        uri = self.uri(folder, f"{folder}-{number}")
        try:
            found = json.loads(self.files.read(uri))
        except WalCorruptError:
            return None
        except ValueError as error:
            raise unreadable(uri, error) from error
        if not isinstance(found, dict):
            raise unreadable(uri, ValueError())
        return found

    def create(self, folder: str, record: Mapping[str, Any]) -> None:
        """Create a schema or snapshot, durably. OvertakenError: its number is given already."""
        data = json.dumps(record, indent=2, ensure_ascii=False).encode()
        try:
            self.files.write(self.uri(folder, f"{folder}-{record['id']}"), data)
        except FileExistsError as error:
            raise OvertakenError from error
        self.files.sync_folders(self.uri(folder), self.root)

    def latest(self) -> int:
        """Return the number of the newest snapshot; 0: there is none."""
        with suppress(WalCorruptError, ValueError):  # a hint, which a writer that died did not write
            hint = int(self.files.read(self.uri(SNAPSHOTS, _LATEST)))
            if self._is_there(hint) and not self._is_there(hint + 1):
                return hint
        return max(self.numbers(SNAPSHOTS), default=0)

    def hint(self) -> None:
        """Write the hint at the newest snapshot, until it is still the newest afterwards: the process may have slept.

        Some readers believe the hint, also where that snapshot has expired.
        """
        written = 0
        while written != (newest := max(self.numbers(SNAPSHOTS), default=0)):
            self.files.replace(self.uri(SNAPSHOTS, _LATEST), str(newest).encode())
            written = newest

    def is_unbroken(self, first: int) -> bool:
        """Return whether no snapshot from `first` to the newest is gone."""
        there = self.numbers(SNAPSHOTS)
        return first in there and len(there) - there.index(first) == there[-1] - first + 1

    def _is_there(self, snapshot: int) -> bool:
        return self.files.exists(self.uri(SNAPSHOTS, f"{SNAPSHOTS}-{snapshot}"))

    def require_links(self) -> None:
        """UnfitTargetError where a name can be given twice."""
        files = self.files
        if isinstance(files, LocalFileSystem) and not files.has_links(self.uri(OURS, f"probe-{uuid.uuid4().hex}")):
            raise lacks_links(str(self), "create a snapshot once")


def lost(place: Place, snapshot: int, accepted: str) -> StoreBehindSinkError:
    """Return the error of a snapshot that is gone. `accepted` is the file that says that its rows are there."""
    what = f"snapshot {snapshot} of {place} is gone, and nothing else shows whether the newest rows were delivered."
    remedy = (
        "Restore that snapshot from a backup. Or compare the rows (`airflow ft verify`). If those of the newest"
        f" checkpoint are there, run `touch '{local_path(accepted)}'`. If they are missing, delete the newest file of"
        f" the pipeline in {OURS}. Then run `airflow ft resume`."
    )
    return StoreBehindSinkError(what, code="snapshot_lost", remedy=remedy, path=str(place), snapshot=snapshot)


def replaced(place: Place, snapshot: int, accepted: str) -> StoreBehindSinkError:
    """Return the error of a snapshot that another writer has replaced; `accepted` is the file that settles it."""
    return StoreBehindSinkError(
        f"snapshot {snapshot} of {place}, the newest that the sink wrote, is gone: another writer has replaced it, or"
        " rolled the table back. Rows of confirmed checkpoints are lost.",
        code="snapshot_replaced",
        remedy="Stop other writers while the pipeline delivers. Find the lost rows with `airflow ft verify`, and insert"
        f" them. Then run `touch '{local_path(accepted)}'` and `airflow ft resume`.",
        path=str(place),
        snapshot=snapshot,
    )
