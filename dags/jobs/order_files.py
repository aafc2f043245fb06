"""The PySpark side of `files_to_mysql` and `files_to_files`; `files_to_sqlite` has its own.

Readable lines are orders, the others are kept with the name of their file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def transform(spark: SparkSession, sources: Mapping[str, DataFrame]) -> DataFrame:
    """All lines that are new, with the file that each came from."""
    from pyspark.sql.functions import col

    return sources["orders"].withColumn("file", col("_metadata.file_name"))


def split(batch: DataFrame) -> dict[str, DataFrame]:
    """The rows of each sink; both see the same materialised batch."""
    return {
        "orders": batch.where("broken IS NULL").select("id", "customer", "ordered_at", "amount", "file"),
        "rejected": batch.where("broken IS NOT NULL").selectExpr("broken AS line", "file"),
    }
