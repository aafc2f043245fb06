"""A Spark session that writes into a Delta table, by Spark's Delta. See `workers`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import cache
from typing import Any

from benchmarks.sparking import builder
from benchmarks.workers import serve


@cache
def session() -> Any:
    """The session, made at the first command."""
    return (
        builder("delta")
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
        .getOrCreate()
    )


def append(source: str, target: str) -> Mapping[str, Any]:
    """Appends the rows of a folder of Parquet files to a Delta table."""
    spark = session()
    began = time.monotonic()
    spark.read.parquet(source).write.format("delta").mode("append").save(target)
    return {"seconds": time.monotonic() - began}


if __name__ == "__main__":
    serve({"append": append})
