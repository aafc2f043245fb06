"""Schemas in DDL: Spark refuses what `check_ddl` refuses, and reads each type that it knows."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import types as T

from airflow_ft.protocol.ddl import TYPES, check_ddl
from tests.protocol.test_ddl import RIGHT, WRONG

pytestmark = pytest.mark.spark
MORE = {
    **dict.fromkeys(("char", "character", "varchar"), "(3)"),
    **dict.fromkeys(("geometry", "geography"), "(4326)"),
    **{"array": "<int>", "map": "<string, int>", "struct": "<a: int>", "interval": " day"},
}


@pytest.mark.parametrize("schema", WRONG)
def test_spark_refuses_it_too(spark: SparkSession, schema: str) -> None:
    with pytest.raises(PySparkException):
        T.StructType.fromDDL(schema)


@pytest.mark.parametrize("schema", [*RIGHT, *(f"c {kind}{MORE.get(kind, '')}" for kind in TYPES)])
def test_spark_reads_it(spark: SparkSession, schema: str) -> None:
    check_ddl(schema, "FileSource")
    T.StructType.fromDDL(schema)
