"""Arrow columns as the binary parameters of MariaDB's bulk protocol (COM_STMT_BULK_EXECUTE). No Python loop over rows.

A parameter is an indicator byte (0: a value follows, 1: NULL) and its value: integers and doubles of fixed width, dates
and times field by field, everything else as bytes behind their length. Decimals and nested values are the text of
`encoding`, so that the server reads them as it reads them from a LOAD DATA.

https://mariadb.com/docs/server/reference/clientserver-protocol/3-binary-protocol-prepared-statements/com_stmt_bulk_execute
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_ft.sinks.mysql.encoding import TargetColumn, is_binary
from airflow_ft.sinks.mysql.json_text import is_nested, to_json
from airflow_ft.sinks.mysql.naming import quote

_BYTES = pa.large_binary()
_NULL = pa.scalar(b"\x01", _BYTES)
_UNSIGNED = 128
_INTEGERS = {8: 1, 16: 2, 32: 3, 64: 8}  # bits: MYSQL_TYPE_TINY, SHORT, LONG, LONGLONG
_DOUBLE, _DATE, _TIME, _DATETIME, _BLOB, _STRING = 5, 10, 11, 12, 252, 254

_DATE_FIELDS = [("indicator", "u1"), ("length", "u1"), ("year", "<u2"), ("month", "u1"), ("day", "u1")]
_CLOCK_FIELDS = [("hour", "u1"), ("minute", "u1"), ("second", "u1"), ("microsecond", "<u4")]
_TIME_FIELDS = [("indicator", "u1"), ("length", "u1"), ("negative", "u1"), ("days", "<u4"), *_CLOCK_FIELDS]

Octets = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int64]


def bulk_statement(table: str, columns: Sequence[TargetColumn]) -> str:
    """The INSERT of one row that `bulk_rows` are the parameters of; `table` is quoted."""
    names = ", ".join(quote(column.name) for column in columns)
    return f"INSERT INTO {table} ({names}) VALUES ({', '.join('?' * len(columns))})"


def bulk_types(schema: pa.Schema, columns: Sequence[TargetColumn]) -> bytes:
    """Type and flags of each parameter."""
    return b"".join(_type(_sent_as(schema.field(column.source).type)) for column in columns)


def bulk_rows(
    batch: pa.RecordBatch, columns: Sequence[TargetColumn], size: int
) -> Iterator[tuple[memoryview, pa.RecordBatch]]:
    """The parameters of at most `size` bytes of rows at a time (one row may exceed it), with these rows."""
    arrays = [_cast(batch.column(batch.schema.get_field_index(column.source))) for column in columns]
    rows = _joined(arrays)
    ends = _offsets(rows)
    values = rows.buffers()[2]
    start = 0
    while start < len(rows):
        stop = max(start + 1, int(np.searchsorted(ends, ends[start] + size, side="right")) - 1)
        yield memoryview(values).cast("B")[ends[start] : ends[stop]], batch.slice(start, stop - start)
        start = stop


# --- types -----------------------------------------------------------------------------------------------------------


def _sent_as(kind: pa.DataType) -> pa.DataType:
    """The Arrow type whose values are sent for those of `kind`."""
    types = pa.types
    if types.is_dictionary(kind):
        return _sent_as(kind.value_type)
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
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    return to_json(array) if is_nested(array.type) else array.cast(_sent_as(array.type))


# --- rows ------------------------------------------------------------------------------------------------------------


def _joined(arrays: Sequence[pa.Array]) -> pa.Array:
    """One value a row: all its parameters. Neighbours of fixed width are put together before."""
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
            parts.append(pc.if_else(pc.is_valid(array), cells, _NULL) if array.null_count else cells)
        else:
            fixed.append(head)
        if is_text:
            close()
            parts.append(array.cast(_BYTES))
    close()
    if len(parts) == 1:
        return parts[0]
    nothing = pa.scalar(b"", _BYTES)
    return pc.binary_join_element_wise(*parts, nothing, null_handling="replace", null_replacement=b"")


def _fixed(array: pa.Array) -> Octets:
    """Indicator and value of each row, of the same width; what a null has there does not matter."""
    kind, rows = array.type, len(array)
    if pa.types.is_timestamp(kind):
        days, clock = np.divmod(_numbers(array.cast(pa.int64())), 86_400_000_000)
        return _calendar(days, clock)
    if pa.types.is_date(kind):
        return _calendar(_numbers(array.cast(pa.int32())), None)
    if pa.types.is_time(kind):
        cells = np.zeros(rows, np.dtype(_TIME_FIELDS))
        cells["length"] = cells.itemsize - 2
        _set_clock(cells, _numbers(array.cast(pa.int64())))
        return cells.view(np.uint8).reshape(rows, -1)
    values = _numbers(array)
    found = np.zeros((rows, 1 + values.itemsize), np.uint8)
    found[:, 1:] = values.astype(values.dtype.newbyteorder("<")).view(np.uint8).reshape(rows, -1)
    return found


def _calendar(days: npt.NDArray[Any], clock: Integers | None) -> Octets:
    """Dates, or with `clock` (microseconds of the day) moments."""
    cells = np.zeros(len(days), np.dtype(_DATE_FIELDS if clock is None else _DATE_FIELDS + _CLOCK_FIELDS))
    cells["length"] = cells.itemsize - 2
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
    filled = array.fill_null(0) if array.null_count else array
    return np.asarray(filled.to_numpy(zero_copy_only=True))


def _lengths(array: pa.Array) -> Octets | pa.Array:
    """Indicator and length of each row's bytes: of the same width while all are short, else not."""
    lengths = np.diff(_offsets(array))
    if lengths.max(initial=0) < 251:
        return np.column_stack([np.zeros(len(array), np.uint8), lengths.astype(np.uint8)])
    cells = np.zeros((len(array), 10), np.uint8)
    cells[:, 2:] = lengths.astype("<i8").view(np.uint8).reshape(-1, 8)
    sizes = [lengths < 251, lengths < 1 << 16, lengths < 1 << 24]
    cells[:, 1] = np.select(sizes, [lengths, 0xFC, 0xFD], 0xFE)
    widths = np.select(sizes, [2, 4, 5], 10)
    return _binary(cells[np.arange(10) < widths[:, None]], widths)


def _table(cells: Octets) -> pa.Array:
    rows, width = cells.shape
    return _binary(np.ascontiguousarray(cells).reshape(-1), np.full(rows, width))


def _binary(data: Octets, widths: npt.NDArray[Any]) -> pa.Array:
    ends = np.zeros(len(widths) + 1, np.int64)
    np.cumsum(widths, out=ends[1:])
    return pa.Array.from_buffers(_BYTES, len(widths), [None, pa.py_buffer(ends), pa.py_buffer(data)])


def _offsets(array: pa.Array) -> Integers:
    """Where each value of a large binary array begins, and where the last one ends."""
    return np.frombuffer(array.buffers()[1], np.int64, len(array) + 1, array.offset * 8)
