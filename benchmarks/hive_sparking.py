"""A Spark session that writes into a table of a Hive metastore, by `INSERT INTO`. See `workers`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import cache
from typing import Any

from benchmarks.sparking import builder
from benchmarks.workers import serve


@cache
def session(port: int) -> Any:
    """The session of a metastore, made at the first command."""
    uris = f"thrift://127.0.0.1:{port}"
    return builder().config("spark.hadoop.hive.metastore.uris", uris).enableHiveSupport().getOrCreate()


def insert(source: str, port: int, table: str, format: str) -> Mapping[str, Any]:
    """Inserts the rows of a folder of Parquet files into one partition of a new table."""
    spark = session(port)
    rows = spark.read.parquet(source)
    rows.createOrReplaceTempView("source")
    columns = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in rows.schema)
    spark.sql(f"CREATE TABLE {table} ({columns}) PARTITIONED BY (airflow_ft string) STORED AS {format}")
    began = time.monotonic()
    spark.sql(f"INSERT INTO {table} PARTITION (airflow_ft = 'spark') SELECT * FROM source")
    return {"seconds": time.monotonic() - began}


if __name__ == "__main__":
    serve({"insert": insert})
