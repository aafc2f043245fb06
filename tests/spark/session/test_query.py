"""Queries of one pipeline, one after the other in one session."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_ft.spark.driver.query import Query

pytestmark = [pytest.mark.sampled, pytest.mark.spark, pytest.mark.slow]
_STOP = "spark.sql.streaming.stopTimeout"


def _query(spark: SparkSession, folder: Path) -> Query:
    made = object.__new__(Query)
    fields = {
        "_frame": spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load(),
        "_job": SimpleNamespace(output_mode="append"),
        "_request": SimpleNamespace(pipeline="orders"),
        "_stopper": SimpleNamespace(query=None),
        "_queries": 0,
    }
    vars(made).update(fields, _location=SimpleNamespace(uri=f"file://{folder}"))
    return made


def test_a_query_waits_for_the_end_of_the_one_before(spark: SparkSession, tmp_path: Path) -> None:
    """Which may end later than `stop` waits for it."""
    made, begun, released = _query(spark, tmp_path), threading.Event(), threading.Event()

    def hangs(*_: Any) -> None:
        begun.set()
        released.wait(60)

    spark.conf.set(_STOP, "100ms")
    try:
        with pytest.raises(KeyError), made._running(hangs, made._location, processingTime="0 seconds"):
            assert begun.wait(60)
            raise KeyError
        assert [each.name for each in spark.streams.active] == ["orders"]
        threading.Timer(1.0, released.set).start()
        with made._running(lambda *_: None, made._location, availableNow=True) as query:
            assert query.awaitTermination(60)
    finally:
        spark.conf.unset(_STOP)
