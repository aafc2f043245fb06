"""Slices of a delivery: every row in exactly one, in order, the same each time."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_ft.protocol.model import Segment
from airflow_ft.protocol.write_ahead_log import WalFile
from airflow_ft.sinks.base import slices
from airflow_ft.sinks.base.slices import divide
from airflow_ft.wal import open_wal
from airflow_ft.wal.writer import SegmentFolder, write_segment


class Rows:
    """A segment of several files whose rows are numbered throughout, in batches of seven."""

    def __init__(self, number: int, files: dict[str, Sequence[int]]) -> None:
        rows = {sink: sum(counts) for sink, counts in files.items()}
        self.segment = Segment(number, f"{number:064x}", f"file:///{number}", rows, 0)
        self._files = {
            sink: [WalFile(f"{sink}/part-{i}", count, 0, "") for i, count in enumerate(counts)]
            for sink, counts in files.items()
        }
        self.read = 0

    def sinks(self) -> list[str]:
        return list(self._files)

    def files(self, sink: str) -> list[WalFile]:
        return self._files[sink]

    def batches(self, sink: str, file: WalFile) -> Iterator[pa.RecordBatch]:
        for start in range(0, file.rows, 7):
            ids = [(self.segment.number, file.path, i) for i in range(start, min(start + 7, file.rows))]
            self.read += len(ids)
            yield pa.record_batch({"id": [repr(each) for each in ids]})


def rows_of(part: slices.Slice, opened: list[Any]) -> list[str]:
    found = []
    for reader in part.readers(opened):
        for sink in reader.sinks():
            for file in reader.files(sink):
                batches = list(reader.batches(sink, file))
                assert sum(batch.num_rows for batch in batches) == file.rows
                found += [value for batch in batches for value in batch.column(0).to_pylist()]
    return found


def test_every_row_is_in_one_slice_and_order_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "MIN_ROWS", 1)
    dice = random.Random(5)
    for _ in range(60):
        opened: list[Any] = [
            Rows(n, {sink: [dice.randint(0, 30) for _ in range(dice.randint(0, 4))] for sink in ("a", "b", "other")})
            for n in range(1, dice.randint(2, 5))
        ]
        whole = [
            value
            for reader in opened
            for sink in ("a", "b")
            for file in reader.files(sink)
            for batch in reader.batches(sink, file)
            for value in batch.column(0).to_pylist()
        ]
        branches = dice.randint(1, 32)
        parts = divide(opened, ["a", "b"], branches)
        assert parts == divide(opened, ["a", "b"], branches)
        assert len(parts) == max(1, min(branches, len(whole)))
        assert [value for part in parts for value in rows_of(part, opened)] == whole
        sizes = [sum(part.rows.values()) for part in parts]
        assert max(sizes) - min(sizes) <= 1


def test_few_rows_stay_together() -> None:
    assert len(divide([Rows(1, {"a": [slices.MIN_ROWS]})], ["a"], 4)) == 1  # type: ignore[list-item]
    assert len(divide([Rows(1, {"a": [3 * slices.MIN_ROWS]})], ["a"], 4)) == 3  # type: ignore[list-item]
    assert len(divide([Rows(1, {"a": []})], ["a"], 4)) == 1  # type: ignore[list-item]


def test_what_lies_behind_a_piece_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "MIN_ROWS", 1)
    rows = Rows(1, {"a": [700]})
    first, _ = divide([rows], ["a"], 2)  # type: ignore[list-item]
    rows_of(first, [rows])
    assert rows.read == 350


def test_slices_of_a_real_segment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "MIN_ROWS", 1)
    segment = write_segment(SegmentFolder(str(tmp_path), "orders", 1, 1, 1), 1, {"a": pa.table({"id": range(150_000)})})
    opened = [open_wal().open(segment)]
    parts = divide(opened, ["a"], 3)
    assert [value for part in parts for value in rows_of(part, opened)] == list(range(150_000))


def test_many_segments_are_found_in_linear_time() -> None:
    opened: list[Any] = [Rows(number, {"a": [1]}) for number in range(10_000)]
    begun = time.monotonic()
    [part] = divide(opened, ["a"], 1)
    assert sum(1 for _ in part.readers(opened)) == 10_000
    assert time.monotonic() - begun < 5
