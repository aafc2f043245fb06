"""Spark's own Kafka writer, as a user has it: `python -m benchmarks.plain_stream`; JSON as standard input."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_ft.spark.process import die_with_parent
from benchmarks.by_hand import Transactions
from benchmarks.job import Distinct, Passing
from benchmarks.pipeline import SPARK_CONF, spark_jars

if TYPE_CHECKING:
    from pyspark.sql.streaming.readwriter import DataStreamWriter


def main() -> None:
    """Copies what comes into one topic into another one, until it is killed.

    `interval`: every so many seconds. Without it: what is there, then what is there when the file `filled` is, and how
    long that took goes into the file `seconds`; in slices of `per_slice` records, if that is given.
    With `state` each number once; else all records. `by_hand`: in a transaction for each micro-batch.
    """
    given: dict[str, Any] = json.load(sys.stdin)
    die_with_parent()
    folder = Path(given["folder"])
    if given.get("interval") is not None:
        _writer(given).trigger(processingTime=f"{given['interval']} seconds").start().awaitTermination()
        return
    _writer(given).trigger(availableNow=True).start().awaitTermination()
    (folder / "warm").touch()
    while not (folder / "filled").exists():
        time.sleep(0.05)
    began = time.monotonic()
    _writer(given).trigger(availableNow=True).start().awaitTermination()
    took = folder / "took"
    took.write_text(str(time.monotonic() - began))
    took.rename(folder / "seconds")


def _writer(given: dict[str, Any]) -> DataStreamWriter:
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F

    builder = SparkSession.builder.master("local[2]").config("spark.jars", ",".join(spark_jars()))
    for name, value in {**SPARK_CONF, **given.get("conf", {})}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    kafka = {"kafka.bootstrap.servers": given["bootstrap"]}
    source = spark.readStream.format("kafka").options(subscribe=given["from"], startingOffsets="earliest", **kafka)
    if per_slice := given.get("per_slice"):
        source = source.option("maxOffsetsPerTrigger", per_slice)
    rows = (Distinct() if given.get("state") else Passing()).transform(spark, {"rows": source.load()})
    records = rows.select(F.to_json(F.struct("n", "at")).alias("value"))
    writer = records.writeStream.option("checkpointLocation", f"{given['folder']}/checkpoint")
    if given.get("by_hand"):
        return writer.foreachBatch(Transactions(given["bootstrap"], given["to"]))
    return writer.format("kafka").options(topic=given["to"], **kafka)


if __name__ == "__main__":
    main()
