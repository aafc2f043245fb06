"""The PySpark code of the example DAG `flights_everywhere`: that of `flights`, with copies of every row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from airflow_ft.example_dags.jobs import flights

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Flights:
    """As `flights`; each of `copies`, names of sinks, gets all flights too."""

    def __init__(self, copies: Sequence[str]) -> None:
        self._copies = copies

    def transform(self, spark: SparkSession, sources: Mapping[str, DataFrame]) -> DataFrame:
        """Every flight, numbered."""
        return flights.transform(spark, sources)

    def split(self, batch: DataFrame) -> dict[str, DataFrame]:
        """All flights, the late ones, and the copies."""
        return {**flights.split(batch), **dict.fromkeys(self._copies, batch)}
