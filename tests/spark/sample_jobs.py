"""Jobs with one mistake each, and good ones."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F


def started(spark: SparkSession) -> Any:
    return spark.readStream.format("rate").load().writeStream.format("noop").start()


def handled(start: Callable[[], Any], frame: DataFrame) -> DataFrame:
    with suppress(Exception):
        start()
    return frame


def in_a_thread(start: Callable[[], Any], frame: DataFrame) -> DataFrame:
    with ThreadPoolExecutor(1) as threads:
        threads.submit(start).exception()
    return frame


def of_the_jvm(spark: SparkSession, frame: DataFrame) -> DataFrame:
    stream: Any = spark.readStream.format("rate").load()
    stream._jdf.writeStream().format("noop").start()
    return frame


class Job:
    """`transform` and `split` as given by the name of a fault."""

    def __init__(self, fault: str = "") -> None:
        self.fault = fault

    def transform(self, spark: SparkSession, sources: Any) -> Any:
        frame = spark.range(3).withColumnRenamed("id", "n")
        made: dict[str, Callable[[], Any]] = {
            "list": lambda: [frame],
            "nothing": lambda: None,
            "pandas": lambda: frame.toPandas(),
            "pandas on spark": lambda: frame.pandas_api(),
            "dictionary": lambda: {"orders": frame},
            "no columns": lambda: frame.select(),
            "two columns": lambda: frame.select("n", F.col("n").alias("N")),
            "unknown column": lambda: frame.select("missing"),
            "unknown source": lambda: sources["unknown"],
            "cast": lambda: frame.select(F.expr("cast('abc' || n as int)").alias("n")),
            "udf": lambda: frame.select(F.udf(lambda n: 1 // 0, "int")("n").alias("n")),
            "query": lambda: started(spark),
            "handled query": lambda: handled(lambda: started(spark), frame),
            "query in a thread": lambda: in_a_thread(lambda: started(spark), frame),
            "query of the JVM": lambda: of_the_jvm(spark, frame),
            "code": lambda: dict[str, str]()["no such customer: 4711"],
        }
        return made.get(self.fault, lambda: frame)()

    def split(self, batch: DataFrame) -> Any:
        if self.fault == "split":
            raise ValueError("colour")
        frames: dict[str, Any] = {
            "missing sink": {},
            "unknown sink": {"orders": batch, "order": batch},
            "no dictionary": batch,
            "no frame": {"orders": 1},
        }
        if self.fault == "query split":
            started(batch.sparkSession)
        if self.fault == "pandas split":
            return {"orders": batch.toPandas()}
        return frames.get(self.fault, {"orders": batch})


class Unsplit:
    """Has only `transform`, and takes arguments by it."""

    @staticmethod
    def transform(spark: SparkSession, sources: Any, rows: int = 1) -> DataFrame:
        return spark.range(rows)


class WrongMode(Job):
    output_mode = "upsert"


unsplit = Unsplit()
not_a_job = object()
