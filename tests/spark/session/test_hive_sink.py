"""Spark reads, through the metastore, what the Hive sink has written. Both write into one table in turn."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_ft.clients import buckets
from airflow_ft.testing.world import World
from tests.sinks.hive.world import Table
from tests.spark.session.test_delta_sink import ROWS as DELTA_ROWS
from tests.wal.s3.conftest import connection_of
from tools.servers import Hive3, VersityGw
from tools.servers.base import installed
from tools.servers.hive import s3a

pytestmark = [pytest.mark.spark, pytest.mark.server, pytest.mark.slow, pytest.mark.release]
PARQUET = DELTA_ROWS.drop_columns(["local"])
AT = [-2_208_988_800_000_000, 1_700_000_000_000_250, None]
ORC = PARQUET.set_column(
    PARQUET.column_names.index("day"), "day", pa.array([-141_427, 2_932_896, None], pa.int32()).cast(pa.date32())
).set_column(PARQUET.column_names.index("at"), "at", pa.array(AT, pa.timestamp("us", "UTC")))
SPARK = """
import json, sys
from pyspark.sql import SparkSession, functions as F
port, path, day, more, one, other = sys.argv[1:]
builder = SparkSession.builder.master("local[1]").enableHiveSupport()
for name, value in {
    "spark.hadoop.hive.metastore.uris": f"thrift://127.0.0.1:{port}",
    "spark.hadoop.hive.exec.dynamic.partition.mode": "nonstrict",
    "spark.driver.memory": "700m", "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2", "spark.ui.enabled": "false", "spark.sql.session.timeZone": "UTC",
    "spark.sql.warehouse.dir": path + "/warehouse", "spark.log.level": "ERROR",
    "spark.driver.extraJavaOptions": "-Duser.timezone=Europe/Berlin", **json.loads(more),
}.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
rows = spark.table(one).drop("airflow_ft")
rows.orderBy("id").write.parquet(path + "/read")
where = [
    "id > 1", "at >= '2023-11-14 22:13:20.00025Z'", "isnan(float)", "text is null", "price >= 0.01",
    "text = repeat('ü', 40)", f"day = '{day}'", "int = 2147483647", "double = 'Infinity'"]
counts = [rows.where(each).count() for each in where]
mine = spark.table(one).where("airflow_ft = 'p/orders/1'").count()
for table in (one, other):
    (spark.table(table).where("id = 1").withColumn("id", F.expr("id + 100")).withColumn("airflow_ft", F.lit("others"))
        .write.insertInto(table))
    spark.sql(f"MSCK REPAIR TABLE {table} SYNC PARTITIONS")
spark.catalog.refreshTable(other)
texts = [[row[0], row[1]] for row in spark.table(other).groupBy("text").count().orderBy("text").collect()]
some = [spark.table(other).where(each).count() for each in ("text is null", "text = 'a/b'", "airflow_ft = 'others'")]
print(json.dumps([counts, mine, texts, some]))
"""


@pytest.mark.parametrize(("format", "rows", "day"), [("parquet", PARQUET, "0001-01-01"), ("orc", ORC, "1582-10-15")])
def test_spark_reads_every_type_and_writes_beside_it(
    hive3: Hive3, tmp_path: Path, format: str, rows: pa.Table, day: str
) -> None:
    one, other = Table(hive3, format=format), Table(hive3, format=format, partition_by=("text",))
    spark_reads_and_writes(one, other, tmp_path, rows, day, {})


@pytest.mark.parametrize(("format", "rows", "day"), [("parquet", PARQUET, "0001-01-01"), ("orc", ORC, "1582-10-15")])
def test_spark_reads_every_type_in_a_bucket(
    versitygw: VersityGw, servers_folder: Path, tmp_path: Path, format: str, rows: pa.Table, day: str
) -> None:
    store = s3a(versitygw)
    jars = ",".join(map(str, installed("s3a-jars", Path("jars/s3a")).glob("*.jar")))
    settings = {"spark.jars": jars, **{f"spark.hadoop.{name}": str(value) for name, value in store.items()}}
    buckets.resolve_with(lambda conn_id: connection_of(versitygw, conn_id))
    with Hive3(servers_folder / f"hive3-{format}", options=store) as server:
        place = f"s3a://{versitygw.bucket}/{format}"
        one = Table(server, place, format=format, aws_conn_id="lake")
        other = Table(server, place, format=format, aws_conn_id="lake", partition_by=("text",))
        spark_reads_and_writes(one, other, tmp_path, rows, day, settings)
    buckets.forget()


def spark_reads_and_writes(
    one: Table, other: Table, tmp_path: Path, rows: pa.Table, day: str, settings: Mapping[str, str]
) -> None:
    with closing(World(one, tmp_path / "one")) as world, closing(World(other, tmp_path / "other")) as divided:
        world.deliver(world.plan(rows))
        divided.deliver(divided.plan(pa.table({"id": [1, 2, 3, 4], "text": ["a/b", "ü %", None, "a/b"]})))
        names = [".".join(target.sink.identifier) for target in (one, other)]
        script = SPARK.replace("p/orders", f"{world.pipeline}/orders")
        done = subprocess.run(
            [sys.executable, "-c", script, str(one.server.port), str(tmp_path), day, json.dumps(settings), *names],
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        counts, mine, texts, some = json.loads(done.stdout.strip().splitlines()[-1])
        assert counts == [2, 1, 1, 1, 1, 1, 1, 1, 1]
        assert mine == 3
        assert texts == [[None, 1], ["a/b", 3], ["ü %", 1]]
        assert some == [1, 3, 1]
        read = pq.read_table(tmp_path / "read")
        assert list(map(str, read.select(rows.column_names).cast(rows.schema).to_pylist())) == list(
            map(str, rows.to_pylist())
        )
        world.deliver(world.plan(pa.table({"id": [4], "text": ["later"]})))
        divided.deliver(divided.plan(pa.table({"id": [5], "text": ["a/b"]})))
        assert (one.ids(), other.ids()) == ([1, 2, 3, 4, 101], [1, 2, 3, 4, 5, 101])
