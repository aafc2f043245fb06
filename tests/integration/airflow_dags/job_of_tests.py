"""The PySpark code of the DAGs of these tests."""

import time
from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

Sources = Mapping[str, DataFrame]


def transform(spark: SparkSession, sources: Sources) -> DataFrame:
    return sources["orders"].withColumn("random", F.rand())


def split(batch: DataFrame) -> dict[str, DataFrame]:
    return {
        "orders": batch,
        "alerts": batch.where("amount >= 100").select(F.col("id").cast("string").alias("key"), "id", "random"),
    }


class Failing:
    """Raises for one of the rows, as bad code does."""

    def transform(self, spark: SparkSession, sources: Sources) -> DataFrame:
        return sources["orders"].withColumn("inverse", F.expr("cast(raise_error('no such order') as string)"))


class ToOneTable:
    """All rows go to the only sink."""

    def __init__(self, factor: str = "1") -> None:
        self.factor = factor

    def transform(self, spark: SparkSession, sources: Sources) -> DataFrame:
        return sources["orders"].select("id", (F.col("amount") * int(self.factor)).alias("amount"))


def broken(spark: SparkSession, sources: Sources) -> DataFrame:
    raise ValueError("this job is broken on purpose")


class Broken:
    transform = staticmethod(broken)


class Slow:
    """Does not come to an end by itself."""

    def transform(self, spark: SparkSession, sources: Sources) -> DataFrame:
        time.sleep(600)
        return sources["orders"]
