"""The rows of one transaction that a system refuses, on their way into the dead letters."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from airflow_ft.protocol.errors import DeclinedError, SinkAccessError
from airflow_ft.protocol.model import Segment
from airflow_ft.protocol.set_aside import REASONS, SetAside, together
from airflow_ft.protocol.write_ahead_log import DeadLetters, SegmentReader, WalFile
from airflow_ft.sinks.arrow import flags
from airflow_ft.wal.filesystem import is_remote
from airflow_ft.wal.local import local_path

MAX_ROWS = 10_000
MAX_BYTES = 256 << 20
"""More refused rows than this mean that the target is wrong, not the rows; and the proof names each of them."""


class OfTarget(str):
    """Why a row is refused, if a GRANT or a missing object of the target may be the cause."""

    __slots__ = ()


def require_rows_at_fault(reasons: Sequence[str], sink: str, table: str) -> None:
    """SinkAccessError where no row went in, and the target lacks the same for each: then none is set aside."""
    if reasons and all(isinstance(reason, OfTarget) for reason in reasons):
        raise SinkAccessError(
            f"table {table} refuses all rows, because a trigger or function of the table fails: {reasons[0]}",
            code="trigger_failed",
            remedy="Grant or create what the trigger needs, or disable it. The rows wait, and none was set aside.",
            sink=sink,
            table=table,
        )


@dataclass
class _Row:
    segment: Segment
    file: WalFile
    index: int  # in the file, from 0
    values: pa.RecordBatch
    reason: str


@dataclass
class Refused:
    """Collects refused rows of a transaction; call `write` before its commit. `label` distinguishes it from its
    siblings.
    """

    dead_letters: DeadLetters
    label: str = ""
    _rows: dict[str, list[_Row]] = field(default_factory=dict)
    _bytes: int = 0

    def add(self, sink: str, segment: Segment, file: WalFile, index: int, row: pa.RecordBatch, reason: str) -> None:
        """One row; DeclinedError when there are too many for single rows to be at fault."""
        row = row.take(pa.array([0]))  # a copy: a slice would hold the memory of all rows around it
        self._rows.setdefault(sink, []).append(_Row(segment, file, index, row, reason))
        self._bytes += row.nbytes
        if sum(map(len, self._rows.values())) > MAX_ROWS or self._bytes > MAX_BYTES:
            raise DeclinedError(
                f"the target refuses more than {MAX_ROWS:,} rows or {MAX_BYTES >> 20} MB, too many to set aside. The"
                f" last reason: {reason.rstrip('.')}.",
                code="too_many_refused",
                remedy="Correct the target so that it takes the rows, or the rows in the job.",
                sink=sink,
                limit_rows=MAX_ROWS,
                limit_bytes=MAX_BYTES,
            )

    def around(
        self,
        sink: str,
        segment: Segment,
        file: WalFile,
        first: int,
        rows: pa.RecordBatch,
        wrong: Mapping[int, str],
        put: Callable[[pa.RecordBatch], str],
    ) -> int:
        """Puts in what is not refused, in order, and adds the rest; returns how many went in.

        Row `first` of the file (from 0) is the first of `rows`. `wrong` are those that are not tried, by their place in
        `rows`, and why. `put` takes all of some rows and returns "", or takes none and says why. What it refuses is
        halved until single rows are refused: of two that exclude each other the first goes in.
        """
        taken, waiting = 0, [(0, rows.num_rows)]
        while waiting:
            start, stop = waiting.pop()
            part = rows.slice(start, stop - start)
            why = next((wrong[row] for row in range(start, stop) if row in wrong), "") if wrong else ""
            if not why and len(part):
                why = put(part)
            if not why:
                taken += len(part)
            elif len(part) == 1:
                self.add(sink, segment, file, first + start, part, why)
            else:
                middle = (start + stop) // 2
                waiting += [(middle, stop), (start, middle)]
        return taken

    def places(self, sink: str) -> set[tuple[int, str, int]]:
        """Segment, file and index in the file (from 0) of each row of a sink that was refused so far."""
        return {(row.segment.number, row.file.path, row.index) for row in self._rows.get(sink, ())}

    def rows(self, sink: str) -> int:
        """Return how many rows of a sink were refused so far."""
        return len(self._rows.get(sink, ()))

    def reasons(self, sink: str) -> list[str]:
        """Why each row of a sink was refused so far, as it was added."""
        return [row.reason for row in self._rows.get(sink, ())]

    def write(self) -> dict[str, SetAside]:
        """Write the dead letters, durably: one file a sink and segment. Returns their description for the proof."""
        found = []
        for sink, rows in self._rows.items():
            for number in sorted({row.segment.number for row in rows}):
                part = [row for row in rows if row.segment.number == number]
                name = "-".join(filter(None, (str(number), self.label)))
                uri = self.dead_letters.write(sink, name, _table(part))
                reasons = tuple(dict.fromkeys(row.reason for row in part))[:REASONS]
                found.append({sink: SetAside(len(part), (uri,), reasons, _places(part))})
        return together(found)


class NullFound(str):
    """Why a row is refused: it has NULL where none is allowed."""

    __slots__ = ()


def code_of(why: str) -> str:
    """Return the error's code for a row that is refused for this reason."""
    return "null_refused" if isinstance(why, NullFound) else "row_refused"


def path_of(segment: Segment, file: WalFile) -> str:
    """Return the whole path of a segment's file, to open it; a URI if the segment is not on a disk."""
    return f"{segment.location if is_remote(segment.location) else local_path(segment.location)}/{file.path}"


TO_SEE = " To see the row, run"
"""The start of a remedy's last sentence, which has a command that shows the row."""


def declined(sink: str, segment: Segment, file: WalFile, index: int, why: str, key: str = "") -> DeclinedError:
    """Return the error for the row of a file at this index (from 0). `key` describes the row's key."""
    path = path_of(segment, file)
    which = f", with the key {key}" if key else ""
    what = f"the target refuses row {index + 1} of {path}{which}: {why}."
    remedy = "Correct or replace such values in the job."
    if not is_remote(segment.location):
        show = f"print(read_table({json.dumps(path, ensure_ascii=False)}).slice({index}, 1).to_pylist())"
        command = shlex.quote(f"from pyarrow.parquet import read_table; {show}")
        remedy += f"{TO_SEE} `python -c {command}`."
    return DeclinedError(what, code=code_of(why), remedy=remedy, sink=sink, path=path)


Judge = Callable[[pa.RecordBatch], tuple[pa.RecordBatch, Mapping[int, str]]]
"""Rows of the log as the target gets them, and which of them it refuses: by position, and why."""


def has_rows(reader: SegmentReader, sink: str) -> bool:
    """Return whether a segment has files for the sink, with columns."""
    return sink in reader.sinks() and bool(reader.schema(sink).names) and bool(reader.files(sink))


def accepted(
    reader: SegmentReader, sink: str, file: WalFile, dead_letters: Refused | None, judge: Judge
) -> Iterator[pa.RecordBatch]:
    """The rows of a file as the target gets them, without those that are set aside.

    Without `dead_letters` DeclinedError for the first row that is refused.
    """
    first = 0
    for batch in reader.batches(sink, file):
        rows, wrong = judge(batch)
        if wrong and dead_letters is None:
            index, why = min(wrong.items())
            raise declined(sink, reader.segment, file, first + index, why)
        if wrong and dead_letters is not None:
            for index, why in sorted(wrong.items()):
                dead_letters.add(sink, reader.segment, file, first + index, batch.slice(index, 1), why)
            rows = _without(rows, wrong)
        yield rows
        first += batch.num_rows


def _without(rows: pa.RecordBatch, positions: Mapping[int, str]) -> pa.RecordBatch:
    keep = np.ones(rows.num_rows, np.bool_)
    keep[list(positions)] = False
    return rows.filter(flags(keep))


def _table(rows: list[_Row]) -> pa.Table:
    table = pa.Table.from_batches([row.values for row in rows])
    for name, values in (
        ("airflow_ft_reason", pa.array([row.reason for row in rows], pa.string())),
        ("airflow_ft_segment", pa.array([row.segment.number for row in rows], pa.int64())),
        ("airflow_ft_file", pa.array([row.file.path for row in rows], pa.string())),
        ("airflow_ft_row", pa.array([row.index + 1 for row in rows], pa.int64())),
    ):
        table = table.append_column(name, values)
    return table


def _places(rows: list[_Row]) -> tuple[tuple[int, str, int, int], ...]:
    """Neighbours are one place."""
    places: list[tuple[int, str, int, int]] = []
    for number, file, index in sorted((row.segment.number, row.file.path, row.index) for row in rows):
        if places and places[-1][:2] == (number, file) and places[-1][3] == index:
            places[-1] = (number, file, places[-1][2], index + 1)
        else:
            places.append((number, file, index, index + 1))
    return tuple(places)
