from __future__ import annotations

from typing import Any, cast

import pyarrow as pa
import pytest

from airflow_ft.protocol.model import Segment
from airflow_ft.protocol.write_ahead_log import WalFile
from airflow_ft.sinks.base.keyed import null_keys
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
    assert declined("rows", segment, file, index, "it is too long").code == "row_refused"


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
