"""The PySpark code of the example DAG `flights`: plain DataFrames, nothing of Airflow, nothing of delivery."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupStateTimeout

from airflow_ft.jobs.parsing import parse_json
from airflow_ft.jobs.uids import uid

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.state import GroupState

LATE_MINUTES = 60

FLIGHT = """
    year INT, month INT, day INT,
    dep_time INT, sched_dep_time INT, dep_delay INT, arr_time INT, sched_arr_time INT, arr_delay INT,
    carrier STRING, flight INT, tailnum STRING, origin STRING, dest STRING,
    air_time INT, distance INT, hour INT, minute INT, time_hour TIMESTAMP
"""


def transform(spark: SparkSession, sources: Mapping[str, DataFrame]) -> DataFrame:
    """Every flight, with the number it has among its carrier's flights and a random number."""
    flights = parse_json(sources["flights"], FLIGHT)  # a missing value is NULL; a malformed record fails the job
    return numbered(flights)


def numbered(flights: DataFrame) -> DataFrame:
    """Each flight with its number. The operator's state is found by its uid, whatever else the job does."""
    counted = flights.groupBy("carrier").applyInPandasWithState(
        count_flights,
        outputStructType=f"{FLIGHT}, carrier_count BIGINT",
        stateStructType="total BIGINT",
        outputMode="append",
        timeoutConf=GroupStateTimeout.NoTimeout,
    )
    # Another value at each computation: equal values in both sinks show that it was computed once (I1).
    return uid(counted, "flights-by-carrier").withColumn("random", F.rand())


def split(batch: DataFrame) -> dict[str, DataFrame]:
    """All flights for the table; those that arrived at least an hour late for the topic, keyed by tail number."""
    late = batch.where(F.col("arr_delay") >= LATE_MINUTES).withColumn("key", F.col("tailnum"))
    return {"flights": batch, "delays": late}


def count_flights(carrier: tuple[str], frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    """Numbers a carrier's flights from 1; the total lives in Spark's state from checkpoint to checkpoint."""
    total = state.get[0] if state.exists else 0
    for frame in frames:
        frame["carrier_count"] = range(total + 1, total + 1 + len(frame))
        total += len(frame)
        yield frame
    state.update((total,))
