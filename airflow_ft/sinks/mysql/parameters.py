"""Arrow columns as the binary parameters of a prepared INSERT of many rows. No Python loop over rows.

Integers and doubles have a fixed width, dates and times go field by field, everything else as bytes behind their
length. A NULL is a bit in front of all values. Decimals and nested values are the text of `encoding`, so that the
server reads them as it reads them from a LOAD DATA.

The server parses a prepared INSERT once, for a fixed number of rows, so it exists in few sizes. Rows are sent by the
largest one that they fill, and the rest by the next smaller one.

https://dev.mysql.com/doc/dev/mysql-server/latest/page_protocol_com_stmt_execute.html
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_ft.sinks.arrow import booleans, decoded, decoded_type, is_binary, numbers, offsets, scalar
from airflow_ft.sinks.base import json_columns
from airflow_ft.sinks.mysql.encoding import TargetColumn
from airflow_ft.sinks.mysql.naming import quote

MAX_PARAMETERS = 8192
"""Of a statement. The protocol allows 65,535, but from here on each row costs the server more (docs/performance.md)."""
_STEP = 4  # each size of a statement has a quarter of the rows of the next larger one

_BYTES = pa.large_binary()
_NOTHING = scalar(b"", _BYTES)
_UNSIGNED = 128
_INTEGERS = {8: 1, 16: 2, 32: 3, 64: 8}  # bits: MYSQL_TYPE_TINY, SHORT, LONG, LONGLONG
_DOUBLE, _DATE, _TIME, _DATETIME, _BLOB, _STRING = 5, 10, 11, 12, 252, 254

_DATE_FIELDS = [("length", "u1"), ("year", "<u2"), ("month", "u1"), ("day", "u1")]
_CLOCK_FIELDS = [("hour", "u1"), ("minute", "u1"), ("second", "u1"), ("microsecond", "<u4")]
_TIME_FIELDS = [("length", "u1"), ("negative", "u1"), ("days", "<u4"), *_CLOCK_FIELDS]

Octets = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Parameters:
    """Parameters of one execution of `insert_statement(..., rows.num_rows)`: a bit a NULL, then the values, row by
    row.
    """

    rows: pa.RecordBatch
    nulls: bytes
    values: memoryview

    @property
    def size(self) -> int:
        """Bytes."""
        return len(self.nulls) + len(self.values)


@lru_cache(maxsize=256)
def insert_statement(table: str, columns: tuple[str, ...], rows: int, suffix: str = "") -> str:
    """Return an INSERT with places for the values of `rows` rows; `table` is quoted, `columns` are not."""
    row = f"({', '.join('?' * len(columns))})"
    return f"INSERT INTO {table} ({', '.join(map(quote, columns))}) VALUES {', '.join([row] * rows)}{suffix}"


def parameter_types(schema: pa.Schema, columns: Sequence[TargetColumn]) -> bytes:
    """Type and flags of each parameter of a row."""
    return b"".join(_type(_sent_as(schema.field(column.source).type)) for column in columns)


def parameters(batch: pa.RecordBatch, columns: Sequence[TargetColumn], size: int) -> Iterator[Parameters]:
    """The rows in order, at most `size` bytes of values at a time (one row may exceed it)."""
    arrays = [_cast(column.values(batch)) for column in columns]
    rows = _joined(arrays)
    ends = offsets(rows)
    values = memoryview(rows.buffers()[2]).cast("B")
    nulls = np.column_stack([_is_null(array) for array in arrays])
    start = 0
    while start < len(rows):
        room = int(np.searchsorted(ends, ends[start] + size, side="right")) - 1 - start
        stop = start + _filled(max(1, min(room, len(rows) - start)), len(columns))
        yield Parameters(
            batch.slice(start, stop - start),
            np.packbits(nulls[start:stop], bitorder="little").tobytes(),
            values[ends[start] : ends[stop]],
        )
        start = stop


def row_sizes(batch: pa.RecordBatch, columns: Sequence[TargetColumn]) -> Integers:
    """Bytes of each row in an INSERT of one row: values, types and nulls."""
    ends = offsets(_joined([_cast(column.values(batch)) for column in columns]))
    return np.diff(ends) + 2 * len(columns) + (len(columns) + 7) // 8


def _filled(rows: int, columns: int) -> int:
    """Return the rows of the largest statement that `rows` rows fill."""
    size = max(1, MAX_PARAMETERS // columns)
    while size > rows:
        size = max(1, size // _STEP)
    return size


# --- types -----------------------------------------------------------------------------------------------------------


def _sent_as(kind: pa.DataType) -> pa.DataType:
    """The Arrow type whose values are sent for those of `kind`."""
    kind, types = decoded_type(kind), pa.types
    if types.is_null(kind) or types.is_boolean(kind):
        return pa.int8()
    if types.is_integer(kind):
        return kind
    if types.is_floating(kind):
        return pa.float64()  # a 4-byte float becomes the double of the same value
    if types.is_timestamp(kind):
        return pa.timestamp("us")  # in UTC, which the session's time zone is
    if types.is_date(kind):
        return pa.date32()
    if types.is_time(kind):
        return pa.time64("us")
    return _BYTES if is_binary(kind) else pa.large_string()


def _type(kind: pa.DataType) -> bytes:
    types = pa.types
    if types.is_integer(kind):
        return bytes([_INTEGERS[kind.bit_width], 0 if types.is_signed_integer(kind) else _UNSIGNED])
    for fits, code in (
        (types.is_floating, _DOUBLE),
        (types.is_timestamp, _DATETIME),
        (types.is_date, _DATE),
        (types.is_time, _TIME),
        (types.is_large_binary, _BLOB),
    ):
        if fits(kind):
            return bytes([code, 0])
    return bytes([_STRING, 0])


def _cast(array: pa.Array) -> pa.Array:
    array = decoded(array)
    if pa.types.is_nested(array.type):
        return json_columns.encode(array, null=None)
    return array.cast(_sent_as(array.type))


# --- rows ------------------------------------------------------------------------------------------------------------


def _joined(arrays: Sequence[pa.Array]) -> pa.Array:
    """One value a row: all its parameters but the nulls. Neighbours of fixed width are put together before."""
    parts: list[pa.Array] = []
    fixed: list[Octets] = []

    def close() -> None:
        if fixed:
            parts.append(_table(np.hstack(fixed)))
            fixed.clear()

    for array in arrays:
        is_text = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
        head = _lengths(array) if is_text else _fixed(array)
        if array.null_count or isinstance(head, pa.Array):
            close()
            cells = head if isinstance(head, pa.Array) else _table(head)
            parts.append(pc.if_else(pc.is_valid(array), cells, _NOTHING) if array.null_count else cells)
        else:
            fixed.append(head)
        if is_text:
            close()
            parts.append(array.cast(_BYTES))
    close()
    return pc.binary_join_element_wise(*parts, _NOTHING, null_handling="replace", null_replacement=b"")


def _is_null(array: pa.Array) -> npt.NDArray[np.bool_]:
    if not array.null_count:
        return np.zeros(len(array), np.bool_)
    return booleans(pc.is_null(array))


def _fixed(array: pa.Array) -> Octets:
    """The value of each row, of the same width; what a null has there does not matter."""
    kind, rows = array.type, len(array)
    if pa.types.is_timestamp(kind):
        days, clock = np.divmod(_numbers(array.cast(pa.int64())), 86_400_000_000)
        return _calendar(days, clock)
    if pa.types.is_date(kind):
        return _calendar(_numbers(array.cast(pa.int32())), None)
    if pa.types.is_time(kind):
        cells = np.zeros(rows, np.dtype(_TIME_FIELDS))
        cells["length"] = cells.itemsize - 1
        _set_clock(cells, _numbers(array.cast(pa.int64())))
        return cells.view(np.uint8).reshape(rows, -1)
    values = _numbers(array)
    return values.astype(values.dtype.newbyteorder("<")).view(np.uint8).reshape(rows, values.itemsize)


def _calendar(days: npt.NDArray[Any], clock: Integers | None) -> Octets:
    """Dates, or with `clock` (microseconds of the day) moments."""
    cells = np.zeros(len(days), np.dtype(_DATE_FIELDS if clock is None else _DATE_FIELDS + _CLOCK_FIELDS))
    cells["length"] = cells.itemsize - 1
    dates = days.astype("datetime64[D]")
    months = dates.astype("datetime64[M]")
    cells["year"] = months.astype(np.int64) // 12 + 1970
    cells["month"] = months.astype(np.int64) % 12 + 1
    cells["day"] = (dates - months.astype("datetime64[D]")).astype(np.int64) + 1
    if clock is not None:
        _set_clock(cells, clock)
    return cells.view(np.uint8).reshape(len(days), -1)


def _set_clock(cells: npt.NDArray[Any], clock: Integers) -> None:
    seconds, cells["microsecond"] = np.divmod(clock, 1_000_000)
    seconds = seconds.astype(np.int32)
    cells["hour"], cells["minute"], cells["second"] = seconds // 3600, seconds // 60 % 60, seconds % 60


def _numbers(array: pa.Array) -> npt.NDArray[Any]:
    """The values of a numeric array without a copy; 0 for a null."""
    return numbers(pc.fill_null(array, scalar(0, array.type)) if array.null_count else array)


def _lengths(array: pa.Array) -> Octets | pa.Array:
    """The length of each row's bytes: of the same width while all are short, else not."""
    lengths = np.diff(offsets(array))
    if lengths.max(initial=0) < 251:
        return lengths.astype(np.uint8).reshape(-1, 1)
    cells = np.zeros((len(array), 9), np.uint8)
    cells[:, 1:] = lengths.astype("<i8").view(np.uint8).reshape(-1, 8)
    sizes = [lengths < 251, lengths < 1 << 16, lengths < 1 << 24]
    cells[:, 0] = np.select(sizes, [lengths, 0xFC, 0xFD], 0xFE)
    widths = np.select(sizes, [1, 3, 4], 9)
    return _binary(cells[np.arange(9) < widths[:, None]], widths)


def _table(cells: Octets) -> pa.Array:
    rows, width = cells.shape
    return _binary(np.ascontiguousarray(cells).reshape(-1), np.full(rows, width))


def _binary(data: Octets, widths: npt.NDArray[Any]) -> pa.Array:
    ends = np.zeros(len(widths) + 1, np.int64)
    np.cumsum(widths, out=ends[1:])
    return pa.Array.from_buffers(_BYTES, len(widths), [None, pa.py_buffer(ends), pa.py_buffer(data)])
