"""Columns of Parquet and ORC files are read as a type that holds all of their values, or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_ft.protocol.errors import JobError
from airflow_ft.sources import FileSource
from airflow_ft.spark.driver import file_types
from airflow_ft.spark.driver.failures import as_error
from airflow_ft.spark.driver.inputs import Sources
from tests.raising import raises

pytestmark = pytest.mark.spark
IN_FILES = (
    "cast(200 as int) i, cast(5000000000 as bigint) l, 0.1D d, cast(0.5 as float) f, 2.555BD c, 'x' s,"
    " timestamp_ntz'2024-05-01 12:00:00' n, date'2024-05-01' at,"
    " array(200) a, named_struct('i', 200) o, map('k', 200) m"
)
WRONG = {
    "i tinyint": "i is int but declared tinyint",
    "I smallint": "I is int but declared smallint",
    "i float": "i is int",
    "i date": "i is int",
    "i decimal(5,2)": "i is int",
    "i string": "i is int",
    "l int": "l is bigint",
    "l double": "l is bigint",
    "l timestamp": "l is bigint",
    "d float": "d is double",
    "d int": "d is double",
    "c decimal(12,2)": "c is decimal(4,3) but declared decimal(12,2)",
    "c decimal(3,3)": "c is decimal",
    "c double": "c is decimal",
    "s int": "s is string",
    "n date": "n is timestamp_ntz",
    "at timestamp": "at is date",
    "a array<tinyint>": "a is array<int>",
    "o struct<i:tinyint>": "o is struct<i:int>",
    "m map<string,tinyint>": "m is map<string,int>",
}


@pytest.fixture(scope="module", params=["parquet", "orc"])
def files(spark: SparkSession, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("types") / str(request.param)
    spark.sql(f"SELECT {IN_FILES}").write.format(folder.name).save(str(folder))
    return folder


def _rows(spark: SparkSession, folder: Path, schema: str) -> list[tuple[Any, ...]]:
    source = FileSource(path=str(folder), format=folder.name, schema=schema)
    frame = Sources(spark, {"orders": source.to_json()}, {}).static("orders")
    return [tuple(row) for row in frame.collect()]


def test_a_type_that_could_change_values_is_refused(spark: SparkSession, files: Path) -> None:
    for schema, expected in WRONG.items():
        with raises(JobError, "file_types_unfit") as caught:
            _rows(spark, files, schema)
        assert caught.error and "cast" in caught.error.remedy
        (column,) = caught.error.fields["columns"]
        assert column.startswith(expected)


def test_the_same_types_and_wider_ones_are_read(spark: SparkSession, files: Path) -> None:
    schema = "i bigint, f double, c decimal(20,3), s string, missing int, a array<int>, o struct<i:bigint, more:int>"
    ((i, f, c, s, missing, a, o),) = _rows(spark, files, schema)
    assert (i, f, str(c), s, missing, a, tuple(o)) == (200, 0.5, "2.555", "x", None, [200], (200, None))


def test_files_that_differ_are_judged_one_by_one(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, wider = tmp_path / "other" / "parquet", tmp_path / "wider" / "parquet"
    for kinds, folder in ((("int", "string"), other), (("int", "bigint"), wider)):
        for kind in kinds:
            spark.sql(f"SELECT cast(1 as {kind}) i").coalesce(1).write.mode("append").parquet(str(folder))
    with raises(JobError, "file_types_unfit", columns=["i is string but declared int"]):
        _rows(spark, other, "i int")
    assert [tuple(row) for row in _rows(spark, wider, "i bigint")] == [(1,), (1,)]
    with raises(JobError, "file_types_unfit", columns=["i is bigint but declared int"]):
        _rows(spark, wider, "i int")
    monkeypatch.setattr(file_types, "MOST_FILES", 1)
    with raises(JobError, "file_types_unfit", files=2):
        _rows(spark, wider, "i bigint")


def test_a_null_where_none_is_declared_fails_and_names_the_file(spark: SparkSession, files: Path) -> None:
    schema = "i int NOT NULL, missing int"
    assert _rows(spark, files, schema) == [(200, None)]
    with pytest.raises(Exception) as caught:
        _rows(spark, files, "i int NOT NULL, missing int NOT NULL")
    error = as_error(caught.value, "orders", "jobs.orders")
    assert isinstance(error, JobError) and error.code == "file_malformed"
    assert error.fields["path"].startswith(f"file://{files}/part-") and "NOT NULL" in error.remedy
