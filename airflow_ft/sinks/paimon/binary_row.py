"""Rows of a few values as bytes, as Paimon's manifests have them (`BinaryRow` of Paimon, with its arity before it).

Eight bytes for each value follow a header and the bits of nulls. A text of up to seven bytes lies in its eight bytes.
A longer one lies behind all of them, and its eight bytes hold its place and length.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

Value = str | int | bool | None
_HEADER_BITS = 8
_INLINE = 7
_FORMS = {"boolean": "<?", "tinyint": "<b", "smallint": "<h", "int": "<i", "date": "<i", "bigint": "<q"}


def encoded(values: Sequence[Value], kinds: Sequence[str]) -> bytes:
    """Return the row as a manifest has it. `kinds` are Spark's names of the types; a date is its days since 1970."""
    nulls = (len(values) + 63 + _HEADER_BITS) // 64 * 8
    fixed, behind = bytearray(nulls + 8 * len(values)), bytearray()
    for index, (value, kind) in enumerate(zip(values, kinds, strict=True)):
        place = nulls + 8 * index
        if value is None:
            bit = index + _HEADER_BITS
            fixed[bit // 8] |= 1 << bit % 8
        elif isinstance(value, str):
            data = value.encode()
            if len(data) <= _INLINE:
                fixed[place : place + len(data)] = data
                fixed[place + _INLINE] = 0x80 | len(data)
            else:
                struct.pack_into("<Q", fixed, place, (len(fixed) + len(behind)) << 32 | len(data))
                behind += data + bytes(-len(data) % 8)
        else:
            struct.pack_into(_FORMS[kind], fixed, place, value)
    return struct.pack(">i", len(values)) + bytes(fixed + behind)


def decoded(data: bytes, kinds: Sequence[str]) -> list[Value]:
    """Return the values of a row as a manifest has it."""
    found: list[Value] = []
    fixed = memoryview(data)[4:]
    nulls = (len(kinds) + 63 + _HEADER_BITS) // 64 * 8
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


EMPTY = encoded((), ())
"""A row without values."""
