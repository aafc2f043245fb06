"""Rows of a few values as bytes, as Paimon's manifests have them and as buckets hash them (`BinaryRow` of Paimon).

Eight bytes for each value follow a header and the bits of nulls. A text of up to seven bytes lies in its eight bytes.
A longer one lies behind all of them, and its eight bytes hold its place and length.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_ft.sinks.arrow import BYTES, booleans, flags, indices, is_text, numbers, scalar
from airflow_ft.sinks.base.table_columns import WHOLE

Value = str | int | bool | None
_KINDS = {**{name: kind for name, (_, kind) in WHOLE.items()}, "string": pa.large_string(), "boolean": pa.bool_(),
          "date": pa.int32()}  # fmt: skip
_FORMS = {"boolean": "<?", "tinyint": "<b", "smallint": "<h", "int": "<i", "date": "<i", "bigint": "<q"}
_HEADER_BITS, _INLINE = 8, 7
_NOTHING, _ZERO = scalar(b"", BYTES), scalar(b"\0", BYTES)


def binary_rows(columns: Sequence[pa.Array | None], rows: int) -> pa.Array:
    """Return the bytes of each row with these values. None: a column of NULL."""
    nulls = _null_words(len(columns))
    fixed = np.zeros((rows, nulls + len(columns)), np.uint64)
    width = 8 * fixed.shape[1]
    end = np.full(rows, width)
    behind: list[pa.Array] = []
    for index, column in enumerate(columns):
        empty = np.ones(rows, bool) if column is None else booleans(column.is_null())
        bit = index + _HEADER_BITS
        fixed[empty, bit // 64] |= np.uint64(1 << bit % 64)
        if column is None:
            continue
        if not is_text(column.type):
            fixed[:, nulls + index] = _words(column)
            continue
        data = pc.fill_null(column.cast(BYTES), _NOTHING)
        length = numbers(pc.binary_length(data)).astype(np.int64)
        far = length > _INLINE
        near = np.array(data.to_pylist(), "S8").view("<i8") | np.where(empty, 0, 0x80 | length) << 56
        fixed[:, nulls + index] = np.where(far, end << 32 | length, near)
        gap = np.where(far, -length % 8, 0)
        behind += [pc.if_else(flags(far), data, _NOTHING), pc.binary_repeat(_ZERO, indices(gap))]
        end += np.where(far, length + gap, 0)
    starts = indices(np.arange(rows + 1) * width).buffers()[1]
    begin = pa.Array.from_buffers(BYTES, rows, [None, starts, pa.py_buffer(fixed)])
    return pc.binary_join_element_wise(begin, *behind, _NOTHING)


def encoded_rows(columns: Sequence[pa.Array | None], rows: int) -> list[bytes]:
    """Return each row with these values as a manifest has it: its arity comes first."""
    return [struct.pack(">i", len(columns)) + row for row in binary_rows(columns, rows).to_pylist()]


def encoded(values: Sequence[Value], kinds: Sequence[str]) -> bytes:
    """Return one row as a manifest has it. `kinds` are Spark's names of the types; a date is its days since 1970."""
    pairs = zip(values, kinds, strict=True)
    return encoded_rows([pa.repeat(scalar(value, _KINDS[kind]), 1) for value, kind in pairs], 1)[0]


def decoded(data: bytes, kinds: Sequence[str]) -> list[Value]:
    """Return the values of a row as a manifest has it."""
    found: list[Value] = []
    fixed = memoryview(data)[4:]
    nulls = 8 * _null_words(len(kinds))
    for index, kind in enumerate(kinds):
        place, bit = nulls + 8 * index, index + _HEADER_BITS
        if fixed[bit // 8] & 1 << bit % 8:
            found.append(None)
        elif kind != "string":
            found.append(struct.unpack_from(_FORMS[kind], fixed, place)[0])
        elif fixed[place + _INLINE] & 0x80:
            found.append(str(fixed[place : place + (fixed[place + _INLINE] & 0x7F)], "utf-8"))
        else:
            [where] = struct.unpack_from("<Q", fixed, place)
            found.append(str(fixed[where >> 32 : (where >> 32) + (where & 0xFFFFFFFF)], "utf-8"))
    return found


def _null_words(columns: int) -> int:
    """Return how many words of eight bytes hold the header and the bits of nulls."""
    return (columns + 63 + _HEADER_BITS) // 64


def _words(column: pa.Array) -> npt.NDArray[np.uint64]:
    """Return each value in eight bytes, its sign in its own bytes alone; NULL is 0."""
    if pa.types.is_date32(column.type):
        column = column.view(pa.int32())
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    values = numbers(pc.fill_null(column, scalar(0, column.type)))
    return values.view(f"<u{column.type.bit_width // 8}").astype(np.uint64)


EMPTY = encoded((), ())
"""A row without values."""
