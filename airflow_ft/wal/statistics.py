"""Column statistics: the text form of values, and the statistics of Arrow data.

`spark/staging.py` takes them in the staging pass by Spark; here they are taken of an Arrow table, for segments that
are written without Spark.
"""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_ft.core.ports import ColumnStatistics

_EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - the naive epoch: values without a zone are counted from it
MICROSECONDS_A_DAY = 86_400_000_000


def instant_text(microseconds: int, *, utc: bool) -> str:
    """A timestamp as `str(datetime)`, with `+00:00` when it is an instant (`utc`).

    Years that Python's datetime lacks (below 1, above 9999) are written in ISO form with all their digits.
    """
    try:
        value = _EPOCH + dt.timedelta(microseconds=microseconds)
    except OverflowError:
        import numpy as np

        return str(np.datetime64(microseconds, "us")).replace("T", " ") + ("+00:00" if utc else "")
    return str(value.replace(tzinfo=dt.UTC) if utc else value)


def date_text(days: int) -> str:
    """A date (days since 1970-01-01) as `str(date)`; see `instant_text` for other years."""
    return instant_text(days * MICROSECONDS_A_DAY, utc=False).split(" ")[0]


def is_ordered(kind: pa.DataType) -> bool:
    """Whether minimum and maximum are kept: numbers, booleans, dates, times. Not of text: it would copy user data.

    Not of lengths of time either, which no sink takes.
    """
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_boolean(kind)
        or (pa.types.is_temporal(kind) and not pa.types.is_duration(kind) and not pa.types.is_interval(kind))
    )


def column_statistics(values: pa.ChunkedArray) -> ColumnStatistics:
    """The statistics of one column of Arrow data."""
    kind = values.type
    nans = infinities = 0
    if pa.types.is_floating(kind):
        nans = pc.sum(pc.is_nan(values)).as_py() or 0
        infinities = pc.sum(pc.is_inf(values)).as_py() or 0
    minimum = maximum = characters = size = None
    if is_ordered(kind):
        numbers = pc.filter(values, pc.invert(pc.is_nan(values))) if nans else values
        if pa.types.is_boolean(kind):
            bounds = pc.min_max(pc.cast(numbers, pa.int8())).as_py()
            bounds = {key: None if value is None else bool(value) for key, value in bounds.items()}
        else:
            bounds = {key: _value_text(value) for key, value in pc.min_max(numbers).items()}
        minimum, maximum = (None if v is None else str(v) for v in (bounds["min"], bounds["max"]))
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        characters = pc.max(pc.utf8_length(values)).as_py()
    if characters is not None or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        size = pc.max(pc.binary_length(values)).as_py()
    return ColumnStatistics(
        nulls=values.null_count,
        minimum=minimum,
        maximum=maximum,
        max_characters=characters,
        max_bytes=size,
        nans=nans,
        infinities=infinities,
    )


def table_statistics(table: pa.Table) -> dict[str, ColumnStatistics]:
    """The statistics of every column of a table."""
    return {name: column_statistics(table.column(index)) for index, name in enumerate(table.column_names)}


def _value_text(scalar: pa.Scalar) -> Any:
    if not scalar.is_valid:
        return None
    kind = scalar.type
    if pa.types.is_timestamp(kind):
        return instant_text(scalar.cast(pa.timestamp("us", kind.tz)).value, utc=kind.tz is not None)
    if pa.types.is_date32(kind):
        return date_text(scalar.value)
    value = scalar.as_py()
    return value if isinstance(value, Decimal) else str(value)
