"""The markers and manifests of a folder: how each number was settled, and what is visible.

They are created once and never changed, and each holds its own checksum. The first process that settles a number
creates its marker; later ones read it.
`airflow_ft.sinks.files.ledger` shows where the files are, and holds the head.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from airflow_ft.protocol.errors import SinkUnavailableError, WalCorruptError
from airflow_ft.protocol.model import canonical_json
from airflow_ft.protocol.votes import Outcome
from airflow_ft.sinks.base.memory import Marker, damaged
from airflow_ft.sinks.files.objects import Objects
from airflow_ft.wal.filesystem import FileSystem

_CHECKSUM = "checksum"
OURS = "_airflow_ft"  # readers pass names by that begin so
LABEL = "checkpoint"
_VERSION = re.compile(r"(\d+)\.json")
_PUBLISHED = re.compile(rf"{LABEL}=(\d{{10,}})")


@dataclass(frozen=True, slots=True)
class Markers:
    """The markers and manifests of one folder; `root` is its URI. Methods raise what the file system raises."""

    files: FileSystem | Objects
    root: str

    def uri(self, *names: str) -> str:
        """A place in `_airflow_ft`."""
        return self.files.uri(self.root, OURS, *names)

    def path(self, uri: str) -> str:
        """A place in it, for people."""
        return self.files.hadoop_path(uri).removeprefix("file://")

    def published(self, number: int) -> str:
        """Return where the rows of a number are visible."""
        return self.files.uri(self.root, self.label(number))

    def label(self, number: int) -> str:
        """The name of that folder."""
        return f"{LABEL}={number:010}"

    # --- markers -------------------------------------------------------------------------------------------------

    def marker_uri(self, number: int) -> str:
        """Return the URI of a number's marker."""
        return self.uri("markers", f"{number:010}.json")

    def marker(self, number: int) -> Marker | None:
        """Return how the number was settled."""
        found = self._json(self.marker_uri(number))
        with damaged(self.path(self.marker_uri(number))):
            return None if found is None else Marker(**{**found, "outcome": Outcome(found["outcome"])})

    def write_marker(self, number: int, marker: Marker) -> Marker:
        """Create the number's marker, or find the existing one; returns it, durably."""
        with suppress(FileExistsError):
            self.files.write(self.marker_uri(number), sealed(asdict(marker)))
        self.files.sync_folders(self.uri("markers"), self.root)
        found = self.marker(number)
        if found is None:
            raise SinkUnavailableError(
                f"the marker of checkpoint {number} was removed.",
                code="changed_meanwhile",
                remedy="Retry.",
                number=number,
            )
        return found

    def markers(self, above: int) -> Iterator[tuple[int, Marker]]:
        """Those of higher numbers, ascending."""
        for number in self._numbers("markers"):
            marker = self.marker(number) if number > above else None
            if marker is not None:
                yield number, marker

    def newest(self) -> int:
        """The highest number with a marker; 0: there is none."""
        return max(self._numbers("markers"), default=0)

    def remove_marker(self, number: int) -> None:
        self.files.remove(self.marker_uri(number))

    def prune(self, floor: int) -> None:
        """Deletes the markers at or below `floor`."""
        for number in self._numbers("markers"):
            if number <= floor:
                self.remove_marker(number)

    # --- what is visible -----------------------------------------------------------------------------------------

    def visible(self, above: int = 0) -> list[int]:
        """Return higher numbers that have a folder, ascending. Any process may have created it."""
        if isinstance(self.files, Objects) and above:  # a store lists a thousand names at a time
            names: Iterable[str] = self.files.names_after(self.root, self.label(above))
        else:
            names = self.files.names(self.root)
        # By their length and text first: there may be very many that are older.
        size, label = len(self.label(above)), self.label(above)
        later = (name for name in names if len(name) > size or (len(name) == size and name > label))
        found = (int(match[1]) for match in map(_PUBLISHED.fullmatch, later) if match)
        return sorted(number for number in found if number > above)

    def manifest(self, folder: str) -> dict[str, Any] | None:
        """Return what a checkpoint's folder says of itself, visible or staged; None: nothing."""
        return self._json(self.files.uri(folder, OURS))

    def _numbers(self, folder: str) -> list[int]:
        matches = map(_VERSION.fullmatch, self.files.names(self.uri(folder)))
        return sorted(int(match[1]) for match in matches if match)

    def _json(self, uri: str) -> dict[str, Any] | None:
        try:
            data = self.files.read(uri)
        except WalCorruptError:  # there is none
            return None
        with damaged(self.path(uri)):
            return unsealed(data)


def checksum(content: Mapping[str, Any]) -> str:
    """Return the SHA-256 (hex) of what a file of ours says."""
    return hashlib.sha256(canonical_json(dict(content)).encode()).hexdigest()


def sealed(content: Mapping[str, Any]) -> bytes:
    """Return the bytes of a file of ours: JSON with its own checksum."""
    return canonical_json({**content, _CHECKSUM: checksum(content)}).encode()


def unsealed(data: bytes) -> dict[str, Any]:
    """Return what a file of ours says. ValueError: it is damaged."""
    found = json.loads(data)
    if not isinstance(found, dict):
        raise ValueError("it is not a JSON object")
    if found.pop(_CHECKSUM, None) != checksum(found):
        raise ValueError("it does not match its checksum")
    return found
