"""How far a delivery has come is told while it takes long."""

from __future__ import annotations

import logging
from pathlib import Path

import pyarrow as pa
import pytest

from airflow_ft.protocol.delivery_progress import DELIVERY_PROGRESS, Taken
from airflow_ft.sinks.delivery_progress import EACH_SECONDS, ReportingWal
from airflow_ft.wal import open_wal
from airflow_ft.wal.writer import SegmentFolder, write_segment

ROWS = 300_000


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "airflow_ft.sinks.delivery_progress"]


@pytest.mark.parametrize("seconds", [EACH_SECONDS, 0.0], ids=["a slow sink", "a quick one"])
def test_a_slow_sink_tells_what_it_has_taken(tmp_path: Path, caplog: pytest.LogCaptureFixture, seconds: float) -> None:
    folder = SegmentFolder(str(tmp_path), "orders", 1, 1, 1)
    segment = write_segment(folder, 7, {"orders": pa.table({"id": range(ROWS)}), "copies": pa.table({"id": [1]})})
    now = [0.0]
    reader = ReportingWal(open_wal(), "shop", lambda: now[0]).open(segment)
    with caplog.at_level(logging.INFO):
        for _ in range(2):  # rows may be read twice: to be looked at, and to be sent
            caplog.clear()
            taken = []
            for file in reader.files("orders"):
                for batch in reader.batches("orders", file):
                    taken.append(batch.num_rows)
                    now[0] += seconds
            assert sum(taken) == ROWS and len(taken) > 1
            so_far = [sum(taken[: count + 1]) for count in range(len(taken))] if seconds else []
            if seconds:
                assert DELIVERY_PROGRESS.now("orders") == [Taken("orders", 7, "shop", "orders", ROWS, ROWS)]
            words = [f"checkpoint 7: shop has taken {rows:,} of 300,000 rows" for rows in so_far]
            assert [line.partition(" of orders")[0] for line in logged(caplog)] == words


def test_it_says_how_fast_it_goes_and_how_long_it_will_take(tmp_path: Path) -> None:
    folder = SegmentFolder(str(tmp_path), "bills", 1, 1, 1)
    segment = write_segment(folder, 7, {"bills": pa.table({"id": range(ROWS)})})
    now = [0.0]
    reader = ReportingWal(open_wal(), "shop", lambda: now[0]).open(segment)
    [file] = reader.files("bills")
    batches = reader.batches("bills", file)
    rows = next(batches).num_rows
    now[0] = EACH_SECONDS
    next(batches)
    [taken] = DELIVERY_PROGRESS.now("bills")
    assert (taken.rows, taken.rate) == (rows, rows / EACH_SECONDS)
    speed, left = rows / EACH_SECONDS, (ROWS - rows) * EACH_SECONDS / rows
    assert str(taken).endswith(f" rows of bills, {speed:,.0f} a second, {left:.0f} s left")
