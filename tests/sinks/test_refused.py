from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_ft.protocol.model import Segment
from airflow_ft.protocol.write_ahead_log import WalFile
from airflow_ft.sinks.base.keyed import key_text, null_keys
from airflow_ft.sinks.refused import Refused, declined


@pytest.mark.parametrize(
    ("location", "path"),
    [
        ("file:///wal/a%20%25/1-1/1", "/wal/a %/1-1/1/rows/a%20.parquet"),
        ("hdfs://nn:8020/wal/1-1/1", "hdfs://nn:8020/wal/1-1/1/rows/a%20.parquet"),
    ],
)
def test_a_refused_row_is_found_by_a_whole_path(location: str, path: str) -> None:
    rows = pa.record_batch({"id": pa.array([1, None], pa.int64())})
    segment, file = Segment(1, "", location, {"rows": 2}, 1), WalFile("rows/a%20.parquet", 2, 1, "")
    [(index, why)] = null_keys(rows, ["id"]).items()
    error = declined("rows", segment, file, index, why)
    assert (error.code, error.fields["path"]) == ("null_refused", path) and f"row 2 of {path}" in error.what
    assert ('read_table("/wal/a %/1-1/1/rows/a%20.parquet").slice(1, 1)' in error.remedy) == path.startswith("/")
    assert declined("rows", segment, file, index, "it is too long").code == "row_refused"


@pytest.mark.disk
@pytest.mark.parametrize("folder", ["wal", "o'brien", "a$HOME `x`", 'b "c" \\d'])
def test_the_command_that_shows_a_row_can_be_pasted(tmp_path: Path, folder: str) -> None:
    rows = pa.table({"id": [1, 2]})
    (tmp_path / folder).mkdir()
    pq.write_table(rows, tmp_path / folder / "a.parquet")
    segment = Segment(1, "", (tmp_path / folder).as_uri(), {"rows": 2}, 1)
    remedy = declined("rows", segment, WalFile("a.parquet", 2, 1, ""), 1, "no").remedy
    command = remedy.partition("run `")[2].removesuffix("`.").replace("python", sys.executable, 1)
    shown = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60)
    assert (shown.stdout, shown.stderr) == ("[{'id': 2}]\n", "")


def test_a_refused_row_is_named_by_the_rest_of_its_key() -> None:
    texts = pa.array([b"DE" * 100, None, b"\xff"], pa.binary()).view(pa.string())  # Spark checks no UTF-8
    far = pa.array([2**62] * 3, pa.int64()).cast(pa.timestamp("us"))  # beyond Python's years
    rows = pa.record_batch({"country": texts, "id": pa.array([None, None, 7], pa.int64()), "at": far})
    key = ["country", "id", "at"]
    assert key_text(rows, 0, key) == f"country '{'DE' * 30}', id NULL"
    assert key_text(rows, 1, key) == ""
    assert key_text(rows, 2, key) == "country '\ufffd', id 7"
    segment, file = Segment(1, "", "file:///wal/1", {"rows": 3}, 1), WalFile("a.parquet", 3, 1, "")
    assert (
        "row 1 of /wal/1/a.parquet, with the key country 'DE', id NULL: no."
        in declined("rows", segment, file, 0, "no", "country 'DE', id NULL").what
    )


def test_a_refused_row_does_not_keep_its_batch_in_memory() -> None:
    """One row of each piece would hold all of the segment in memory, which may have any size."""
    refused = Refused(cast("Any", None))
    segment, file = cast("Segment", None), cast("WalFile", None)
    before = pa.total_allocated_bytes()
    for number in range(20):
        batch = pa.record_batch({"text": pa.array(["x" * 1000] * 1000), "part": pa.array([{"n": number}] * 1000)})
        refused.add("rows", segment, file, 7, batch.slice(7, 1), "no")
        del batch
    assert refused.rows("rows") == 20
    assert pa.total_allocated_bytes() - before < 1_000_000
