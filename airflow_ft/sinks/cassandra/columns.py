"""Columns of the log as values that the driver binds: exact, or refused row by row.

| CQL | Arrow | bound as |
| --- | --- | --- |
| tinyint, smallint, int, bigint, varint | whole numbers that fit by their type | int |
| float, double | float, double (float into double) | float |
| decimal | decimal | Decimal |
| boolean | boolean | bool |
| ascii, text | string | str |
| blob | binary | bytes |
| date | date | days since -5877641-06-23, int |
| time | time | nanoseconds since midnight, int |
| timestamp | timestamp with time zone | milliseconds since 1970, int |
| uuid, timeuuid | string | UUID |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_ft.sinks.arrow import booleans, decoded, decoded_type, is_binary, is_text, numbers
from airflow_ft.sinks.base.json_columns import beyond_years

_WHOLE = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64, "varint": 64}
_PER_MILLISECOND = {"us": 1_000, "ns": 1_000_000}
_NANOSECONDS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
_FIRST_DATE = 1 << 31  # what Cassandra adds to the days since 1970
_UUID = r"^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$"
_TIME_UUID = r"^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-1[0-9a-fA-F]{3}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$"
TYPES = (*_WHOLE, "float", "double", "decimal", "boolean", "ascii", "text", "blob", "date", "time", "timestamp", "uuid",
         "timeuuid")  # fmt: skip
"""Types of columns that rows can have."""
IN_KEYS = tuple(kind for kind in TYPES if kind not in ("float", "double", "decimal"))
"""Types of key columns: of the others, equal values may be different keys."""
LONGEST_KEY = 65_535  # bytes of the partition key as the server writes it, and of all clustering columns together
LARGEST_ROW = 4_000_000  # bytes of texts and blobs of a row: the server's limit on a message is 16 MiB by default


def fits(kind: pa.DataType, cql: str) -> bool:
    """Return whether a column holds all values of an Arrow type, or refuses some row by row."""
    types, kind = pa.types, decoded_type(kind)
    if cql in _WHOLE:
        return bool(types.is_signed_integer(kind)) and kind.bit_width <= _WHOLE[cql]
    if cql in ("float", "double"):
        return bool(types.is_float32(kind) or (types.is_float64(kind) and cql == "double"))
    if cql in ("ascii", "text", "uuid", "timeuuid"):
        return is_text(kind)
    if cql == "timestamp":
        return bool(types.is_timestamp(kind)) and kind.tz is not None
    tests: Mapping[str, Callable[[pa.DataType], bool]] = {
        "decimal": types.is_decimal,
        "boolean": types.is_boolean,
        "blob": is_binary,
        "date": types.is_date32,
        "time": types.is_time,
    }
    return bool(tests[cql](kind))


def unfit(column: pa.Array, cql: str) -> Iterator[tuple[npt.NDArray[np.bool_], str]]:
    """Yield which values the column cannot hold, and why."""
    column = decoded(column)
    if is_text(column.type):
        wrong = _not_utf8(column)
        yield wrong, "is not valid UTF-8"
        if wrong.any():
            return
    if cql == "ascii":
        yield _not(pc.string_is_ascii(column)), "is not ASCII text"
    elif cql in ("uuid", "timeuuid"):
        pattern = _UUID if cql == "uuid" else _TIME_UUID
        yield _not(pc.match_substring_regex(column, pattern)), f"is no {cql}"
    elif cql == "timestamp":
        yield booleans(beyond_years(column)), "is outside of the years 1 to 9999"
        if (per := _PER_MILLISECOND.get(column.type.unit)) is not None:
            counted = numbers(column.view(pa.int64()))
            yield (counted % per != 0) & booleans(column.is_valid()), "has a fraction of a millisecond"


def _not(fine: pa.Array) -> npt.NDArray[np.bool_]:
    return ~booleans(pc.fill_null(fine, pa.scalar(True)))


def _not_utf8(column: pa.Array) -> npt.NDArray[np.bool_]:
    wrong = np.zeros(len(column), np.bool_)
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        for row, value in enumerate(column.cast(pa.large_binary()).to_pylist()):
            wrong[row] = value is not None and _is_broken(value)
    return wrong


def _is_broken(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return True
    return False


def lengths(column: pa.Array) -> npt.NDArray[np.int64]:
    """Return the bytes of each text or blob; 0 for others and for NULL."""
    column = decoded(column)
    if not (is_text(column.type) or is_binary(column.type)):
        return np.zeros(len(column), np.int64)
    kind = pa.large_string() if is_text(column.type) else pa.large_binary()
    return numbers(pc.fill_null(pc.binary_length(column.cast(kind)), pa.scalar(0, pa.int64())))


def values(column: pa.Array, cql: str) -> list[Any]:
    """Return the values as the driver binds them; None for NULL."""
    column = decoded(column)
    if cql == "date":
        return [None if days is None else days + _FIRST_DATE for days in column.view(pa.int32()).to_pylist()]
    if cql == "time":
        factor = _NANOSECONDS[column.type.unit]
        counted = column.view(pa.int64() if pa.types.is_time64(column.type) else pa.int32())
        return [None if count is None else count * factor for count in counted.to_pylist()]
    if cql == "timestamp":
        counts = column.view(pa.int64()).to_pylist()
        if column.type.unit == "s":
            return [None if count is None else count * 1_000 for count in counts]
        per = _PER_MILLISECOND.get(column.type.unit, 1)
        return [None if count is None else count // per for count in counts]
    if cql in ("uuid", "timeuuid"):
        return [None if text is None else UUID(text) for text in column.to_pylist()]
    return list(column.to_pylist())


def read(value: Any) -> Any:
    """Return a value of the driver as `values` has it."""
    if hasattr(value, "days_since_epoch"):
        return value.days_since_epoch + _FIRST_DATE
    if hasattr(value, "nanosecond_time"):
        return value.nanosecond_time
    return value


def to_text(value: Any) -> Any:
    """Return a value of a key as JSON holds it."""
    return value.hex() if isinstance(value, bytes) else str(value) if isinstance(value, UUID) else value


def from_text(value: Any, cql: str) -> Any:
    """Return a value of a key that `to_text` made."""
    if cql == "blob":
        return bytes.fromhex(value)
    return UUID(value) if cql in ("uuid", "timeuuid") else value
