"""The micro-batch without data in which timers fire: what is written for it, and when nothing need come of it."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from airflow_ft.spark.state import timers
from airflow_ft.spark.state.locations import SparkLocation
from airflow_ft.wal.filesystem import filesystem

OFFSETS = {"batchWatermarkMs": 5, "batchTimestampMs": 6, "conf": {"spark.sql.shuffle.partitions": "4"}}


@pytest.fixture
def location(tmp_path: Path) -> SparkLocation:
    """One that ends at batch 3, behind which the watermark has moved on."""
    for log, line in (("offsets", OFFSETS), ("commits", {"nextBatchWatermarkMs": 700})):
        (tmp_path / "at" / log).mkdir(parents=True)
        rest = '\n{"logOffset":2}\n-' if log == "offsets" else ""
        (tmp_path / "at" / log / "3").write_text(f"v1\n{json.dumps(line)}{rest}")
    files = filesystem(str(tmp_path))
    return SparkLocation(files.uri(str(tmp_path)), "orders", files.uri(str(tmp_path), "at"), 3, "for a test")


def test_a_batch_is_begun_where_the_last_one_has_ended(location: SparkLocation, tmp_path: Path) -> None:
    assert timers.newest_batch(location.uri) == 3 and location.ends_at(3)
    before = int(1000 * time.time())
    timers.begin_batch(location, 3, timers.watermark(location, 3)[1])
    version, metadata, *offsets = (tmp_path / "at/offsets/4").read_text().split("\n")
    data = json.loads(metadata)
    assert (version, offsets) == ("v1", ['{"logOffset":2}', "-"])
    assert data["batchTimestampMs"] >= before
    assert {**data, "batchTimestampMs": 6} == {**OFFSETS, "batchWatermarkMs": 700}
    assert not location.ends_at(3), "whoever comes after a crash works in a copy"


def test_what_is_silent_for_long_or_behind_many_is_a_checkpoint() -> None:
    assert timers.may_be_silent(timers.SILENT, timers.WAITING)
    assert not timers.may_be_silent(timers.SILENT + 1, 0)
    assert not timers.may_be_silent(1, timers.WAITING + 1)
