"""What a standby driver does before it has a request."""

from __future__ import annotations

import logging
from pathlib import Path

from pyspark.sql import SparkSession

from airflow_ft.spark.driver.standby import warm_up


def settings(spark: SparkSession) -> dict[str, str]:
    return {name: str(value) for name, value in spark.conf.getAll.items()}


def test_a_warm_up_leaves_nothing_behind(spark: SparkSession, tmp_path: Path) -> None:
    before, asked = settings(spark), list[bool]()

    def is_over() -> bool:
        asked.append((tmp_path / "warm-up" / "wal").exists())
        return False

    try:
        warm_up(spark, tmp_path, is_over)
    finally:
        spark.sparkContext.setLogLevel("ERROR")  # as the other tests have it
    assert any(asked), "it has staged something"
    assert settings(spark) == before
    assert not spark.streams.active and not list(tmp_path.iterdir())
    assert logging.getLogger("airflow_ft.spark").isEnabledFor(logging.WARNING)
    assert SparkSession.getActiveSession() in (None, spark)
