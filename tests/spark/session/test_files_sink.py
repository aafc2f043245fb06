"""Spark reads what the files sink has written, in every format, and nothing of what is only prepared."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from tests.sinks.files.test_formats import FLAT, NESTED, RAW
from tests.sinks.files.world import folder_of, world_of

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("format", ["parquet", "csv", "json"])
def test_spark_reads_the_same(tmp_path: Path, format: str, spark: SparkSession) -> None:
    rows = {"parquet": RAW, "csv": FLAT, "json": NESTED}[format]
    rows = rows.append_column("country", pa.array(["DE", "a/b", None]))
    world = world_of(tmp_path, format=format, partition_by=("country",), success_file=True)
    for _ in range(2):
        world.deliver(world.plan(rows))
    world.prepare(world.plan(rows))
    columns = from_arrow_schema(rows.schema)
    schema = ", ".join(f"`{each.name}` {each.dataType.simpleString()}" for each in columns)
    # As docs/files.md says it; without nullValue Spark takes an empty text for NULL, too.
    reader = spark.read.options(header=True, multiLine=format == "csv", escape='"', nullValue="\0")
    found = reader.format(format).schema(f"{schema}, checkpoint bigint").load(str(folder_of(world).path))
    assert sorted(found.toArrow()["checkpoint"].to_pylist()) == [1, 1, 1, 2, 2, 2]
    one = found.where("checkpoint = 2").orderBy("id").select(*rows.schema.names)
    assert list(map(str, one.toArrow().to_pylist())) == list(map(str, rows.to_pylist()))


def test_spark_finds_the_columns_by_itself(tmp_path: Path, spark: SparkSession) -> None:
    world = world_of(tmp_path)
    for _ in range(2):
        world.deliver(world.plan())
    world.deliver(world.plan(pa.table({"id": [1000], "text": ["a"], "later": [1.5]})))
    found = spark.read.option("mergeSchema", True).parquet(str(folder_of(world).path))
    assert {each.name for each in found.schema} == {"id", "text", "later", "checkpoint"}
    assert found.where("checkpoint = 3").collect()[0].later == 1.5 and found.count() == 81


@pytest.mark.parametrize("compression", ["", "zstd"])  # adopted, and written anew
def test_spark_finds_nan_by_comparing(tmp_path: Path, compression: str, spark: SparkSession) -> None:
    """To Spark it is the largest number; bounds without it would have it pass the file by."""
    world = world_of(tmp_path, compression=compression)
    nan = float("nan")
    part = pa.array([{"x": 1.0}, {"x": nan}], pa.struct([("x", pa.float32())]))
    world.deliver(world.plan(pa.table({"id": [1, 2], "number": [1.0, nan], "part": part})))
    found = spark.read.parquet(str(folder_of(world).path))
    for where in ("number > 100", "number = double('NaN')", "part.x > 100", "number >= 1 and id = 2"):
        assert [row.id for row in found.where(where).collect()] == [2], where
