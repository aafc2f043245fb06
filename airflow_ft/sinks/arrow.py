"""What PyArrow does with a side effect: asked for a scalar or a NumPy array, it imports pandas if that is installed.

(It looks whether a value is one of pandas; so do `pa.array`, and compute functions that are given a Python value.) A
task lives for a second or two, of which that takes a quarter, and 50 MB.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_TEXT, _BYTES = pa.large_string(), pa.large_binary()


def scalar(value: bytes | str | int | None, kind: pa.DataType) -> pa.Scalar:
    """The value as a scalar of an Arrow type that its text can be cast to; None: null."""
    if value is None:
        return pa.nulls(1, kind)[0]
    data = value if isinstance(value, bytes) else str(value).encode()
    ends = pa.py_buffer(struct.pack("<qq", 0, len(data)))
    one = pa.Array.from_buffers(_BYTES if isinstance(value, bytes) else _TEXT, 1, [None, ends, pa.py_buffer(data)])
    return one.cast(kind)[0]


def numbers(array: pa.Array) -> npt.NDArray[Any]:
    """The values of an array of integers or doubles, without a copy; of a null whatever stands there."""
    dtype, data = np.dtype(str(array.type)), array.buffers()[1]
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
    """Where each value of an array of large_binary or large_string begins, and where the last one ends."""
    return np.frombuffer(array.buffers()[1], np.int64, len(array) + 1, array.offset * 8)
