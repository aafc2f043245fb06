"""The jobs whose rows are staged and delivered; `Both` is also what the plain Spark writers compute."""

from __future__ import annotations

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
