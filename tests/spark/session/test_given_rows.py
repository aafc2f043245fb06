"""DataFrames of the user's own session, which has its own settings."""

from datetime import UTC, date, datetime
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from airflow_ft.pipeline.given_rows import GivenRows
from airflow_ft.protocol.errors import JobError
from airflow_ft.wal.writer import SegmentFolder
from tests.raising import raises


def test_settings_of_the_session_change_no_values(spark: SparkSession, tmp_path: Path) -> None:
    session = spark.newSession()
    own = {
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MILLIS",
        "spark.sql.parquet.datetimeRebaseModeInWrite": "LEGACY",
    }
    for name, value in own.items():
        session.conf.set(name, value)
    session.conf.unset("spark.sql.parquet.writeLegacyFormat")
    frame = session.sql("SELECT TIMESTAMP'2026-11-24 00:00:00.123456Z' AS t, DATE'1500-01-01' AS d")
    [rows] = GivenRows(frame, ["s"]).open(SegmentFolder(str(tmp_path), "orders", 1, 1, 0)).values()
    [batch] = rows.batches()
    assert batch.to_pylist() == [{"t": datetime(2026, 11, 24, microsecond=123456, tzinfo=UTC), "d": date(1500, 1, 1)}]
    assert {name: session.conf.get(name) for name in own} == own
    assert session.conf.get("spark.sql.parquet.writeLegacyFormat", None) is None


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
