"""DataFrames of the user's own session, which has its own settings."""

from datetime import UTC, date, datetime
from pathlib import Path
from queue import Queue
from threading import Thread
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrameWriter, SparkSession

from airflow_ft.pipeline.given_rows import GivenRows
from airflow_ft.protocol.errors import JobError
from airflow_ft.spark.driver import staging
from airflow_ft.spark.driver.staging import fixed_conf
from airflow_ft.wal.writer import SegmentFolder
from tests.raising import raises

_CHECKSUM = "spark.sql.shuffle.orderIndependentChecksum.enabled"


def test_settings_of_the_session_change_no_values(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = spark.newSession()
    own = {
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MILLIS",
        "spark.sql.parquet.datetimeRebaseModeInWrite": "LEGACY",
        _CHECKSUM: "false",
    }
    write, used = DataFrameWriter.parquet, []

    def written(*given: Any, **named: Any) -> None:
        used.append(session.conf.get(_CHECKSUM))
        write(*given, **named)

    monkeypatch.setattr(DataFrameWriter, "parquet", written)
    for name, value in own.items():
        session.conf.set(name, value)
    session.conf.unset("spark.sql.parquet.writeLegacyFormat")
    frame = session.sql("SELECT TIMESTAMP'2026-11-24 00:00:00.123456Z' AS t, DATE'1500-01-01' AS d")
    [rows] = GivenRows(frame, ["s"]).open(SegmentFolder(str(tmp_path), "orders", 1, 1, 0)).values()
    [batch] = rows.batches()
    assert batch.to_pylist() == [{"t": datetime(2026, 11, 24, microsecond=123456, tzinfo=UTC), "d": date(1500, 1, 1)}]
    assert used == ["true"]
    assert {name: session.conf.get(name) for name in own} == own
    assert session.conf.get("spark.sql.parquet.writeLegacyFormat", None) is None


def test_threads_of_one_session_leave_its_settings(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second one would take our settings for those of the user. One with another session does not wait."""
    session, name = spark.newSession(), "spark.sql.parquet.outputTimestampType"
    session.conf.set(name, "TIMESTAMP_MILLIS")
    happened: Queue[str] = Queue()
    monkeypatch.setattr(staging.log, "info", lambda *_: happened.put("waits"))

    def enter(session: SparkSession) -> None:
        with fixed_conf(session, name):
            happened.put("entered")

    others = [Thread(target=enter, args=[each], daemon=True) for each in (session, spark.newSession())]
    with fixed_conf(session, name):
        for other, first in zip(others, ("waits", "entered"), strict=True):
            other.start()
            assert happened.get(timeout=30) == first
        assert happened.empty()
    for other in others:
        other.join(30)
    assert happened.get_nowait() == "entered" and session.conf.get(name) == "TIMESTAMP_MILLIS"


def test_a_plan_that_its_schema_refuses_is_our_error(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark Connect analyses a plan when its schema is read."""
    frame = spark.range(1)

    def missing(_: object) -> None:
        raise AnalysisException("a column is missing")

    monkeypatch.setattr(type(frame), "schema", property(missing))
    with raises(JobError, "job_failed", pipeline="orders", sink="s"):
        GivenRows(frame, ["s"]).open(SegmentFolder(str(tmp_path), "orders", 1, 1, 0))
