"""A driver that starts without a request: it warms up, and waits until it gets one.

It knows Spark's settings and nothing of the pipeline's decision log, write-ahead log, checkpoint location, epoch or
connections. All of these are in the request, which the task writes when the driver before has ended and the next epoch
is taken. From there on it is a driver as any other.

What if the process dies ...
- before it has the request: the task starts a driver as usual.
- afterwards: as any driver. The task that it waits for takes it along (`spark.process`).
"""

from __future__ import annotations

import importlib
import json
import logging
import shutil
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_ft.protocol.config import CheckpointConfig
from airflow_ft.protocol.lease import Worker, new_epoch
from airflow_ft.protocol.model import RunKey
from airflow_ft.sources import FileSource
from airflow_ft.spark.driver import runner
from airflow_ft.spark.driver.runner import Attempt
from airflow_ft.spark.driver.session import start_session
from airflow_ft.spark.driver.speech import silence, speak
from airflow_ft.spark.private import PROPERTIES
from airflow_ft.spark.process import die_with_parent
from airflow_ft.spark.request import StageRequest
from airflow_ft.spark.session.submit import END, READY, REQUEST, RESULT
from airflow_ft.store import open_store
from airflow_ft.store.url import sqlite_url

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_LOOK_SECONDS = 0.02

log = logging.getLogger("airflow_ft.spark")

_NAME, _SINK = "warm-up", "rows"
_CHECKPOINTS, _ROWS = 4, 100
_LOOK_AT_LOG_SECONDS = 0.05


def main(folder: str, master: str) -> int:
    """Warm up, wait for the request in `folder`, and run it as `runner.main` does; the exit code of the process."""
    die_with_parent()
    speak(sys.stdout)
    request = Path(folder) / REQUEST
    spark = start_session(master, None)
    (Path(folder) / PROPERTIES).unlink(missing_ok=True)
    try:
        warm_up(spark, Path(folder), request.exists)
    except Exception as error:
        log.warning("the standby driver could not warm up: %s", error)
    log.info(READY)
    while not request.exists():
        time.sleep(_LOOK_SECONDS)
    importlib.invalidate_caches()  # the job may be newer than this process
    return runner.main(folder)


class Counts:
    """The job of the warm-up: it parses JSON, keeps state, and divides its rows."""

    output_mode = "update"

    def transform(self, spark: SparkSession, sources: Any) -> DataFrame:
        """Count rows by key."""
        from pyspark.sql import functions as F

        frame: DataFrame = sources["rows"]
        record = F.from_json("value", "n bigint, at double, name string").alias("r")
        rows = frame.select(record).select("r.n", F.timestamp_seconds("r.at").alias("at"), "r.name")
        counts = rows.where("n >= 0").groupBy((F.col("n") % 10).alias("k"), F.upper("name").alias("name"))
        return counts.agg(F.count(F.lit(1)).alias("count"), F.max("at").alias("at"))

    def split(self, batch: DataFrame) -> dict[str, DataFrame]:
        """All rows."""
        return {_SINK: batch}


def warm_up(spark: SparkSession, folder: Path, is_over: Callable[[], bool]) -> None:
    """Run a small stream in a session of its own until it has made a few checkpoints, or `is_over`. It logs nothing.

    It loads and compiles what a driver needs, with files and logs in the standby's private folder.

    Leaves nothing but loaded classes, compiled code and libraries.
    """
    place = folder / _NAME
    source = place / "input"
    source.mkdir(parents=True)
    for number in range(_CHECKPOINTS):
        rows = (json.dumps({"n": n, "at": 1.5 * n, "name": str(n % 7)}) for n in range(number, number + _ROWS))
        (source / f"{number}.json").write_text("\n".join(rows), encoding="utf-8")
    spark.sparkContext.setLogLevel("OFF")
    try:
        with silence():
            _run(spark, place, source, is_over)
            if not is_over():
                _load_kafka(spark)
    finally:
        _forget(spark)
        spark.sparkContext.setLogLevel(spark.conf.get("spark.log.level", "WARN") or "WARN")
        shutil.rmtree(place, ignore_errors=True)


def _run(spark: SparkSession, place: Path, source: Path, is_over: Callable[[], bool]) -> None:
    run = RunKey("", _NAME)
    with closing(open_store(sqlite_url(place / "log.db"))) as store:
        store.register(_NAME)
        with new_epoch(store, _NAME, Worker(), _NAME) as (epoch, _):
            request = StageRequest(
                pipeline=_NAME,
                run=run,
                epoch=epoch,
                attempt=store.begin_stage(_NAME, epoch, run),
                store_url=sqlite_url(place / "log.db"),
                wal_root=str(place / "wal"),
                job=f"{__name__}:{Counts.__name__}",
                sinks=(_SINK,),
                sources={"rows": FileSource(path=str(source), format="text", max_files_per_trigger=1).to_json()},
                checkpointing=CheckpointConfig(interval=timedelta(milliseconds=50), max_concurrent=2 * _CHECKPOINTS),
                streaming=True,
            )
            done = threading.Event()

            def end() -> None:
                try:
                    while not done.wait(_LOOK_AT_LOG_SECONDS) and not is_over():
                        if store.pipeline(_NAME).last_published >= _CHECKPOINTS:
                            return
                finally:
                    (place / END).touch()

            watch = threading.Thread(target=end, name=_NAME, daemon=True)
            watch.start()
            try:
                Attempt(request, place / RESULT, None, start=spark.newSession).run()
            finally:
                done.set()
                watch.join()


def _load_kafka(spark: SparkSession) -> None:
    """Make clients and close them, if this JVM has Kafka's jars. They connect to nothing before they are used."""
    jvm: Any = spark._jvm
    nowhere = "127.0.0.1:9"
    with suppress(Exception):
        options = {"kafka.bootstrap.servers": nowhere, "subscribe": _NAME}
        spark.readStream.format("kafka").options(**options).load()
        given = jvm.java.util.HashMap({"bootstrap.servers": nowhere})
        reads = jvm.org.apache.kafka.common.serialization.ByteArrayDeserializer
        jvm.org.apache.kafka.clients.consumer.KafkaConsumer(given, reads(), reads()).close()
        jvm.org.apache.kafka.clients.admin.Admin.create(given).close(jvm.java.time.Duration.ZERO)


def _forget(spark: SparkSession) -> None:
    jvm: Any = spark._jvm
    files = jvm.org.apache.hadoop.fs.FileSystem.getLocal(spark._jsc.hadoopConfiguration())
    files.setWriteChecksum(True)  # the log of the pipeline may lie elsewhere (`local_files`)
    jvm.org.apache.spark.sql.execution.streaming.state.StateStore.stop()  # it would look after this one's for a minute
    spark.catalog.clearCache()
    jvm.System.gc()  # it waits for long with the heap that it leaves here
