"""Values that a column takes for certain, as far as that shows without the server.

A trial asks the server about everything else. So what is answered here may be too careful, but never too bold.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from airflow_ft.sinks.arrow import is_text
from airflow_ft.sinks.postgres.catalog import Column
from airflow_ft.sinks.postgres.encoding import changed

_INTEGERS = {"int2": pa.int16(), "int4": pa.int32(), "int8": pa.int64()}
_LAST_DAY = 2_932_896  # 9999-12-31, counted from 1970
_TICKS = {"s": 86_400, "ms": 86_400 * 10**3, "us": 86_400 * 10**6, "ns": 86_400 * 10**9}


def takes(rows: pa.RecordBatch, columns: Sequence[Column]) -> bool:
    """Return whether a table's columns, in the batch's order, take all values by type, in a UTF-8 database."""
    return not changed(rows, columns) and all(map(_takes, rows.columns, columns))


def fills(rows: pa.RecordBatch, columns: Sequence[Column]) -> bool:
    """Return whether no NULL goes into a column that is NOT NULL."""
    return not any(column.not_null and array.null_count for array, column in zip(rows.columns, columns, strict=True))


def _takes(values: pa.Array, column: Column) -> bool:
    type, kind, is_ = values.type, column.kind, pa.types
    if column.element or column.sort != "b":
        return False
    if is_.is_boolean(type):
        return kind == "bool"
    if is_.is_integer(type) or (is_.is_decimal128(type) and kind in _INTEGERS):
        return (kind == "numeric" and column.modifier == -1) or _holds(values, kind)
    if is_.is_decimal128(type):
        return kind == "numeric" and (column.modifier == -1 or type.precision - type.scale <= _whole_digits(column))
    if is_.is_floating(type):
        return kind == "float8" or (kind == "float4" and type.bit_width <= 32)
    if is_text(type):
        return kind in ("text", "varchar", "citext") and _is_text(values, column.length)
    if is_.is_binary(type) or is_.is_large_binary(type):
        return kind == "bytea"
    if is_.is_date(type):
        return kind == "date" and _is_before(values.cast(pa.date32()).cast(pa.int32()), _LAST_DAY)
    if is_.is_timestamp(type):
        return kind in ("timestamp", "timestamptz") and _is_before(
            values.cast(pa.int64()), (_LAST_DAY + 1) * _TICKS[type.unit] - 1
        )
    return bool(is_.is_time(type) and kind == "time")


def _whole_digits(column: Column) -> int:
    precision = ((column.modifier - 4) >> 16) & 0xFFFF
    return precision - (column.scale or 0)


def _holds(values: pa.Array, kind: str) -> bool:
    if kind not in _INTEGERS:
        return kind == "float8"
    try:
        values.cast(_INTEGERS[kind])
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


def _is_before(values: pa.Array, last: int) -> bool:
    highest = pc.max(values).as_py()
    return highest is None or highest <= last
