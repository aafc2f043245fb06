"""Spark's Delta reads what the Delta sink has written. Both write into one table in turn."""

from __future__ import annotations

import datetime as dt
import decimal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from tests.sinks.delta.world import table_of, world_of

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.sampled(among="Spark drivers")]
JARS = Path(__file__).parents[3] / ".local" / "jars" / "delta"
ROWS = pa.table(
    {
        "id": pa.array([1, 2, 3], pa.int64()),
        "text": ["a", "ü" * 40, None],
        "byte": pa.array([-128, 127, None], pa.int8()),
        "short": pa.array([-32768, 32767, None], pa.int16()),
        "int": pa.array([-(2**31), 2**31 - 1, None], pa.int32()),
        "float": pa.array([0.5, float("nan"), None], pa.float32()),
        "double": pa.array([-0.0, float("inf"), None], pa.float64()),
        "flag": [True, False, None],
        "bytes": pa.array([b"\x00\xff", b"", None], pa.binary()),
        "price": pa.array([decimal.Decimal("-99999999.99"), decimal.Decimal("0.01"), None], pa.decimal128(10, 2)),
        "large": pa.array([decimal.Decimal(10**37), decimal.Decimal(-1), None], pa.decimal128(38, 0)),
        "day": pa.array([dt.date(1, 1, 1), dt.date(9999, 12, 31), None]),
        "at": pa.array([-1, 1_700_000_000_000_250, None], pa.timestamp("us", "UTC")),
        "local": pa.array([-1, 1_700_000_000_000_250, None], pa.timestamp("us")),
        "list": pa.array([[1, None], [], None], pa.list_(pa.int32())),
        "map": pa.array([[("k", 1.5)], [], None], pa.map_(pa.string(), pa.float64())),
        "parts": pa.array([{"a": 1, "b": ["x"]}, {"a": None, "b": None}, None],
                          pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))])),
    }
)  # fmt: skip

SPARK = """
import glob, json, sys
from pyspark.sql import SparkSession
path, doing = sys.argv[1:3]
builder = SparkSession.builder.master("local[1]")
for name, value in {
    "spark.jars": ",".join(glob.glob(sys.argv[3] + "/*.jar")),
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.driver.memory": "700m", "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2", "spark.databricks.delta.snapshotPartitions": "2",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",  # else VACUUM lists by 10,000 tasks
    "spark.ui.enabled": "false", "spark.sql.session.timeZone": "UTC", "spark.sql.warehouse.dir": path + ".warehouse",
    "spark.databricks.delta.retentionDurationCheck.enabled": "false", "spark.log.level": "ERROR",
}.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
exec(doing)
"""
READ = "spark.read.format('delta').load(path)"


def spark(world: object, doing: str) -> str:
    """What a Spark of its own prints at last."""
    path = table_of(world).path  # type: ignore[arg-type]
    done = subprocess.run(
        [sys.executable, "-c", SPARK, str(path), doing, str(JARS)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, [
        line for line in done.stderr.splitlines() if "Caused" in line or "Error" in line or "Exception" in line
    ][:12]
    return done.stdout.strip().splitlines()[-1]


def test_spark_reads_every_type_and_passes_files_by_their_bounds(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    for first in (0, 100):
        ids = pa.array([first + 1, first + 2, first + 3], pa.int64())
        world.deliver(world.plan(ROWS.set_column(0, "id", ids)))
    doing = f"""
from pyspark.sql import functions as F
rows = {READ}
rows.where("id < 50").drop("local").orderBy("id").write.mode("overwrite").parquet(path + ".read")
rows.where("id < 50").select("id", F.col("local").cast("string")).write.mode("overwrite").parquet(path + ".local")
found = {{
    "skips": [len(rows.where(where).inputFiles()) for where in (
        "id > 50", "day > '9999-12-30'", "price > 0", "at > '2023-11-14 22:13:20.000249Z'", "id > 500")],
    "counts": [rows.where(where).count() for where in (
        "at >= '2023-11-14 22:13:20.00025Z'", "isnan(float)", "local < '1970-01-01'", "text is null", "price >= 0.01",
        "text = repeat('ü', 40)", "day = '0001-01-01'", "int = 2147483647", "double = 'Infinity'")],
    "least": rows.selectExpr("min(id)", "max(id)", "count(*)").first()[:],
}}
print(json.dumps(found))
"""
    assert spark(world, doing) == (
        '{"skips": [1, 2, 2, 2, 0], "counts": [2, 2, 2, 2, 2, 2, 2, 2, 2], "least": [1, 103, 6]}'
    )
    import pyarrow.parquet as pq

    read = pq.read_table(str(tmp_path / "orders.read"))
    wanted = ROWS.drop_columns(["local"]).sort_by("id")
    assert list(map(str, read.cast(wanted.schema).to_pylist())) == list(map(str, wanted.to_pylist()))
    assert sorted(pq.read_table(str(tmp_path / "orders.local"))["local"].to_pylist(), key=str) == [
        "1969-12-31 23:59:59.999999", "2023-11-14 22:13:20.00025", None]  # fmt: skip


def test_spark_appends_puts_together_and_cleans_up_beside_it(tmp_path: Path) -> None:
    """Its OPTIMIZE, VACUUM and checkpoints of the log lose neither rows nor what the table remembers."""
    world = world_of(tmp_path, partition_by=("text",), schema_evolution=True)
    rows = pa.table({"id": [1, 2, 3, 4], "text": ["a/b", "ü %", None, "a/b"]})
    world.deliver(world.plan(rows))
    doing = f"""
spark.range(100, 103).selectExpr("id", "'x=y' text").write.format("delta").mode("append").save(path)
spark.sql(f"ALTER TABLE delta.`{{path}}` SET TBLPROPERTIES ('delta.checkpointInterval' = '1')")
spark.sql(f"OPTIMIZE delta.`{{path}}`")
spark.sql(f"VACUUM delta.`{{path}}` RETAIN 0 HOURS")
print(json.dumps(sorted([str(row[0]), row[1]] for row in {READ}.groupBy("text").count().collect())))
"""
    found = spark(world, doing)
    assert found == '[["None", 1], ["a/b", 2], ["x=y", 3], ["\\u00fc %", 1]]'
    newest = max((tmp_path / "orders" / "_delta_log").glob("*.json"))
    for commit in (tmp_path / "orders" / "_delta_log").glob("*.json"):  # as log cleanup does after 30 days
        if commit != newest:
            commit.unlink()
    world.deliver(world.plan(pa.table({"id": [5], "text": ["a/b"], "more": [1.5]})))
    assert table_of(world).ids() == [1, 2, 3, 4, 5, 100, 101, 102]
    assert spark(world, f"print({READ}.selectExpr('sum(more)', 'count(*)').first()[:])") == "(1.5, 8)"
