"""The rows of the comparison, and the job that this package runs over them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = "id bigint, name string, amount double"
TABLE = "CREATE TABLE {name} (id BIGINT, name VARCHAR(40), amount DOUBLE)"  # no key: nothing hides a duplicate


def row(number: int) -> dict[str, Any]:
    """One of them."""
    return {"id": number, "name": f"row number {number}", "amount": number / 8}


def transform(spark: SparkSession, sources: Any) -> DataFrame:
    """Every row of the topic, as it is."""
    from pyspark.sql import functions as F

    frame: DataFrame = sources["rows"]
    return frame.select(F.from_json(F.col("value").cast("string"), SCHEMA).alias("row")).select("row.*")


def split(batch: DataFrame) -> dict[str, DataFrame]:
    """All of it into both sinks."""
    return {"table": batch, "topic": batch}
