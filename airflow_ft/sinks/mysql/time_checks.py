"""Dates and times into their columns: in range, and without a fraction that would be rounded. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, date, datetime

import pyarrow as pa
import pyarrow.compute as pc

from airflow_ft.protocol.write_ahead_log import ColumnStatistics
from airflow_ft.sinks.mysql.catalog import Column
from airflow_ft.sinks.mysql.checks import Check

# All in UTC, without a zone, as the columns hold them.
_FIRST = datetime.fromisoformat("1000-01-01")
_LAST = datetime.fromisoformat("9999-12-31T23:59:59.999999")
_STAMP_FIRST = datetime.fromisoformat("1970-01-01T00:00:01")
_STAMP_LAST = datetime.fromisoformat("2038-01-19T03:14:07.999999")
_STAMP_LAST_64 = datetime.fromisoformat("2106-02-07T06:28:15.999999")
_YEAR_IN_USE = re.compile(r"[1-9]\d{3}-")
MOST_DIGITS = 6  # of a second, in any column
_UNITS = {"s": 0, "ms": 3, "us": 6, "ns": 9}


def into_time(kind: pa.DataType, column: Column, timestamps_to_2106: bool) -> Sequence[Check]:
    """DATE, DATETIME, TIMESTAMP and TIME."""
    if pa.types.is_time(kind):
        return _fraction_checks(kind, column)
    checks = [_between(kind, _FIRST, _LAST, column, timestamps_to_2106, by_table=False)]
    if column.type == "timestamp":
        bounds = _bounds(column, timestamps_to_2106)
        checks.append(_between(kind, *bounds, column, timestamps_to_2106, by_table=True))
    return (*checks, *(_fraction_checks(kind, column) if pa.types.is_timestamp(kind) else ()))


def _bounds(column: Column, timestamps_to_2106: bool) -> tuple[datetime, datetime]:
    if column.type == "timestamp":
        return _STAMP_FIRST, _STAMP_LAST_64 if timestamps_to_2106 else _STAMP_LAST
    return _FIRST, _LAST


def _between(
    kind: pa.DataType, first: datetime, last: datetime, column: Column, timestamps_to_2106: bool, *, by_table: bool
) -> Check:
    def offends(array: pa.Array) -> pa.Array:
        if pa.types.is_timestamp(kind):
            unit = pa.timestamp(kind.unit)
            array = array.cast(unit)
            bounds = [pa.scalar(bound, pa.timestamp("us")).cast(unit, safe=False) for bound in (first, last)]
        else:
            array = array.cast(pa.date32())
            bounds = [pa.scalar(bound.date(), pa.date32()) for bound in (first, last)]
            if first == _STAMP_FIRST:  # midnight of the first day lies before the first second
                bounds[0] = pa.scalar(date(1970, 1, 2), pa.date32())
        return pc.or_(pc.less(array, bounds[0]), pc.greater(array, bounds[1]))

    def by_statistics(statistics: ColumnStatistics) -> bool:
        told = [text for text in (statistics.minimum, statistics.maximum) if text is not None]
        if any(not _YEAR_IN_USE.match(text) for text in told):  # Python may not have it, and no column does
            return True
        return any(not first <= parse_time(text) <= last for text in told)

    lowest, highest = _bounds(column, timestamps_to_2106)
    return Check(
        "a date out of range", f"{lowest} to {highest} ({column.full_type})",
        "Correct the values in the job" + (", or use DATETIME (years 1000 to 9999)." if by_table else "."),
        offends, by_statistics, by_table=by_table, problem="range",
    )  # fmt: skip


def parse_time(text: str) -> datetime:
    """A minimum or maximum of dates or timestamps as UTC without a zone."""
    # Nanoseconds are more digits than datetime takes; for a range they do not matter.
    value = datetime.fromisoformat(text)
    return value.astimezone(UTC).replace(tzinfo=None) if value.tzinfo else value


def _fraction_checks(kind: pa.DataType, column: Column) -> Sequence[Check]:
    digits = column.fraction or 0
    if _UNITS[kind.unit] <= digits:
        return ()
    unit = 10 ** (_UNITS[kind.unit] - digits)

    def offends(array: pa.Array) -> pa.Array:
        width = pa.int32() if pa.types.is_time32(kind) else pa.int64()
        ticks = array.cast(width).cast(pa.int64())
        return pc.not_equal(pc.multiply(pc.divide(ticks, unit), unit), ticks)

    return (
        Check(
            "fractions of a second that the column would round", f"{digits} digits ({column.full_type})",
            "Truncate in the job (date_trunc), or widen the column to DATETIME(6).", offends, None,
            by_table=digits < MOST_DIGITS, problem="fraction",
        ),
    )  # fmt: skip
