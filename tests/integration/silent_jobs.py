"""A job that sets up logging as programs of their own do, which silences all loggers that exist."""

import logging.config
from typing import Any, cast

from pyspark.sql import DataFrame, SparkSession

logging.config.dictConfig({"version": 1, "root": {"level": "ERROR"}})
logging.basicConfig(force=True, filename="/dev/null")
logging.disable(logging.CRITICAL)


def transform(spark: SparkSession, sources: Any) -> DataFrame:
    return cast(DataFrame, sources["numbers"])
