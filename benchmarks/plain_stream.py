"""Spark's own Kafka writer, as a user has it: `python -m benchmarks.plain_stream`; JSON as standard input."""

from __future__ import annotations

import json
import sys
from typing import Any

from airflow_ft.spark.process import die_with_parent
from benchmarks.job import Distinct, Passing
from benchmarks.pipeline import SPARK_CONF, spark_jars


def main() -> None:
    """Copies what comes into one topic into another one, every so many seconds, until it is killed.

    With `state` each number once; else all records.
    """
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F

    given: dict[str, Any] = json.load(sys.stdin)
    die_with_parent()
    builder = SparkSession.builder.master("local[2]").config("spark.jars", ",".join(spark_jars()))
    for name, value in {**SPARK_CONF, **given["conf"]}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    kafka = {"kafka.bootstrap.servers": given["bootstrap"]}
    source = spark.readStream.format("kafka").options(subscribe=given["from"], startingOffsets="earliest", **kafka)
    rows = (Distinct() if given["state"] else Passing()).transform(spark, {"rows": source.load()})
    query = (
        rows.select(F.to_json(F.struct("n", "at")).alias("value"))
        .writeStream.format("kafka")
        .options(topic=given["to"], checkpointLocation=f"{given['folder']}/checkpoint", **kafka)
        .trigger(processingTime=f"{given['interval']} seconds")
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main()
