"""The bytes of requests that write rows (`mutateRowsTs` of HBase's Thrift gateway).

The library makes an object of each row and cell. That took most of the time of a delivery, so this makes the bytes of
whole columns. It leaves out fields with the gateway's defaults: `isDelete`, if false, and `writeToWAL`, if true.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from struct import Struct

import pyarrow as pa
import pyarrow.compute as pc

from airflow_ft.sinks.arrow import BYTES, binaries, numbers, scalar

_I32, _I64 = Struct(">i").pack, Struct(">q").pack
_END = b"\0"
"""Of a struct, in both protocols."""
_PACKED_BYTES = 16_000_000
"""Of values that are packed at a time, which bounds the copies of large ones."""


@dataclass(frozen=True, slots=True)
class Wire:
    """One of Thrift's protocols: the bytes before each field of `Mutation`, `BatchMutation` and `mutateRowsTs_args`.

    Args:
        text: before a row key and a table's name. Like all texts they have their length before them.
        column: before the name of a cell that is written.
        deleted: before the name of a cell or family that is deleted.
        value: before a value.
        length: the bytes of a length.
        structs: before a list of cells or rows, of which it gets the number.
        stamp: a timestamp, with what is before it.
        rest: the end of a request.
    """

    text: bytes
    column: bytes
    deleted: bytes
    value: bytes
    length: Callable[[int], bytes]
    structs: Callable[[int], bytes]
    stamp: Callable[[int], bytes]
    rest: bytes

    def delete(self, name: bytes) -> bytes:
        """Return a `Mutation` that deletes a cell, or a family."""
        return b"".join((self.deleted, self.length(len(name)), name, _END))

    def rows(self, keys: Sequence[bytes], cells: Mapping[bytes, pa.Array]) -> list[bytes]:
        """Return a `BatchMutation` for each key: cells by their names, as large_binary; null deletes the cell."""
        size = sum(values.nbytes for values in cells.values())
        step = max(1, _PACKED_BYTES * len(keys) // max(_PACKED_BYTES, size))
        found: list[bytes] = []
        for start in range(0, len(keys), step):
            heads = binaries([self._row(key, len(cells)) for key in keys[start : start + step]])
            made = [self._cells(name, values.slice(start, step)) for name, values in cells.items()]
            packed = pc.binary_join_element_wise(heads, *made, scalar(_END, BYTES), scalar(b"", BYTES))
            found += packed.to_pylist()
        return found

    def deletes(self, keys: Iterable[bytes], families: Sequence[str]) -> dict[bytes, bytes]:
        """Return a `BatchMutation` for each key, which deletes the row's cells in these families."""
        gone = b"".join(self.delete(family.encode()) for family in families) + _END
        return {key: self._row(key, len(families)) + gone for key in keys}

    def request(self, table: str, rows: Sequence[bytes], stamp: int) -> bytes:
        """Return the arguments of `mutateRowsTs`."""
        name = table.encode()
        head = self.text, self.length(len(name)), name, self.structs(len(rows))
        return b"".join((*head, *rows, self.stamp(stamp), self.rest))

    def _row(self, key: bytes, cells: int) -> bytes:
        return b"".join((self.text, self.length(len(key)), key, self.structs(cells)))

    def _cells(self, name: bytes, values: pa.Array) -> pa.Array:
        """Return a `Mutation` for each value."""
        sizes = numbers(pc.fill_null(pc.binary_length(values), scalar(0, pa.int64()))).tolist()
        known = {size: self.length(size) for size in set(sizes)}
        lengths = binaries([known[size] for size in sizes])
        head = scalar(b"".join((self.column, self.length(len(name)), name, self.value)), BYTES)
        put = pc.binary_join_element_wise(head, lengths, values, scalar(_END, BYTES), scalar(b"", BYTES))
        return pc.fill_null(put, scalar(self.delete(name), BYTES)) if values.null_count else put


def _varint(number: int) -> bytes:
    """Return a number from 0 on in groups of seven bits, the lowest ones first."""
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*found, number))


BINARY = Wire(
    text=b"\x0b\0\1",
    column=b"\x0b\0\2",
    deleted=b"\2\0\1\1\x0b\0\2",
    value=b"\x0b\0\3",
    length=_I32,
    structs=lambda count: b"\x0f\0\2\x0c" + _I32(count),
    stamp=lambda at: b"\x0a\0\3" + _I64(at),
    rest=b"\x0d\0\4\x0b\x0b" + _I32(0) + _END,  # no attributes
)
COMPACT = Wire(
    text=b"\x18",
    column=b"\x28",
    deleted=b"\x11\x18",
    value=b"\x18",
    length=_varint,
    structs=lambda count: b"\x19" + (bytes([count << 4 | 12]) if count < 15 else b"\xfc" + _varint(count)),
    stamp=lambda at: b"\x16" + _varint(at << 1),
    rest=b"\x1b\0" + _END,
)
