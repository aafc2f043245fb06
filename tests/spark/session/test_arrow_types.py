"""Spark's schemas as Arrow's: the same as what is read back from the Parquet files that Spark writes."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import types as t

from airflow_ft.spark.arrow_types import arrow_schema
from airflow_ft.spark.driver.types import refused
from airflow_ft.spark.request import FIXED_CONF

COLUMNS = {
    "a_boolean": "true",
    "a_byte": "1Y",
    "a_short": "1S",
    "an_int": "1",
    "a_long": "1L",
    "a_float": "1F",
    "a_double": "1D",
    "a_decimal": "cast(1 as decimal(5,2))",
    "a_large_decimal": "cast(1 as decimal(38,10))",
    "a_string": "'x'",
    "some_bytes": "X'01'",
    "a_date": "date'2024-02-29'",
    "a_timestamp": "timestamp'2024-02-29 12:00:00'",
    "without_a_zone": "timestamp_ntz'2024-02-29 12:00:00'",
    "a_time": "time'12:00:00.000250'",
    "a_rounded_time": "cast(time'12:00:00' as time(0))",
    "a_list": "array(1, null)",
    "a_struct": "named_struct('a', 1L, 'b', array('x'))",
    "a_map": "map('k', named_struct('v', 1.5BD))",
}


@pytest.mark.spark
def test_every_type_is_what_the_log_will_have(spark: SparkSession, tmp_path: Path) -> None:
    for name, value in FIXED_CONF.items():
        if name.startswith("spark.sql.parquet."):
            spark.conf.set(name, value)
    frame = spark.range(1).selectExpr(*(f"{value} as {name}" for name, value in COLUMNS.items()))
    frame.coalesce(1).write.parquet(str(tmp_path / "rows"))
    (file,) = (tmp_path / "rows").glob("*.parquet")
    written = pq.ParquetFile(file).schema_arrow.remove_metadata()
    found = arrow_schema(frame.schema.jsonValue())
    assert found is not None
    assert {field.name: field.type for field in found} == {field.name: field.type for field in written}


ARGUMENTS: dict[str, tuple[int, ...]] = {
    "CharType": (3,),
    "VarcharType": (3,),
    "GeometryType": (0,),
    "GeographyType": (4326,),
}
PLAIN = [kind for kind in vars(t).values() if isinstance(kind, type) and issubclass(kind, t.AtomicType)]


@pytest.mark.parametrize("kind", [kind for kind in PLAIN if not kind.__subclasses__()])
def test_each_type_is_refused_or_known(kind: type[t.DataType]) -> None:
    """A sink with a type that is not known is not judged before rows are computed."""
    schema = t.StructType([t.StructField("c", kind(*ARGUMENTS.get(kind.__name__, ())))])
    assert (arrow_schema(schema.jsonValue()) is None) == bool(list(refused(schema)))


@pytest.mark.parametrize("kind", ["interval day to second", "variant", "void", {"type": "udt", "sqlType": "binary"}])
def test_a_schema_with_a_type_that_is_not_known_is_not_guessed(kind: object) -> None:
    columns = [{"name": "n", "type": kind, "nullable": True, "metadata": {}}]
    assert arrow_schema({"type": "struct", "fields": columns}) is None
