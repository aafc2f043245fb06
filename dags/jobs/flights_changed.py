"""The job of `flights` as it may look a year later: it drops records that come twice, by another stateful operator.

`make demo STREAM=1 SAVEPOINT=1` goes on with it from a savepoint of the first one. The count of each carrier goes on,
since its operator has the same uid; the new operator begins without state.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from airflow_ft.example_dags.jobs.flights import FLIGHT, numbered, split

from airflow_ft.jobs.parsing import parse_json
from airflow_ft.jobs.uids import uid

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["split", "transform"]


def transform(spark: SparkSession, sources: Mapping[str, DataFrame]) -> DataFrame:
    """Every flight of every record that is new, numbered as before."""
    flights = parse_json(sources["flights"], FLIGHT, keep=["partition", "offset"])
    return numbered(
        uid(flights.dropDuplicates(["partition", "offset"]), "distinct-records").drop("partition", "offset")
    )
