"""The jobs whose rows are staged and delivered; `Both` is also what the plain Spark writers compute."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.data import ORDERS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Rows:
    """Everything that is read, as it is."""

    def transform(self, spark: SparkSession, sources: Any) -> DataFrame:
        """Every row of the source."""
        frame: DataFrame = sources["rows"]
        return frame


class Twice(Rows):
    """Every row, for a table and for a topic."""

    def split(self, batch: DataFrame) -> dict[str, DataFrame]:
        """All rows for both."""
        return {"notes": batch, "copies": batch}


class Passing:
    """Records {"n", "at"} of a topic, as they are."""

    def transform(self, spark: SparkSession, sources: Any) -> DataFrame:
        """Every record of the source, parsed."""
        from pyspark.sql import functions as F

        frame: DataFrame = sources["rows"]
        record = F.from_json(F.col("value").cast("string"), "n bigint, at double")
        return frame.select(record.alias("r")).select("r.n", "r.at")


class Distinct(Passing):
    """The same, each number once: Spark's state knows which were there."""

    def transform(self, spark: SparkSession, sources: Any) -> DataFrame:
        """Every number when it comes for the first time."""
        return super().transform(spark, sources).dropDuplicates(["n"])


class Sums(Rows):
    """A sum of `n` for each `k`, in Spark's state."""

    output_mode = "update"

    def transform(self, spark: SparkSession, sources: Any) -> DataFrame:
        """What has changed."""
        from pyspark.sql import functions as F

        return super().transform(spark, sources).groupBy("k").agg(F.sum("n").alias("total"))


class Records:
    """Keys and values of a topic."""

    def transform(self, spark: SparkSession, sources: Any) -> DataFrame:
        """Every record of the source."""
        frame: DataFrame = sources["rows"]
        return frame.select("key", "value")


class Both:
    """Keys and values for a topic, and the columns in the values for a table."""

    def transform(self, spark: SparkSession, sources: Any) -> DataFrame:
        """Every record of the source."""
        frame: DataFrame = sources["rows"]
        return frame.select("key", "value")

    def split(self, batch: DataFrame) -> dict[str, DataFrame]:
        """All rows for both."""
        return {"table": columns(batch), "topic": batch}


def columns(records: DataFrame) -> DataFrame:
    """The orders that `Dataset.records` made values of."""
    from pyspark.sql import functions as F

    parts = F.split(F.col("value").cast("string"), r"\|")
    return records.select(
        *(
            F.when(parts[index] != "-", parts[index]).cast(kind).alias(name)
            for index, (name, (_, kind)) in enumerate(ORDERS.columns.items())
        )
    )


class FailingOnce(Passing):
    """Raises when it is told to, and notes when it did, and when it was called again."""

    def __init__(self, marks: str) -> None:
        self._marks = Path(marks)

    def split(self, batch: DataFrame) -> dict[str, DataFrame]:
        """All rows."""
        failing, raised, again = (self._marks / name for name in ("fail", "raised", "again"))
        if raised.exists() and not again.exists():
            (self._marks / "new").write_text(str(time.time()))
            (self._marks / "new").rename(again)
        if failing.exists() and not raised.exists():
            raised.write_text(str(time.time()))
            raise ValueError("as it was told")
        return {"copies": batch}


class Keys:
    """Numbers of a topic, each with a key."""

    def transform(self, spark: SparkSession, sources: Any) -> DataFrame:
        """Every record of the source."""
        from pyspark.sql import functions as F

        number = F.col("value").cast("string").cast("bigint")
        frame: DataFrame = sources["rows"].select((number % 10).alias("k"), number.alias("n"))
        return frame


class CountsByKey(Keys):
    """How many there are of each key, in Spark's state."""

    output_mode = "update"

    def transform(self, spark: SparkSession, sources: Any) -> DataFrame:
        """What has changed."""
        from pyspark.sql import functions as F

        return super().transform(spark, sources).groupBy("k").agg(F.count(F.lit(1)).alias("n"))
