"""A stream of files into a SQLite file: how many rows came in each ten seconds."""

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG

from airflow_ft import CheckpointConfig, CheckpointedPipeline, FileSource, SqliteSink, job


@job
class Windows:
    """A window comes out when rows of a later one have come, or by a drain."""

    def transform(self, spark: Any, sources: Any) -> Any:
        from pyspark.sql import functions as F

        timed = sources["times"].withWatermark("at", "0 seconds")
        counted = timed.groupBy(F.window("at", "10 seconds")).agg(F.count(F.lit(1)).alias("rows"))
        return counted.select(F.second("window.start").alias("second"), "rows")


with DAG("stream", schedule=None, params={"pipeline": "windows", "folder": "/in"}, default_args={"retries": 0}):
    CheckpointedPipeline(
        pipeline="{{ params.pipeline }}",
        group_id="windows",
        job=Windows,
        sources={"times": FileSource(path="{{ params.folder }}", schema="at timestamp")},
        sinks={"windows": SqliteSink(table="{{ params.pipeline }}", conn_id="shop")},
        checkpointing=CheckpointConfig(interval=timedelta(seconds=1)),
        spark_master="local[2]",
        spark_conf={"spark.driver.memory": "700m", "spark.sql.shuffle.partitions": "1"},
        streaming=True,
    )
