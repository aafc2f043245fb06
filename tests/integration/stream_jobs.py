"""Jobs of streams."""

from __future__ import annotations

from typing import Any, cast

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F


class Copy:
    """Records of Kafka, as they are: {"n", "at"}."""

    def transform(self, spark: SparkSession, sources: Any) -> DataFrame:
        frame = cast(DataFrame, sources["numbers"])
        record = F.from_json(F.col("value").cast("string"), "n bigint, at double")
        return frame.select(record.alias("r")).select("r.n", "r.at")
