"""Rows of a batch, as HBase gets them."""

from __future__ import annotations

import tempfile
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from airflow_ft import HBaseSink
from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import StorageUnavailableError
from airflow_ft.sinks.base.keyed import Chunk
from airflow_ft.sinks.hbase import packed
from airflow_ft.sinks.hbase.packed import PackedRows
from airflow_ft.sinks.hbase.participant import HBaseParticipant
from tests.raising import raises

SIZE = 10_000


def test_the_last_row_of_a_key_counts_in_memory_and_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "_IN_MEMORY", 10)
    rows = PackedRows()
    rows.add({b"a": b"1" * 5, b"b": b"2" * 5})
    assert rows._file is None
    rows.add({b"b": b"3" * 7, b"c": b"4"})
    rows.add({b"c": b"5" * 3, b"d": b""})
    assert dict(rows.items()) == {b"a": b"1" * 5, b"b": b"3" * 7, b"c": b"5" * 3, b"d": b""}
    assert (rows.get(b"a"), rows.get(b"c"), rows.get(b"e")) == (b"1" * 5, b"5" * 3, None)
    file: Any = rows._file
    del rows
    assert file.closed


def test_a_full_disk_is_not_reported_as_hbase(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "_IN_MEMORY", 0)
    rows = PackedRows()
    with Path("/dev/full").open("w+b", buffering=0) as full:
        monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: full)
        with raises(StorageUnavailableError, "file_system_failed", folder=tempfile.gettempdir()):
            rows.add({b"a": b"1"})


def test_memory_does_not_grow_with_the_size_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch has 10 MB, of which the log hands out half a MB at a time."""
    monkeypatch.setattr(packed, "_IN_MEMORY", 2_000_000)
    connection = ConnectionInfo("hbase", "hbase")
    sink = HBaseSink(table="orders", row_key="{id}", family="f")
    participant = HBaseParticipant("hbase", {"rows": sink}, sink.promise, connection, None)  # type: ignore[arg-type]
    in_arrow = []

    def chunks(count: int) -> Iterator[Chunk]:
        for first in range(0, count, 50):
            in_arrow.append(pa.total_allocated_bytes())
            rows = {"id": pa.array(range(first, first + 50)), "text": pa.array([bytes(SIZE)] * 50)}
            yield Chunk(first, "rows", pa.record_batch(rows), np.zeros(50, np.bool_), {})

    [_] = participant._packed(chunks(50))  # what it imports is in memory then
    tracemalloc.start()
    try:
        [(_, _, _, rows)] = participant._packed(chunks(1_000))
        keys = [key for key, row in rows.items() if len(row) > SIZE]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert keys == [b"%d" % key for key in range(1_000)]
    assert peak < 5_000_000 and max(in_arrow) - in_arrow[0] < 4_000_000
