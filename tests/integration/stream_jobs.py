"""Jobs of streams."""

from __future__ import annotations

import time
from functools import reduce
from pathlib import Path
from typing import Any, cast

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupStateTimeout


class Plain:
    """Records of Kafka, as they are: {"n", "at"}; into one sink."""

    def transform(self, spark: SparkSession, sources: Any) -> DataFrame:
        frame = cast(DataFrame, sources["numbers"])
        record = F.from_json(F.col("value").cast("string"), "n bigint, at double")
        return frame.select(record.alias("r")).select("r.n", "r.at")


class Copy(Plain):
    """The same into a table and a topic."""

    def split(self, batch: DataFrame) -> dict[str, DataFrame]:
        return {"numbers": batch, "copies": batch}


class OwnSocket(Copy):
    """Reads a socket that it has opened by itself."""

    def __init__(self, port: int) -> None:
        self.port = port

    def transform(self, spark: SparkSession, sources: Any) -> DataFrame:
        socket = spark.readStream.format("socket").option("host", "127.0.0.1").option("port", self.port)
        return super().transform(spark, {"numbers": socket.load()})


class Windows(Copy):
    """Counts the numbers in each ten, as if one came in a second; a minute late at most."""

    def transform(self, spark: SparkSession, sources: Any) -> DataFrame:
        timed = super().transform(spark, sources).withColumn("time", F.timestamp_seconds("n"))
        windows = timed.withWatermark("time", "60 seconds").groupBy(F.window("time", "10 seconds"))
        start = F.col("window.start").cast("bigint").alias("n")
        return windows.agg(F.count(F.lit(1)).cast("double").alias("at")).select(start, "at")


class FailsAt(Copy):
    """Raises at a number, unless a file is there; if it is to, waits for another file before."""

    def __init__(self, bad: int, unless: str = "", after: str = "") -> None:
        self.bad, self.unless, self.after = bad, unless, after

    def split(self, batch: DataFrame) -> dict[str, DataFrame]:
        if not (self.unless and Path(self.unless).exists()) and batch.filter(F.col("n") == self.bad).count():
            while self.after and not Path(self.after).exists():
                time.sleep(0.05)
            raise ValueError(f"the value {self.bad} is bad")
        return super().split(batch)


class Hangs(Copy):
    """Hangs in its own code at a number, and leaves a file when it does."""

    def __init__(self, at: int, marker: str) -> None:
        self.at, self.marker = at, marker

    def split(self, batch: DataFrame) -> dict[str, DataFrame]:
        if batch.filter(F.col("n") == self.at).count():
            Path(self.marker).touch()
            while True:
                time.sleep(0.05)
        return super().split(batch)


class Explodes(Plain):
    """One number becomes many rows."""

    def __init__(self, number: int, rows: int) -> None:
        self.number, self.rows = number, rows

    def transform(self, spark: SparkSession, sources: Any) -> DataFrame:
        numbers = super().transform(spark, sources)
        count = F.when(F.col("n") == self.number, self.rows).otherwise(1)
        return numbers.select("n", F.explode(F.sequence(F.lit(1), count)).alias("row"))


class Slow(Copy):
    """Takes half a second for each micro-batch."""

    def split(self, batch: DataFrame) -> dict[str, DataFrame]:
        time.sleep(0.5)
        return super().split(batch)


class Counting:
    """So many numbers a micro-batch, one after the other, of a source that Spark brings: nothing has to be asked."""

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def transform(self, spark: SparkSession, sources: Any) -> DataFrame:
        source = spark.readStream.format("rate-micro-batch").options(rowsPerBatch=self.rows, numPartitions=1)
        return source.load().select(F.col("value").alias("n"))


class StopsSpark(Counting):
    """Stops Spark in a micro-batch when a file is there, which it removes: by pyspark, or in the JVM."""

    def __init__(self, rows: int, once: str, how: str) -> None:
        super().__init__(rows)
        self.once, self.how = once, how

    def split(self, batch: DataFrame) -> dict[str, DataFrame]:
        if Path(self.once).exists():
            Path(self.once).unlink()
            spark: Any = batch.sparkSession
            if self.how == "pyspark":
                spark.stop()
            else:
                spark.sparkContext._jsc.stop()
        return {"numbers": batch}


class Nothing(Counting):
    """Prints a line without its end, and returns nothing."""

    def transform(self, spark: SparkSession, sources: Any) -> DataFrame:
        print("...", end="")
        return cast(DataFrame, None)


class Setting(Counting):
    """Requires a setting of its session, also where pyspark chooses the session."""

    def __init__(self, name: str, value: str) -> None:
        super().__init__(2)
        self.name, self.value = name, value

    def transform(self, spark: SparkSession, sources: Any) -> DataFrame:
        spark.newSession()  # as another stream may at any time
        frame = spark.sparkContext.parallelize([(1,)]).toDF("n int")
        for session in (spark, frame.sparkSession, SparkSession.active()):
            assert session.conf.get(self.name, None) == self.value
        return super().transform(spark, sources).dropDuplicates(["n"])


class Totals:
    """Numbers of Kafka, each with its place among those of its key, and a random number."""

    def transform(self, spark: SparkSession, sources: Any) -> DataFrame:
        record = F.from_json(F.col("value").cast("string"), "n bigint")
        numbers = self.records(sources).select(record["n"].alias("n")).withColumn("k", F.col("n") % 7)
        return (
            numbers.groupBy("k")
            .applyInPandasWithState(
                _places, "n bigint, k bigint, place bigint", "total bigint", "append", GroupStateTimeout.NoTimeout
            )
            .withColumn("random", F.rand())
        )

    def records(self, sources: Any) -> DataFrame:
        return cast(DataFrame, sources["numbers"])

    def split(self, batch: DataFrame) -> dict[str, DataFrame]:
        return {"totals": batch, "copies": batch}


class TotalsOfAll(Totals):
    """The same of several sources, in this order."""

    def __init__(self, names: list[str]) -> None:
        self.names = names

    def records(self, sources: Any) -> DataFrame:
        return reduce(DataFrame.union, [sources[name] for name in self.names])


def _places(key: Any, frames: Any, state: Any) -> Any:
    total = state.get[0] if state.exists else 0
    for frame in frames:
        frame["place"] = range(total + 1, total + 1 + len(frame))
        total += len(frame)
        yield frame[["n", "k", "place"]]
    state.update((total,))
