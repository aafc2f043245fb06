"""What delivers does not import pandas, which would take a quarter of its time (`airflow_ft.sinks.arrow`).

And nothing else of weight where its process is forked from one with `airflow_ft.operators.preload`.
"""

import json
import subprocess
import sys
from dataclasses import asdict
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.model import Plan
from airflow_ft.sinks.kafka import KafkaSink
from airflow_ft.testing.world import SINK
from airflow_ft.testing.world import World as PostgresWorld
from tests.conftest import TopicFactory
from tests.integration.kafka_world import World
from tests.sinks.mysql.world import each_way, make_world
from tests.sinks.postgres.world import Table
from tools.servers import Database, Kafka

DELIVER = """
import json, sys
order = json.load(sys.stdin)
if order["preload"]:
    import airflow_ft.operators.preload
from benchmarks.delivering import deliver
before = set(sys.modules)
counts = deliver(order["plan"], order["connection"])["counts"]
new = set(sys.modules) - before
heavy = new & {"pandas", "pyspark", "sqlalchemy"}
packages = ("airflow_ft", "pyarrow", "numpy", "pymysql", "psycopg2", "confluent_kafka", "kafka")
print(json.dumps([counts, sorted(heavy), sorted(name for name in new if name.partition(".")[0] in packages)]))
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


def deliver_in_a_process(plan: Plan, connection: ConnectionInfo, preload: bool) -> tuple[dict[str, int], list[str]]:
    """What was counted, and the modules that should not have been imported."""
    order = json.dumps({"plan": plan.to_json(), "connection": asdict(connection), "preload": preload})
    done = subprocess.run([sys.executable, "-c", DELIVER], input=order, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    counts, heavy, imported = json.loads(done.stdout.splitlines()[-1])
    assert preload or "airflow_ft.wal.reader" in imported  # else this would find nothing
    return counts, [*heavy, *(imported if preload else ())]


@each_way
@pytest.mark.parametrize("preload", [False, True])
@pytest.mark.parametrize("strategy", ["local", "xa"])
def test_into_mysql(any_mysql_database: Database, way: str, strategy: str, preload: bool, tmp_path: Path) -> None:
    world = make_world(any_mysql_database, tmp_path, orders=TABLE).use(strategy)
    world.go_by(way)
    assert deliver_in_a_process(world.plan(orders=ROWS), world.connection(), preload) == ({"orders": 2}, [])
    assert world.count() == 2


@pytest.mark.parametrize("preload", [False, True])
@pytest.mark.parametrize("strategy", ["local", "prepared", "upsert"])
def test_into_postgres(postgres_database: Database, strategy: str, preload: bool, tmp_path: Path) -> None:
    ddl = (
        "CREATE TABLE orders (id bigint PRIMARY KEY, small smallint, name char(20), price numeric(12,2), ratio float8,"
        " at timestamptz, day date, yes boolean, bytes bytea, many varchar(5)[], version bigint)"
    )
    by_key = {"key_columns": ["id"], "version_column": "version"} if strategy == "upsert" else {}
    world = PostgresWorld(Table(postgres_database, ddl, strategy=strategy, **by_key), tmp_path)
    plan = world.plan(ROWS)
    assert deliver_in_a_process(plan, world.target.connection, preload) == ({SINK: 2}, [])
    assert world.target.ids() == [1, 2]


@pytest.mark.parametrize("preload", [False, True])
@pytest.mark.parametrize("strategy", ["transaction", "held"])
def test_into_kafka(kafka: Kafka, topic_factory: TopicFactory, strategy: str, preload: bool, tmp_path: Path) -> None:
    sinks = {"alerts": KafkaSink(topic=topic_factory(), conn_id="kafka_default", key="id", strategy=strategy)}
    world = World(tmp_path, kafka.bootstrap, sinks)
    rows = ROWS.drop_columns(["bytes"])
    plan = world.plan(1, world.segment(1, {"alerts": rows}))
    assert deliver_in_a_process(plan, world.connection, preload) == ({"alerts": 2}, [])
