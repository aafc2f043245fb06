"""`compute_planned`: one micro-batch that a location has planned, computed for its state alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_ft.spark.state.locations import SparkLocation
from airflow_ft.wal.filesystem import filesystem

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_CHANGELOG = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"


def compute_planned(frame: DataFrame, output_mode: str, location: SparkLocation, *, whole: bool = False) -> None:
    """Has Spark compute the micro-batch that lies planned in a location, and nothing after it; its rows are dropped.

    `whole`: its state is written whole, not as changes.
    """
    conf = frame.sparkSession.conf
    before = conf.get(_CHANGELOG)
    if whole:
        conf.set(_CHANGELOG, "false")
    query = (
        frame.writeStream.foreachBatch(lambda batch, _: batch.write.format("noop").mode("overwrite").save())
        .outputMode(output_mode)
        .option("checkpointLocation", filesystem(location.uri).hadoop_path(location.uri))
        .trigger(once=True)
        .start()
    )
    try:
        query.awaitTermination()
    finally:
        conf.set(_CHANGELOG, str(before))
