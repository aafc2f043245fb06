"""Divide a delivery's rows among branches: by ranges of rows, the same each time, from the manifests alone.

A redelivery must find exactly the rows that a missing branch had, in whatever process and release it happens: the
rule below is part of the protocol. Change it under another setting of the sink only, never for plans that are stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from airflow_ft.protocol.model import Segment
from airflow_ft.protocol.write_ahead_log import SegmentReader, WalFile
from airflow_ft.sinks.view import SegmentView

if TYPE_CHECKING:
    import pyarrow as pa

MIN_ROWS = 5_000
"""Fewer rows than this are not worth a branch of their own."""


def label(branch: int) -> str:
    """Return what a branch (from 1) is called in markers and xids."""
    return f"{branch:04d}"


def labels(branches: int) -> list[str]:
    """The labels of all branches that there can be."""
    return [label(branch) for branch in range(1, branches + 1)]


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows `start` (from 0) to `stop` (exclusive) of one file."""

    segment: Segment
    sink: str
    file: WalFile
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Slice:
    """Rows of one branch: pieces in the order of the write-ahead log. `of` is how many branches there are."""

    label: str
    pieces: tuple[Piece, ...]
    of: int

    @property
    def rows(self) -> dict[str, int]:
        """Rows by sink."""
        return _rows(self.pieces)

    def readers(self, opened: Iterable[SegmentReader]) -> Iterator[SlicedSegment]:
        """Views of these segments that show this slice only; a segment without a piece is left out."""
        pieces: dict[tuple[int, str], list[Piece]] = {}  # by segment: a plan may have thousands of them
        for piece in self.pieces:
            pieces.setdefault(_key(piece.segment), []).append(piece)
        for reader in opened:
            if own := pieces.get(_key(reader.segment)):
                yield SlicedSegment(reader, own)


def _key(segment: Segment) -> tuple[int, str]:
    return segment.number, segment.location


def _rows(pieces: Iterable[Piece]) -> dict[str, int]:
    rows: dict[str, int] = {}
    for piece in pieces:
        rows[piece.sink] = rows.get(piece.sink, 0) + piece.stop - piece.start
    return rows


def divide(opened: Sequence[SegmentReader], sinks: Iterable[str], branches: int) -> list[Slice]:
    """At most `branches` slices of nearly the same number of rows, at least one (which may be empty)."""
    wanted = set(sinks)
    files = [
        (reader.segment, sink, file)
        for reader in opened
        for sink in reader.sinks()
        if sink in wanted
        for file in reader.files(sink)
        if file.rows
    ]
    total = sum(file.rows for _, _, file in files)
    count = max(1, min(branches, total // MIN_ROWS))
    cuts = [total * branch // count for branch in range(count + 1)]
    slices = []
    for branch in range(count):
        pieces, before = [], 0
        for segment, sink, file in files:
            start, stop = max(0, cuts[branch] - before), min(file.rows, cuts[branch + 1] - before)
            if start < stop:
                pieces.append(Piece(segment, sink, file, start, stop))
            before += file.rows
        slices.append(Slice(label(branch + 1), tuple(pieces), count))
    return slices


class SlicedSegment(SegmentView):
    """Only some pieces of a segment; its `segment` counts the rows of these."""

    def __init__(self, reader: SegmentReader, pieces: Sequence[Piece]) -> None:
        super().__init__(reader)
        self._pieces = {(piece.sink, piece.file.path): piece for piece in pieces}
        self._segment = replace(reader.segment, rows=_rows(pieces))

    @property
    def segment(self) -> Segment:
        return self._segment

    def sinks(self) -> Sequence[str]:
        return [sink for sink in self._reader.sinks() if sink in self._segment.rows]

    def files(self, sink: str) -> Sequence[WalFile]:
        found = (self._pieces.get((sink, file.path)) for file in self._reader.files(sink))
        return [replace(piece.file, rows=piece.stop - piece.start) for piece in found if piece is not None]

    def first_row(self, sink: str, file: WalFile) -> int:
        """Return which row of the file (from 0) is the first one that is shown."""
        return self._pieces[sink, file.path].start

    def batches(self, sink: str, file: WalFile) -> Iterator[pa.RecordBatch]:
        """The piece's rows. The file's checksum is verified before the first; its end is not read if not needed."""
        piece = self._pieces[sink, file.path]
        first = 0
        for batch in self._reader.batches(sink, piece.file):
            start, stop = max(0, piece.start - first), min(batch.num_rows, piece.stop - first)
            first += batch.num_rows
            if start < stop:
                yield batch.slice(start, stop - start)
            if first >= piece.stop and piece.stop < piece.file.rows:
                return
