from __future__ import annotations

from typing import Any, cast

import pyarrow as pa

from airflow_ft.protocol.model import Segment
from airflow_ft.protocol.write_ahead_log import WalFile
from airflow_ft.sinks.refused import Refused


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
