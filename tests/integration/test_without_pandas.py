"""A task that delivers does not import pandas, which would take a quarter of its time (`airflow_ft.sinks.arrow`)."""

import json
import subprocess
import sys
from dataclasses import asdict
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from airflow_ft.core.model import Plan
from airflow_ft.core.ports import ConnectionInfo
from airflow_ft.sinks.kafka import KafkaSink
from tests.conftest import TopicFactory
from tests.integration.kafka_world import World
from tests.sinks.mysql.world import each_way, make_world
from tools.servers import Database, Kafka

DELIVER = """
import json, sys
from benchmarks.delivering import deliver
order = json.load(sys.stdin)
counts = deliver(order["plan"], order["connection"])["counts"]
print(json.dumps([counts, [name for name in ("pandas", "pyspark", "sqlalchemy") if name in sys.modules]]))
"""
ROWS = pa.table(
    {
        "id": pa.array([1, 2], pa.int64()),
        "small": pa.array([1, None], pa.int8()),
        "name": ["a, \\ 'b'", None],
        "price": pa.array([Decimal("1.25"), None], pa.decimal128(12, 2)),
        "ratio": [0.5, None],
        "at": pa.array([datetime(2026, 1, 2, 3, 4, 5, 6, UTC), None], pa.timestamp("us", "UTC")),
        "day": pa.array([date(2026, 1, 2), None], pa.date32()),
        "yes": [True, None],
        "bytes": pa.array([b"\xff", None], pa.binary()),
        "many": pa.array([["x", None], None], pa.list_(pa.string())),
    }
)
TABLE = (
    "id BIGINT, small TINYINT, name VARCHAR(20), price DECIMAL(12,2), ratio DOUBLE, at DATETIME(6), day DATE,"
    " yes TINYINT, bytes VARBINARY(10), many JSON"
)


def deliver_in_a_process(plan: Plan, connection: ConnectionInfo) -> tuple[dict[str, int], list[str]]:
    order = json.dumps({"plan": plan.to_json(), "connection": asdict(connection)})
    done = subprocess.run([sys.executable, "-c", DELIVER], input=order, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    counts, imported = json.loads(done.stdout.splitlines()[-1])
    return counts, imported


@each_way
@pytest.mark.parametrize("strategy", ["local", "xa"])
def test_into_mysql(any_mysql_database: Database, way: str, strategy: str, tmp_path: Path) -> None:
    world = make_world(any_mysql_database, tmp_path, orders=TABLE).use(strategy)
    world.go_by(way)
    assert deliver_in_a_process(world.plan(orders=ROWS), world.connection()) == ({"orders": 2}, [])
    assert world.count() == 2


@pytest.mark.parametrize("strategy", ["transaction", "held"])
def test_into_kafka(kafka: Kafka, topic_factory: TopicFactory, strategy: str, tmp_path: Path) -> None:
    sinks = {"alerts": KafkaSink(topic=topic_factory(), conn_id="kafka_default", key="id", strategy=strategy)}
    world = World(tmp_path, kafka.bootstrap, sinks)
    rows = ROWS.drop_columns(["bytes"])
    plan = world.plan(1, world.segment(1, {"alerts": rows}))
    assert deliver_in_a_process(plan, world.connection) == ({"alerts": 2}, [])
