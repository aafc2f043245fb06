"""The PySpark side of `word_count`: what Spark's own programming guide does, and failures on demand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

output_mode = "update"  # a checkpoint has the words whose count it has changed


def transform(spark: SparkSession, sources: Mapping[str, DataFrame], failing: str = "0") -> DataFrame:
    """How often each word has come; each new count fails the job with the probability `failing`."""
    words = sources["lines"].select(F.explode(F.split(F.col("value").cast("string"), r"\s+")).alias("word"))
    counts = words.where("word <> ''").groupBy("word").count()
    if float(failing):
        counts = counts.where(F.assert_true(F.rand() >= float(failing), "this job fails at random").isNull())
    return counts
