"""What Spark users have today: one query that writes each micro-batch by Spark's own JDBC and Kafka writers.

Run by `benchmarks.crashes` as a process of its own; it goes on from Spark's checkpoint when it is started again.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.crashes.rows import SCHEMA


def main(job: dict[str, Any]) -> None:
    """Reads what is there, writes it into both sinks, ends."""
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql import functions as F

    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", ",".join(job["jars"]))
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    kafka = {"kafka.bootstrap.servers": job["bootstrap"]}
    rows = (
        spark.readStream.format("kafka")
        .options(**kafka, subscribe=job["source"], startingOffsets="earliest", maxOffsetsPerTrigger=job["batch"])
        .load()
        .select(F.from_json(F.col("value").cast("string"), SCHEMA).alias("row"))
        .select("row.*")
    )

    def write(batch: DataFrame, _: int) -> None:
        batch.persist()
        batch.write.format("jdbc").mode("append").options(
            driver="org.mariadb.jdbc.Driver",
            url=job["jdbc_url"],
            dbtable=job["table"],
            user=job["user"],
            password=job["password"],
            batchsize=5000,
        ).save()
        value = F.to_json(F.struct("*")).alias("value")
        batch.select(value).write.format("kafka").options(**kafka, topic=job["topic"]).save()
        batch.unpersist()

    rows.writeStream.foreachBatch(write).option("checkpointLocation", job["folder"]).trigger(
        availableNow=True
    ).start().awaitTermination()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
