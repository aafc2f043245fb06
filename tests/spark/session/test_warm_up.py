"""What a standby driver does before it has a request."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from airflow_ft.spark.driver import speech
from airflow_ft.spark.driver.standby import warm_up


def settings(spark: SparkSession) -> dict[str, str]:
    return {name: str(value) for name, value in spark.conf.getAll.items()}


class Output(logging.Handler):
    """Keeps what the driver says."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def test_a_warm_up_leaves_nothing_behind(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = Output()
    monkeypatch.setattr(speech, "_outputs", [output])
    for name in ("airflow_ft.spark", "airflow_ft.spark.driver.publisher"):
        monkeypatch.setattr(logging.getLogger(name), "__class__", speech._Heard)
    before, asked = settings(spark), list[bool]()

    def is_over() -> bool:
        asked.append((tmp_path / "warm-up" / "wal").exists())
        return False

    try:
        warm_up(spark, tmp_path, is_over)
    finally:
        spark.sparkContext.setLogLevel("ERROR")  # as the other tests have it
    assert any(asked), "it has staged something"
    assert output.lines == []
    logging.getLogger("airflow_ft.spark").info("warm")
    assert output.lines == ["warm"]
    assert settings(spark) == before
    assert not spark.streams.active and not list(tmp_path.iterdir())
    assert logging.getLogger("airflow_ft.spark").isEnabledFor(logging.WARNING)
    assert SparkSession.getActiveSession() in (None, spark)
