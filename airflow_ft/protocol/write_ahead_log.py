"""The ports of the write-ahead log: published segments, their deletion, and dead letters."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from airflow_ft.protocol.model import Plan, Segment

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class ColumnStatistics:
    """Statistics of one column of one sink's rows in a segment, computed in the staging pass.

    `minimum` and `maximum` cover non-null, non-NaN values as `str()` of the Python value (numbers, decimals, ISO dates
    and times). They are None for types without order (binary, nested) or without values. `max_characters` and
    `max_bytes` (UTF-8) are set for strings, `max_bytes` for binary.
    """

    nulls: int
    minimum: str | None = None
    maximum: str | None = None
    max_characters: int | None = None
    max_bytes: int | None = None
    nans: int = 0
    infinities: int = 0


@dataclass(frozen=True, slots=True)
class WalFile:
    """A Parquet file of a segment: `path` relative to the segment's folder, size in bytes, SHA-256 (hex)."""

    path: str
    rows: int
    bytes: int
    sha256: str


class SegmentReader(Protocol):
    """Reads one published segment, verified against its manifest. Memory is bounded by a record batch."""

    @property
    def segment(self) -> Segment: ...

    def sinks(self) -> Sequence[str]: ...

    def schema(self, sink: str) -> pa.Schema: ...

    def files(self, sink: str) -> Sequence[WalFile]: ...

    def statistics(self, sink: str) -> Mapping[str, ColumnStatistics]: ...

    def batches(self, sink: str, file: WalFile) -> Iterator[pa.RecordBatch]:
        """The rows of one file in order. WalCorruptError when the file does not match its checksum."""


class Archive(Protocol):
    """Deletes unneeded files under the WAL root. Every method is repeatable."""

    def delete(self, segment: Segment) -> None:
        """Deletes a delivered segment's files; missing ones are no error."""

    def sweep(
        self, pipeline: str, keep: Collection[str], below_epoch: int, must_stop: Callable[[], bool] = lambda: False
    ) -> bool:
        """Delete attempt folders and Spark locations of epochs below `below_epoch` that are not (in) `keep`.

        Calls `must_stop` after each deletion. Returns False if that ended the sweep.
        """


class DeadLetters(Protocol):
    """Storage for the rows of one plan that a sink refuses after the decision, at a person's request."""

    def write(self, sink: str, label: str, rows: pa.Table) -> str:
        """Writes rows into a file and returns its URI when it survives a power cut. The same again: the same file."""

    def write_note(self, label: str, note: Mapping[str, Any]) -> str:
        """The same for plain JSON; returns a name, for a sink whose own memory has no room for all of it."""

    def read_note(self, name: str) -> Mapping[str, Any]:
        """Return what was written under that name; WalCorruptError when it is not there, or not that."""


class WalReader(Protocol):
    """Opens published segments."""

    def dead_letters(self, plan: Plan) -> DeadLetters:
        """The dead letters of this plan, beside its segments."""

    def open(self, segment: Segment) -> SegmentReader:
        """Reads and checks the manifest: its digest must be `segment.digest`, else WalCorruptError."""
