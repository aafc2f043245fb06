"""Replacements for functions of PyArrow that are slow, or have a side effect.

Asked for a scalar or a NumPy array, it imports pandas if that is installed: it looks whether a value is one of pandas.
So do `pa.array`, and compute functions that are given a Python value. A task lives for a second or two, of which that
takes a quarter, and 50 MB.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

_SINGLE = {"float": "float32", "halffloat": "float16"}  # as Arrow and NumPy call them
_TEXT, BYTES = pa.large_string(), pa.large_binary()
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896  # since 1970: 0001-01-01 and 9999-12-31
_PER_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}
_DIGITS = np.frombuffer("".join(f"{byte:02x}" for byte in range(256)).encode(), "<u2")


def is_text(kind: pa.DataType) -> bool:
    """Return whether the values are text."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def is_binary(kind: pa.DataType) -> bool:
    """Return whether the values are bytes."""
    return bool(
        pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind)
        or pa.types.is_binary_view(kind)
    )  # fmt: skip


def first_fit(kind: pa.DataType, names: Sequence[tuple[Callable[[pa.DataType], bool], str]]) -> str:
    """The name beside the first test that the type passes; "" when it passes none."""
    return next((name for fits, name in names if fits(kind)), "")


def with_plain(kind: pa.DataType, plain: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """Replace each part that is not nested by `plain` of it. All parts may be NULL, but for the keys of maps."""
    if pa.types.is_map(kind):
        return pa.map_(with_plain(kind.key_type, plain), with_plain(kind.item_type, plain))
    if pa.types.is_large_list(kind):
        return pa.large_list(with_plain(kind.value_type, plain))
    if pa.types.is_list(kind):
        return pa.list_(with_plain(kind.value_type, plain))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, with_plain(field.type, plain)) for field in kind])
    return plain(kind)


def scalar(value: bytes | str | int | None, kind: pa.DataType) -> pa.Scalar:
    """The value as a scalar of an Arrow type that its text can be cast to; None: null."""
    if value is None:
        return pa.nulls(1, kind)[0]
    data = value if isinstance(value, bytes) else str(value).encode()
    ends = pa.py_buffer(struct.pack("<qq", 0, len(data)))
    one = pa.Array.from_buffers(BYTES if isinstance(value, bytes) else _TEXT, 1, [None, ends, pa.py_buffer(data)])
    return one.cast(kind)[0]


def texts(values: Sequence[str]) -> pa.Array:
    """Return an array of large_string."""
    return binaries([value.encode() for value in values]).view(_TEXT)


def binaries(values: Sequence[bytes | None]) -> pa.Array:
    """Return an array of large_binary."""
    data = [value or b"" for value in values]
    ends = np.cumsum([0, *map(len, data)], dtype=np.int64)
    there = None
    if None in values:
        there = flags(np.array([value is not None for value in values])).buffers()[1]
    return pa.Array.from_buffers(BYTES, len(data), [there, pa.py_buffer(ends), pa.py_buffer(b"".join(data))])


def decoded(column: pa.Array) -> pa.Array:
    """Return the column without a dictionary."""
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def decoded_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of the values; of a dictionary, that of its entries."""
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def masked(column: pa.Array, keep: pa.Array) -> pa.Array:
    """Return the column without a dictionary, with NULL where it is not kept."""
    column = decoded(column)
    return pc.if_else(keep, column, scalar(None, column.type))


def finite(column: pa.Array) -> pa.Array:
    """Mark values that are neither NaN nor infinity; null for nulls. PyArrow under 21 cannot test 16-bit floats."""
    return pc.is_finite(column.cast(pa.float32()) if pa.types.is_float16(column.type) else column)


def numbers(array: pa.Array) -> npt.NDArray[Any]:
    """Return the values of an array of integers or reals, without a copy; the value of a null is arbitrary."""
    name = str(array.type)
    dtype, data = np.dtype(_SINGLE.get(name, name)), array.buffers()[1]
    if data is None:
        return np.zeros(len(array), dtype)
    return np.frombuffer(data, dtype, len(array), array.offset * dtype.itemsize)


def booleans(array: pa.Array) -> npt.NDArray[np.bool_]:
    """The values of a boolean array without nulls."""
    return numbers(array.cast(pa.uint8())).view(np.bool_)


def flags(values: npt.NDArray[np.bool_]) -> pa.Array:
    """The values as an array of booleans without nulls."""
    bits = pa.py_buffer(np.packbits(values, bitorder="little"))
    return pa.Array.from_buffers(pa.bool_(), len(values), [None, bits])


def offsets(array: pa.Array) -> npt.NDArray[np.int64]:
    """Return where each value of an array of large_binary or large_string begins, and where the last one ends."""
    return np.frombuffer(array.buffers()[1], np.int64, len(array) + 1, array.offset * 8)


def octets(array: pa.Array) -> memoryview:
    """The values of an array of large_binary or large_string, one after the other, without a copy."""
    ends = offsets(array)
    return memoryview(array.buffers()[2] or b"")[ends[0] : ends[-1]]


def hexadecimal(values: pa.Array) -> pa.Array:
    """Two lower-case digits a byte, as large_string; null stays null."""
    values = values.cast(BYTES)
    ends = offsets(values)
    digits = pa.py_buffer(_DIGITS[np.frombuffer(octets(values), np.uint8)])
    edges = pa.py_buffer((ends - ends[0]) * 2)
    return pa.Array.from_buffers(_TEXT, len(values), [_validity(values), edges, digits])


def _validity(array: pa.Array) -> pa.Buffer | None:
    """The bitmap of what is no null, from the first value on."""
    return flags(booleans(array.is_valid())).buffers()[1] if array.null_count else None


def replaced(text: pa.Array, pairs: Sequence[tuple[str, str]]) -> pa.Array:
    """A large_string array with ASCII characters replaced by longer texts, in this order; none may bring a later one.

    What `pc.replace_substring` does for one pair, for all of them at once and in a tenth of the time.
    """
    whole = values = bytes(octets(text))
    data = np.frombuffer(whole, np.uint8)
    lowest = data.min(initial=255)  # mostly a blank: no control character has to be looked for
    ends = offsets(text) - offsets(text)[0]
    moved = ends.copy()
    for found, put in pairs:
        if ord(found) >= lowest and found.encode() in values:
            moved += np.searchsorted(np.flatnonzero(data == ord(found)), ends) * (len(put) - 1)
            values = values.replace(found.encode(), put.encode())
    if values is whole:
        return text
    return pa.Array.from_buffers(_TEXT, len(text), [_validity(text), pa.py_buffer(moved), pa.py_buffer(values)])


def is_beyond(values: pa.Array) -> bool:
    """Return whether a date or a time lies outside of the years 1 to 9999, and so has no text that others read."""
    if (found := _counted(values)) is None:
        return False
    ends, days = pc.min_max(found[0]).as_py(), found[1]
    return ends["min"] is not None and (ends["min"] < _FIRST_DAY * days or ends["max"] >= (_LAST_DAY + 1) * days)


def beyond(values: pa.Array) -> list[int]:
    """Return where these are."""
    if not is_beyond(values) or (found := _counted(values)) is None:
        return []
    counts, days = found
    first, end = (scalar(day * days, counts.type) for day in (_FIRST_DAY, _LAST_DAY + 1))
    outside = pc.or_(pc.less(counts, first), pc.greater_equal(counts, end))
    return positions(outside)


def positions(marks: pa.Array) -> list[int]:
    """Return where an array of booleans is true."""
    return list(numbers(pc.indices_nonzero(pc.fill_null(marks, scalar(False, pa.bool_())))).tolist())


def indices(values: npt.NDArray[np.int64]) -> pa.Array:
    """Return numbers as an Arrow array, without a copy."""
    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])


def python_values(column: pa.Array) -> list[Any]:
    """Return the values as Python's. Dates and times outside of the years 1 to 9999 become numbers since 1970."""
    try:
        return list(column.to_pylist())
    except (OverflowError, ValueError):  # as rarely as such values: each is looked at on its own
        return [_python_value(column.slice(row, 1)) for row in range(len(column))]


def _python_value(one: pa.Array) -> Any:
    try:
        return one.to_pylist()[0]
    except (OverflowError, ValueError):
        return one.cast(with_plain(one.type, _numbered)).to_pylist()[0]


def _numbered(kind: pa.DataType) -> pa.DataType:
    """Return the type of the numbers that replace dates or times; any other type as it is."""
    if pa.types.is_timestamp(kind) or pa.types.is_date64(kind):
        return pa.int64()
    return pa.int32() if pa.types.is_date32(kind) else kind


def _counted(values: pa.Array) -> tuple[pa.Array, int] | None:
    """Dates and times as numbers since 1970, and how many of these make a day; None: they are neither."""
    kind = values.type
    if pa.types.is_timestamp(kind):
        return values.view(pa.int64()), _PER_DAY[kind.unit]
    return (values.cast(pa.date32()).view(pa.int32()), 1) if pa.types.is_date(kind) else None
