r"""Rows in the binary format of COPY, which costs the server half of what text costs it.

    "PGCOPY\n\xff\r\n\0", 8 bytes of zero; for each row the number of its fields (2 bytes), and for each field its
    length (4 bytes, -1: NULL) and its value; at the end the number of fields -1. All numbers are big-endian.

Neighbouring fields of a fixed length are laid out by numpy as columns of a matrix. PyArrow joins these matrices and the
values of varying length row by row. The server's function `<type>recv` defines the form of a type's values. A number is
read as strictly as its text. One that the column does not hold has no binary form here (`encode` returns None), so the
server names its row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_ft.sinks.arrow import booleans, is_text, numbers, octets, scalar
from airflow_ft.sinks.postgres.catalog import Column
from airflow_ft.sinks.postgres.encoding import INTEGERS

_HEADER = b"PGCOPY\n\xff\r\n\x00" + bytes(8)
_TRAILER = b"\xff\xff"
_LARGE = pa.large_binary()
_TEXTS = {"text", "varchar", "bpchar", "json"}
_DAYS, _MICROSECONDS = 10_957, 946_684_800_000_000  # PostgreSQL counts from the year 2000
_BASE = 10_000  # of a digit of numeric
_LIMB = 0xFFFF_FFFF
_DIGITS, _LONGEST = 18, 20  # that a number of 8 bytes holds whatever they are, and the most that it has

_Bytes = npt.NDArray[np.uint8]
_Fixed = Callable[[pa.Array], _Bytes]
"""Values of one length as a matrix of bytes. The bytes of a null are arbitrary."""


def encode(batch: pa.RecordBatch, columns: Sequence[Column]) -> bytes | None:
    """The rows; `columns` are those of the table, in the batch's order. None: there is no such form of some of them."""
    if not batch.num_columns:
        return None
    join = _Join(batch.num_rows)
    join.add(np.full((1, 2), np.frombuffer(len(columns).to_bytes(2, "big"), np.uint8)))
    for array, column in zip(batch.columns, columns, strict=True):
        if (fixed := _fixed(array.type, column)) is not None:
            try:
                values = fixed(array)
            except pa.ArrowInvalid:  # a number that the column cannot hold
                return None
            join.fixed(values, booleans(array.is_valid()) if array.null_count else None)
        elif (prefix := _varying(array.type, column)) is not None:
            join.varying(array, prefix)
        else:
            return None
    return b"".join((_HEADER, join.joined(), _TRAILER))


@dataclass(slots=True)
class _Join:
    """The fields of all rows, from left to right."""

    rows: int
    _parts: list[pa.Array] = field(default_factory=list)
    _block: list[_Bytes] = field(default_factory=list)
    """Matrices with a row for each row, or with one for all: they become a part when something else comes."""

    def add(self, matrix: _Bytes) -> None:
        self._block.append(matrix)

    def fixed(self, values: _Bytes, valid: npt.NDArray[np.bool_] | None) -> None:
        """Add values of one length; `valid` are those that are no null, None: all are."""
        width = values.shape[1]
        if valid is None:
            self.add(np.frombuffer(width.to_bytes(4, "big"), np.uint8).reshape(1, 4))
            self.add(values)
            return
        self.add(_big(np.where(valid, width, -1), ">i4"))
        self._end_block()
        edges = np.concatenate([np.zeros(1, np.int64), np.cumsum(valid.astype(np.int64) * width)])
        data = np.ascontiguousarray(values[valid])
        self._parts.append(_array(self.rows, edges, data))

    def varying(self, array: pa.Array, prefix: bytes) -> None:
        """Add texts and bytes; `prefix` precedes each value."""
        values = array.cast(_LARGE)
        lengths = pc.fill_null(pc.binary_length(values).cast(pa.int64()), scalar(-1 - len(prefix), pa.int64()))
        self.add(_big(numbers(lengths) + len(prefix), ">i4"))
        self._end_block()
        values = pc.fill_null(values, scalar(b"", _LARGE))
        if prefix:
            there = pc.if_else(array.is_valid(), scalar(prefix, _LARGE), scalar(b"", _LARGE))
            values = pc.binary_join_element_wise(there, values, scalar(b"", _LARGE))
        self._parts.append(values)

    def joined(self) -> memoryview:
        self._end_block()
        if len(self._parts) == 1:
            return octets(self._parts[0])
        return octets(pc.binary_join_element_wise(*self._parts, scalar(b"", _LARGE)))

    def _end_block(self) -> None:
        if not self._block:
            return
        width = sum(each.shape[1] for each in self._block)
        matrix = np.empty((self.rows, width), np.uint8)
        at = 0
        for each in self._block:
            matrix[:, at : at + each.shape[1]] = each
            at += each.shape[1]
        self._parts.append(_array(self.rows, np.arange(self.rows + 1, dtype=np.int64) * width, matrix))
        self._block = []


def _array(rows: int, edges: npt.NDArray[np.int64], data: _Bytes) -> pa.Array:
    return pa.Array.from_buffers(_LARGE, rows, [None, pa.py_buffer(edges), pa.py_buffer(data)])


def _big(values: npt.NDArray[np.generic], kind: str) -> _Bytes:
    """Numbers as a matrix of their bytes, the highest first."""
    found = values.astype(kind)
    return found.view(np.uint8).reshape(len(found), found.dtype.itemsize)


def _varying(type: pa.DataType, column: Column) -> bytes | None:
    """Return the bytes before each value; None if the type has no binary form."""
    if column.element:
        return None
    if is_text(type):
        if column.kind in _TEXTS or column.sort == "e":
            return b""
        return b"\x01" if column.kind == "jsonb" else None  # the version of its text
    is_bytes = pa.types.is_binary(type) or pa.types.is_large_binary(type)
    return b"" if is_bytes and column.kind == "bytea" else None


def _fixed(type: pa.DataType, column: Column) -> _Fixed | None:
    """None: their length varies, or they have no such form."""
    kind, is_ = column.kind, pa.types
    if column.element:
        return None
    if is_.is_boolean(type) and kind == "bool":
        return lambda values: numbers(values.cast(pa.uint8())).reshape(-1, 1)
    if kind in INTEGERS and (is_.is_integer(type) or is_.is_decimal(type)):
        whole = INTEGERS[kind]
        return lambda values: _big(numbers(values.cast(whole)), f">i{whole.bit_width // 8}")
    # A double may lie beyond a real: as text the server says so.
    if kind == "float4" and is_.is_floating(type) and type.bit_width <= 32:
        return lambda values: _big(numbers(values.cast(pa.float32())), ">f4")
    if kind == "float8" and (is_.is_floating(type) or is_.is_integer(type)):
        return lambda values: _big(numbers(values.cast(pa.float64())), ">f8")
    if kind == "numeric" and is_.is_decimal128(type) and 0 <= type.scale <= type.precision:
        return lambda values: _numeric(values, type.precision, type.scale)
    if kind == "numeric" and is_.is_integer(type):
        return lambda values: _numeric(values.cast(pa.decimal128(_LONGEST, 0)), _LONGEST, 0)
    if kind == "date" and is_.is_date(type):
        return lambda values: _big(numbers(values.cast(pa.date32()).cast(pa.int32())).astype(np.int64) - _DAYS, ">i4")
    if kind in ("timestamp", "timestamptz") and is_.is_timestamp(type):
        return lambda values: _big(_microseconds(values) - _MICROSECONDS, ">i8")
    if kind == "time" and is_.is_time(type):
        return lambda values: _big(numbers(values.cast(pa.time64("us")).cast(pa.int64())), ">i8")
    return None


def _microseconds(values: pa.Array) -> npt.NDArray[np.int64]:
    found: npt.NDArray[np.int64] = numbers(values.cast(pa.timestamp("us", values.type.tz), safe=False).cast(pa.int64()))
    return found


def _numeric(values: pa.Array, precision: int, scale: int) -> _Bytes:
    """As many digits of the base 10,000 as the largest value needs: the server drops zeros at both ends."""
    words = np.frombuffer(values.buffers()[1] or b"", np.int64, 2 * len(values), 16 * values.offset)
    in_front, behind = -(-(precision - scale) // 4), -(-scale // 4)
    negative = words[1::2] < 0
    count, filling = in_front + behind, 10 ** (4 * behind - scale)
    if 4 * count <= _DIGITS:  # the lower half holds them whole, with the zeros that fill the last digit
        whole = np.abs(words[::2]) * filling
        digits = [whole // _BASE**place % _BASE for place in reversed(range(count))]
    else:
        digits = _of_large(words, negative, filling, count)
    head = [np.int64(count), np.int64(in_front - 1), np.where(negative, 0x4000, 0), np.int64(scale)]
    matrix = np.empty((len(values), 4 + count), ">i2")
    for place, each in enumerate([*head, *digits]):
        matrix[:, place] = each
    return matrix.view(np.uint8)


def _of_large(words: npt.NDArray[np.int64], negative: npt.NDArray[np.bool_], filling: int, count: int) -> list[Any]:
    """The digits of whole numbers of 128 bits, times `filling`, from the highest to the lowest.

    By division of their five limbs of 32 bits.
    """
    low = np.ascontiguousarray(words).view("<u4").astype(np.uint64).reshape(-1, 4).T
    limbs = []
    carry: Any = negative.astype(np.uint64)  # what the complement of a negative number lacks
    for each in low:  # from the lowest to the highest
        plain = np.where(negative, each ^ np.uint64(_LIMB), each) + carry
        limbs.append(plain & np.uint64(_LIMB))
        carry = plain >> np.uint64(32)
    carry = np.zeros(len(negative), np.uint64)
    for place, each in enumerate(limbs):
        carry += each * np.uint64(filling)
        limbs[place] = carry & np.uint64(_LIMB)
        carry = carry >> np.uint64(32)
    limbs.append(carry)
    digits = []
    for _ in range(count):
        rest = np.zeros(len(negative), np.uint64)
        for place in reversed(range(len(limbs))):
            rest = (rest << np.uint64(32)) | limbs[place]
            limbs[place], rest = np.divmod(rest, np.uint64(_BASE))
        digits.append(rest)
    return digits[::-1]
