"""Values that a column takes for certain, as far as that shows without the server.

A trial asks the server about everything else. So what is answered here may be too careful, but never too bold.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from airflow_ft.sinks.arrow import is_beyond, is_text
from airflow_ft.sinks.postgres.catalog import Column
from airflow_ft.sinks.postgres.encoding import INTEGERS, changed, fits


def takes(rows: pa.RecordBatch, columns: Sequence[Column]) -> bool:
    """Return whether a table's columns, in the batch's order, take all values by type, in a UTF-8 database."""
    return not changed(rows, columns) and all(map(_takes, rows.columns, columns))


def fills(rows: pa.RecordBatch, columns: Sequence[Column]) -> bool:
    """Return whether no NULL goes into a column that is NOT NULL."""
    return not any(column.not_null and array.null_count for array, column in zip(rows.columns, columns, strict=True))


def _takes(values: pa.Array, column: Column) -> bool:
    type, kind = values.type, column.kind
    if column.element or column.sort != "b" or not fits(type, column):
        return False
    if kind in INTEGERS:
        return _can_be(values, INTEGERS[kind])
    if kind == "numeric" and column.modifier != -1:
        return bool(pa.types.is_decimal128(type) and type.precision - type.scale <= _whole_digits(column))
    if is_text(type):
        return kind in ("text", "varchar", "citext") and _is_text(values, column.length)
    return not is_beyond(values)  # of dates and times; no other type has values beyond


def _whole_digits(column: Column) -> int:
    precision = ((column.modifier - 4) >> 16) & 0xFFFF
    return precision - (column.scale or 0)


def _can_be(values: pa.Array, type: pa.DataType) -> bool:
    try:
        values.cast(type)
    except pa.ArrowInvalid:
        return False
    return True


def _is_text(values: pa.Array, length: int | None) -> bool:
    """UTF-8 without NUL, of at most `length` characters. Parquet files may hold other bytes as texts."""
    try:
        values.validate(full=True)
    except pa.ArrowInvalid:
        return False
    if pc.any(pc.match_substring(values, "\0")).as_py():
        return False
    longest = pc.max(pc.utf8_length(values)).as_py()
    return length is None or longest is None or longest <= length
