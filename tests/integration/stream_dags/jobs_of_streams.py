"""The PySpark code of the DAGs beside this file."""

from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

Sources = Mapping[str, DataFrame]


class Copy:
    """Numbers, as they are, into a table and a topic."""

    def transform(self, spark: SparkSession, sources: Sources) -> DataFrame:
        return sources["numbers"].select(F.col("value").cast("string").alias("value"), F.rand().alias("random"))

    def split(self, batch: DataFrame) -> dict[str, DataFrame]:
        return {
            "numbers": batch.select(F.col("value").cast("bigint").alias("n"), "random"),
            "copies": batch.select("value"),
        }
