"""The PySpark code of the DAGs of these tests."""

from pyspark.sql import functions as F


def transform(spark, sources):
    return sources["orders"].withColumn("random", F.rand())


def split(batch):
    return {
        "orders": batch,
        "alerts": batch.where("amount >= 100").select(F.col("id").cast("string").alias("key"), "id", "random"),
    }


class Failing:
    """Raises for one of the rows, as bad code does."""

    def transform(self, spark, sources):
        return sources["orders"].withColumn("inverse", F.expr("raise_error('no such order')"))


class ToOneTable:
    """All rows go to the only sink."""

    def __init__(self, factor=1):
        self.factor = factor

    def transform(self, spark, sources):
        return sources["orders"].select("id", (F.col("amount") * self.factor).alias("amount"))


def broken(spark, sources):
    raise ValueError("this job is broken on purpose")


class Broken:
    transform = staticmethod(broken)
