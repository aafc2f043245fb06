"""Real Spark, MariaDB and Kafka: what would not take the job's columns is told before anything is computed."""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import UnfitTargetError
from airflow_ft.protocol.model import RunKey
from airflow_ft.protocol.planning import plan_delivery
from airflow_ft.sinks.fitting import schema_problems
from airflow_ft.sinks.kafka.spec import KafkaSink
from airflow_ft.sinks.mysql.spec import MySqlSink
from airflow_ft.sources import FileSource
from airflow_ft.spark.fitting import Judge
from airflow_ft.spark.request import StageResult
from tests.integration.stage_world import PIPELINE, StageWorld, world
from tools.servers import Database, Kafka
from tools.servers.processes import free_port

pytestmark = [
    pytest.mark.sampled(among="Spark drivers"),
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(900),
]

Sinks = dict[str, Any]
SINKS: Sinks = {
    "orders": MySqlSink(table="orders", conn_id="shop"),
    "lines": MySqlSink(table="lines", conn_id="shop"),
    "copies": KafkaSink(topic="copies", conn_id="bus"),
}


@pytest.fixture
def pipeline(tmp_path: Path, sessions: Path) -> Iterator[StageWorld]:
    for made in world(tmp_path, sessions):
        made.add_file("one", [{"k": "a", "n": 1}, {"k": "b", "n": 2}])
        yield made


def connections(database: Database, kafka: Kafka | None) -> Callable[[str], ConnectionInfo]:
    """`kafka` None: nobody listens there."""
    server: Any = database.server
    shop = ConnectionInfo("shop", "mysql", server.host, server.port, server.user, server.password, database.name)
    brokers = kafka.bootstrap if kafka else f"127.0.0.1:{free_port()}"
    bus = ConnectionInfo("bus", "kafka", extra={"bootstrap.servers": brokers})
    return lambda conn_id: {"shop": shop, "bus": bus}[conn_id]


def judge(sinks: Sinks, found: Callable[[str], ConnectionInfo]) -> Judge:
    return partial(schema_problems, plan_delivery(sinks).participants, found)


def stage(pipeline: StageWorld, judging: Judge, run: str = "1", **more: Any) -> StageResult:
    numbers = FileSource(path=str(pipeline.input), schema="k string, n bigint")
    given = {"sinks": tuple(SINKS), "run": RunKey("orders", run), **more}
    request = pipeline.request("stage_jobs:Fitting", {"numbers": numbers}, **given)
    result = pipeline.stage(request, judge=judging)
    pipeline.store.end_stage(request.pipeline, request.epoch, request.run, result.position)
    return result


def test_all_unfit_targets_are_reported_before_the_computation(
    pipeline: StageWorld, mariadb_database: Database, kafka: Kafka, caplog: pytest.LogCaptureFixture
) -> None:
    """With a JVM that is kept: the stage that fails ends it, the two after it share one."""
    caplog.set_level(logging.INFO)
    topic = f"t-{uuid.uuid4().hex[:12]}"
    asking = judge({**SINKS, "copies": KafkaSink(topic=topic, conn_id="bus")}, connections(mariadb_database, kafka))
    mariadb_database.sql("CREATE TABLE orders (k INT, must INT NOT NULL) ENGINE=InnoDB")
    with pytest.raises(UnfitTargetError) as caught:
        stage(pipeline, asking)
    assert len(caught.value.fields["codes"]) == 6, "they came through another process"
    for words in (
        "sink 'orders', column 'n': .*orders",
        "sink 'orders', column 'call': .*orders",
        "column 'k': ",
        "must",
        "sink 'lines': .*lines",
        f"sink 'copies': .*'{topic}'",
    ):
        assert re.search(words, f"{caught.value}"), (words, f"{caught.value}")
    assert pipeline.checkpoints() == []
    assert mariadb_database.sql("SHOW TABLES") == [("orders",)], "neither ledger nor head"
    assert topic not in kafka.admin().list_topics(timeout=30).topics

    mariadb_database.sql("ALTER TABLE orders DROP must, ADD n BIGINT, ADD `call` INT, MODIFY k VARCHAR(9)")
    mariadb_database.sql("CREATE TABLE `lines` (k VARCHAR(9)) ENGINE=InnoDB")
    kafka.create_topic(topic, 1)
    try:
        assert stage(pipeline, asking).numbers == (1,)
        pipeline.add_file("two", [{"k": "c", "n": 3}])
        assert stage(pipeline, asking, run="2").numbers == (2,)
    finally:
        kafka.delete_topic(topic)
    assert [row["call"] for row in pipeline.all_rows()] == [1, 1, 1], "the first batch was the first call"
    assert sum("the job's columns fit connection shop" in line for line in caplog.messages) == 2


@pytest.mark.parametrize("how", ["looks", "hangs"])
def test_a_split_that_cannot_do_without_rows_is_no_obstacle(
    pipeline: StageWorld, mariadb_database: Database, how: str
) -> None:
    arguments = {"how": how, "marker": str(pipeline.folder / "marker")}
    assert stage(pipeline, judge(SINKS, connections(mariadb_database, None)), job_arguments=arguments).numbers == (1,)
    assert [row["call"] for row in pipeline.all_rows()] == [1, 1]
    said = "asks for isEmpty" if how == "looks" else "COLUMNS_NOT_JUDGED: .*longer than 10 s"
    assert len([line for line in pipeline.lines if re.search(said, line)]) == 1
    warnings = pipeline.store.warnings([PIPELINE]).get(PIPELINE, ())
    assert [warning.code for warning in warnings] == ([] if how == "looks" else ["COLUMNS_NOT_JUDGED"])


def test_rows_are_staged_while_sinks_are_away(
    pipeline: StageWorld, mariadb_database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    asked = connections(mariadb_database, None)

    def wrong(conn_id: str) -> ConnectionInfo:
        info = asked(conn_id)
        return ConnectionInfo("shop", "mysql", info.host, info.port, "nobody", "wrong") if conn_id == "shop" else info

    assert stage(pipeline, judge(SINKS, wrong)).numbers == (1,)
    said = [line for line in caplog.messages if "cannot be asked now" in line]
    assert len(said) == 2 and all(any(name in line for line in said) for name in ("connection shop", "connection bus"))
