"""A job that fails where its argument says."""

import threading
from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F


def share(n: int) -> float:
    return 1 / (n - n)


def shares(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    for frame in frames:
        yield pd.DataFrame({"share": [share(n) for n in frame["id"]]})


def helped(_: int) -> float:
    import no_such_helper  # type: ignore[import-not-found]

    return float(no_such_helper.number)


def column(frame: DataFrame) -> DataFrame:
    return frame.select("idd")


def transform(spark: SparkSession, sources: Any, where: str) -> DataFrame:
    frame = spark.range(2)
    match where:
        case "udf":
            return frame.withColumn("share", F.udf(share, "double")("id"))
        case "pandas":
            return frame.mapInPandas(shares, "share double")
        case "import":
            return frame.withColumn("share", F.udf(helped, "double")("id"))
        case "lock":
            lock = threading.Lock()
            return frame.withColumn("share", F.udf(lambda n: n and lock, "double")("id"))
        case "session":
            return frame.withColumn("share", F.udf(lambda n: spark.range(n).count(), "long")("id"))
        case "column":
            return column(frame)
        case "collect":
            spark.readStream.format("rate").load().collect()
        case "module":
            helped(1)
        case "raises":
            raise ValueError("a mistake")
    return frame
