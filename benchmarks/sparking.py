"""A Spark session that writes what it is told to, by Spark's own writers. See `workers`."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.workers import ROOT, serve


@cache
def session() -> Any:
    """The session, made at the first command."""
    return builder("spark", "jdbc").getOrCreate()


def builder(*kinds: str) -> Any:
    """Of a session with these jars."""
    from pyspark.sql import SparkSession

    jars = sorted(str(jar) for kind in kinds for jar in (ROOT / ".local" / "jars" / kind).glob("*.jar"))
    return (
        SparkSession.builder.master(os.environ.get("BENCH_SPARK_MASTER", "local[2]"))
        .config("spark.jars", ",".join(jars))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "2g")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(Path.cwd() / "warehouse"))
        .config("spark.sql.shuffle.partitions", "4")
    )


def jdbc(source: str, **options: str) -> Mapping[str, Any]:
    """Appends the rows of a folder of Parquet files to a table, by Spark's JDBC writer."""
    spark, began = session(), time.monotonic()
    spark.read.parquet(source).write.format("jdbc").mode("append").options(**options).save()
    return {"seconds": time.monotonic() - began}


def kafka(source: str, topic: str, **options: str) -> Mapping[str, Any]:
    """Sends the columns key and value of a folder of Parquet files, by Spark's Kafka writer."""
    spark, began = session(), time.monotonic()
    named = {f"kafka.{name}": value for name, value in options.items()}
    spark.read.parquet(source).select("key", "value").write.format("kafka").options(**named, topic=topic).save()
    return {"seconds": time.monotonic() - began}


def files(source: str, target: str, format: str) -> Mapping[str, Any]:
    """Writes the rows of a folder of Parquet files as Parquet, CSV or JSON, so that nothing of them is lost."""
    whole = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"  # by default times lose digits, and texts their outer blanks
    options = {"timestampFormat": f"{whole}XXX", "timestampNTZFormat": whole, "escape": '"'}
    options |= dict.fromkeys(("ignoreLeadingWhiteSpace", "ignoreTrailingWhiteSpace"), "false")
    spark, began = session(), time.monotonic()
    spark.read.parquet(source).write.mode("error").format(format).options(
        **(options if format != "parquet" else {})
    ).save(target)
    return {"seconds": time.monotonic() - began}


def stage(source: str, root: str, pipeline: str, number: int) -> Mapping[str, Any]:
    """Writes the same rows into the write-ahead log, as the runner does for a micro-batch: sealed, unpublished."""
    from airflow_ft.protocol.model import RunKey
    from airflow_ft.spark.driver.job import Job
    from airflow_ft.spark.driver.staging import write_batch
    from airflow_ft.spark.request import FIXED_CONF, StageRequest

    spark = session()
    request = StageRequest(
        pipeline=pipeline, run=RunKey("bench", "1"), epoch=1, attempt=number, store_url="sqlite:///none", wal_root=root,
        job="benchmarks.job:Rows", sinks=("table",),
    )  # fmt: skip
    job = Job("benchmarks.job:Rows", {})
    for name, value in FIXED_CONF.items():
        if name.startswith("spark.sql."):
            spark.conf.set(name, value)
    began = time.monotonic()
    written = write_batch(request, job, spark.read.parquet(source), 0, number, {})
    between, used = time.monotonic(), time.process_time()
    segment = written.seal()
    return {
        "seconds": time.monotonic() - began,
        "sealing": time.monotonic() - between,
        "sealing_cpu": time.process_time() - used,
        "location": segment.location,
    }


def stream(
    source: Mapping[str, Any],
    folder: str,
    bootstrap: str = "",
    topic: str = "",
    jdbc: Mapping[str, str] | None = None,
    parquet: str = "",
) -> Mapping[str, Any]:
    """What is in a source goes in micro-batches, at least once, into each target that is named.

    source: path, files (of a micro-batch) and schema of Parquet; or topic and batch (records), whose values hold the
    columns of the table.
    """
    from benchmarks.job import columns

    spark, began = session(), time.monotonic()
    kafka = {"kafka.bootstrap.servers": bootstrap, "kafka.acks": "all"}
    if "topic" in source:
        options = {"subscribe": source["topic"], "startingOffsets": "earliest", "maxOffsetsPerTrigger": source["batch"]}
        rows = spark.readStream.format("kafka").options(**kafka, **options).load().select("key", "value")
    else:
        reader = spark.readStream.schema(source["schema"]).option("maxFilesPerTrigger", source["files"])
        rows = reader.parquet(source["path"])

    def write(frame: Any, _: int) -> None:
        assert jdbc is not None
        if topic:
            frame.persist()  # else the source would be read twice
        table = columns(frame) if "topic" in source else frame
        table.write.format("jdbc").mode("append").options(**jdbc).save()
        if topic:
            frame.write.format("kafka").options(**kafka, topic=topic).save()
            frame.unpersist()

    writer = rows.writeStream.option("checkpointLocation", folder).trigger(availableNow=True)
    if jdbc is not None:
        writer = writer.foreachBatch(write)
    elif parquet:
        writer = writer.format("parquet").option("path", parquet)
    else:
        writer = writer.format("kafka").options(**kafka, topic=topic)
    writer.start().awaitTermination()
    return {"seconds": time.monotonic() - began}


def ready() -> Mapping[str, Any]:
    """Starts the session; the seconds that took."""
    began = time.monotonic()
    version = session().version
    return {"seconds": time.monotonic() - began, "version": version}


def main() -> None:
    """Serves; or, given a file with one command, does just that: a cold job."""
    commands: dict[str, Callable[..., Mapping[str, Any]]] = {
        "jdbc": jdbc,
        "kafka": kafka,
        "files": files,
        "stage": stage,
        "stream": stream,
        "ready": ready,
    }
    if len(sys.argv) > 1:
        request = json.loads(Path(sys.argv[1]).read_text())
        commands[request.pop("command")](**request)
    else:
        serve(commands)
    session().stop()


if __name__ == "__main__":
    main()
