"""The PySpark side of `t_test`: a number in each record, one of which the job cannot work with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


def transform(spark: SparkSession, sources: Mapping[str, DataFrame], bad: str = "0") -> DataFrame:
    """Each value that was read; the one that is `bad` fails its checkpoint."""
    value = F.col("value").cast("string").cast("int")
    return sources["values"].select(checking(int(bad))(value).alias("value"))


def checking(bad: int) -> Callable[[Column], Column]:
    """A function of Spark that returns its argument, and raises at `bad`."""

    def check(value: int) -> int:
        if value == bad:
            raise ValueError(f"the value {value} is bad")
        return value

    return F.udf(check, "int")
