"""What a table remembers of a pipeline: files beside its log; its app transaction says which one counts.

    <table>/_airflow_ft/<pipeline>/<participant>/0000000007-1a2b3c4d.json     head and markers

A commit of ours carries an app transaction (`txn` of the Delta protocol) with the pipeline's app id. Its version is
made of the number and the checksum of such a file. So the commit that adds rows also makes the file count that holds
their marker, in one step. The file is written and synced before, and never changed; one that no commit names is waste.

Why not in the commit's own metadata: that goes with log cleanup (30 days by default), while checkpoints of the log keep
app transactions. Vacuum, OPTIMIZE and readers pass names that begin with an underscore.
"""

from __future__ import annotations

import errno
import hashlib
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

from airflow_ft.protocol.errors import StoreBehindSinkError, WalCorruptError
from airflow_ft.protocol.model import Fence, Outcome, Plan, canonical_json
from airflow_ft.sinks.base.memory import Head, Marker
from airflow_ft.sinks.delta.place import OURS, Place

_KEPT = 16  # files that counted before
_NAME = re.compile(r"(\d{10})-[0-9a-f]{8}\.json")


class Ledger:
    """The memory as of one version of the table; what is written into it counts with the next commit."""

    def __init__(self, table: Place, app: str, version: int | None) -> None:
        """`app` is the app id, `version` that of its app transaction; None: the table has none.

        FileNotFoundError: the file is not there (any more).
        """
        self._table, self._version = table, version or 0
        self._names = (OURS, *app.split("/")[1:])
        found = self._read() if version else {"head": None, "markers": {}, "synced": -1}
        self.synced: int = found["synced"]
        """Up to which version the table's log survives a power cut."""
        self._head = Head(**found["head"]) if found["head"] else None
        self._markers = {
            int(number): Marker(**{**marker, "outcome": Outcome(marker["outcome"])})
            for number, marker in found["markers"].items()
        }
        self._before = self._text()

    @property
    def uri(self) -> str:
        """Return where the file that counts lies."""
        return self._table.uri(*self._names, f"{self._version >> 32:010}-{self._version & 0xFFFFFFFF:08x}.json")

    @property
    def has_changed(self) -> bool:
        """Return whether a commit is needed."""
        return self._text() != self._before

    def write(self) -> int:
        """Writes the file, durably; returns the version for the app transaction that makes it count."""
        data = self._text().encode()
        self._version = ((self._version >> 32) + 1) << 32 | _checksum(data)
        with suppress(FileExistsError):  # one name, one content
            self._table.files.write(self.uri, data)
        self._table.files.sync_folders(self._table.uri(*self._names), self._table.root)
        return self._version

    def sweep(self) -> None:
        """Delete outdated files; a process that still reads one reads again."""
        for name in self._table.files.names(self._table.uri(*self._names)):
            if (match := _NAME.fullmatch(name)) and int(match[1]) + _KEPT <= self._version >> 32:
                self._table.files.remove(self._table.uri(*self._names, name))

    def _read(self) -> dict[str, Any]:
        try:
            data = self._table.files.read(self.uri)
        except WalCorruptError as error:
            raise FileNotFoundError(errno.ENOENT, "the file is gone", self.uri) from error
        if _checksum(data) != self._version & 0xFFFFFFFF:
            raise StoreBehindSinkError(
                f"{self.uri} is damaged: it does not match the checksum in the table's log.",
                code="ledger_damaged",
                remedy="Restore the file from a backup. Compare table and decision log before you resume.",
                path=self.uri,
            )
        found: dict[str, Any] = json.loads(data)
        return found

    def _text(self) -> str:
        markers = {str(number): asdict(marker) for number, marker in sorted(self._markers.items())}
        head = asdict(self._head) if self._head else None
        return canonical_json({"head": head, "markers": markers, "synced": self.synced})

    # --- as `airflow_ft.sinks.base.one_transaction` has it ----------------------------------------------------------

    def head(self) -> Head | None:
        return self._head

    def create_head(self, head: Head) -> None:
        self._head = head

    def write_head(self, head: Head) -> None:
        self._head = head

    def raise_head(self, fence: Fence) -> None:
        self._head = replace(self._the_head, epoch=fence.epoch, attempt=fence.attempt)

    def deliver_head(self, number: int) -> None:
        self._head = replace(self._the_head, last_delivered=number)

    def raise_floor(self, floor: int) -> None:
        self._head = replace(self._the_head, floor=max(floor, self._the_head.floor))

    @property
    def _the_head(self) -> Head:
        assert self._head is not None  # every change reads it first
        return self._head

    def marker(self, number: int) -> Marker | None:
        return self._markers.get(number)

    def newest(self) -> int:
        return max(self._markers, default=0)

    def write_marker(
        self, plan: Plan, fence: Fence, outcome: Outcome, counts: Mapping[str, int], detail: Mapping[str, Any]
    ) -> None:
        assert plan.number not in self._markers
        self._markers[plan.number] = Marker(
            fence.installation, outcome, *fence.rank, plan.digest, dict(counts), dict(detail)
        )

    def markers_of_others(self, above: int, installation: str) -> list[tuple[int, Marker]]:
        return [
            (number, marker)
            for number, marker in sorted(self._markers.items())
            if number > above and marker.installation != installation
        ]

    def drop_markers_of_others(self, above: int, installation: str) -> None:
        for number, _ in self.markers_of_others(above, installation):
            del self._markers[number]

    def prune(self, floor: int) -> None:
        self._markers = {number: marker for number, marker in self._markers.items() if number > floor}


def _checksum(data: bytes) -> int:
    return int(hashlib.sha256(data).hexdigest()[:8], 16)
