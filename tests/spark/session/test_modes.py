"""What a checkpointing mode means inside the driver. Streams are in tests/integration/test_at_most_once.py."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from airflow_ft import CheckpointConfig, SocketSource
from airflow_ft.protocol.errors import ConfigurationError, StageError
from airflow_ft.protocol.model import CheckpointingMode, RunKey, SparkPosition
from airflow_ft.spark.driver.inputs import Sources, _is_at_the_end, refuse_unfit
from airflow_ft.spark.driver.job_restarts import JobRestarts
from airflow_ft.spark.driver.publisher import PublishedCounts
from airflow_ft.spark.driver.sockets import Sockets
from airflow_ft.spark.request import StageRequest
from tests.raising import raises

pytestmark = pytest.mark.spark
MODES = {mode.value: mode for mode in CheckpointingMode}
SOCKET = SocketSource(host="localhost", port=9999)


def frames(spark: SparkSession, folder: Path) -> dict[str, DataFrame]:
    declared = Sources(spark, {"lines": SOCKET.to_json()}, {})
    own = spark.readStream.format("SOCKET").option("host", "localhost").option("port", 1).load()
    return {
        "declared": declared["lines"],
        "own": spark.readStream.format("rate").load().select("value").union(own.selectExpr("cast(value as bigint)")),
        "files": spark.readStream.text(str(folder)),
        "replayed rate": spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load(),
        "rate": spark.readStream.format("rate").load(),
    }


@pytest.mark.parametrize(
    ("mode", "source", "named"),
    [
        ("EXACTLY_ONCE", "declared", "'lines'"),
        ("AT_LEAST_ONCE", "own", "'source-1'"),
        ("AT_MOST_ONCE", "files", "'source-0'"),
        ("AT_MOST_ONCE", "replayed rate", "'source-0'"),
        ("EXACTLY_ONCE", "files", ""),
        ("AT_MOST_ONCE", "declared", ""),
        ("AT_MOST_ONCE", "own", ""),
        ("AT_MOST_ONCE", "rate", ""),
    ],
)
def test_a_query_that_the_mode_cannot_be_kept_with_is_refused(
    spark: SparkSession, tmp_path: Path, mode: str, source: str, named: str
) -> None:
    frame = frames(spark, tmp_path)[source]
    if not named:
        return refuse_unfit(frame, MODES[mode])
    with pytest.raises(ConfigurationError) as caught:
        refuse_unfit(frame, MODES[mode])
    assert named in caught.value.what


@pytest.mark.parametrize(
    ("options", "at_the_end"),
    [
        ({"subscribe": "t"}, True),
        ({"startingoffsets": "LATEST"}, True),
        ({"startingOffsets": "earliest"}, False),
        ({"startingOffsets": '{"t": {"0": 5}}'}, False),
        ({"startingTimestamp": "1"}, False),
        ({"startingOffsets": "latest", "StartingOffsetsByTimestamp": '{"t": {"0": 1}}'}, False),
    ],
)
def test_where_a_reader_of_kafka_begins(spark: SparkSession, options: dict[str, str], at_the_end: bool) -> None:
    jvm: Any = spark._jvm
    given = jvm.java.util.HashMap()
    for name, value in options.items():
        given.put(name, value)
    assert _is_at_the_end(jvm.org.apache.spark.sql.util.CaseInsensitiveStringMap(given)) == at_the_end


def test_an_at_most_once_attempt_starts_without_a_base(tmp_path: Path) -> None:
    def base_of(mode: CheckpointingMode) -> tuple[Any, bool, bool]:
        request = StageRequest(
            pipeline="orders",
            run=RunKey("d", "r"),
            epoch=1,
            attempt=2,
            store_url="sqlite:////nowhere",
            wal_root="/wal",
            job="jobs.orders",
            sinks=("orders",),
            base=SparkPosition("/wal/orders/spark/1-1", 7),
            base_is_clean=True,
            checkpointing=CheckpointConfig(mode=mode),
            streaming=True,
        )
        assert StageRequest.from_json(request.to_json()) == request
        no_participant: Any = None
        computes_again = JobRestarts(request, no_participant, PublishedCounts(), no_participant).expects_few
        return request.base, request.base_is_clean, computes_again

    assert base_of(CheckpointingMode.AT_MOST_ONCE) == (None, False, False)
    for mode in (CheckpointingMode.EXACTLY_ONCE, CheckpointingMode.AT_LEAST_ONCE):
        assert base_of(mode) == (SparkPosition("/wal/orders/spark/1-1", 7), True, True)


def test_a_closed_socket_ends_the_query_once_its_rows_are_read() -> None:
    threads = "[Thread[#1,main,5,main], Thread[#9,TextSocketSource(localhost, 9999),5,main]]"

    def sockets(living: str) -> Sockets:
        java_thread = SimpleNamespace(getAllStackTraces=lambda: SimpleNamespace(keySet=lambda: living))
        thread = SimpleNamespace(java=SimpleNamespace(lang=SimpleNamespace(Thread=java_thread)))
        spark: Any = SimpleNamespace(_jvm=thread)
        return Sockets(spark, {"lines": SOCKET, "own": None})

    reading = sockets(threads)
    reading.look(1)
    reading.require_open(9)
    closed = sockets("[Thread[#1,main,5,main]]")
    closed.look(1)
    closed.look(5)
    closed.require_open(1)  # lines that had come may not be read yet
    with raises(StageError, "socket_closed", source="lines"):
        closed.require_open(2)
