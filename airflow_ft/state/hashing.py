"""Which state partition holds a key: `pmod(hash(key), partitions)`, as Spark distributes rows by their key.

Spark's `hash` is Murmur3 (x86, 32 bits) with seed 42 over the columns, the hash of one being the seed of the next. Two
things differ from others: the last bytes of a text are mixed in one by one, as signed numbers, and a null changes
nothing (`Murmur3_x86_32.java`, `HashExpression`).

A lookup uses it to look into one partition first. If it does not find the key there it looks into the others, too: so
a wrong guess costs time, and is never a wrong answer.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from airflow_ft.state.rows import StateColumn, _header, columns_of, decimal_of

_SEED = 42
_MASK = 0xFFFFFFFF
_IN_FOUR = ("boolean", "byte", "short", "integer", "date")
_MINUS_ZERO = {"float": 1 << 31, "double": 1 << 63}


def partition_of(columns: Sequence[StateColumn], row: bytes, partitions: int) -> int:
    """Return the partition of a key's row, as `write_row` makes it."""
    hashed = hash_of(columns, row, 0, _SEED)
    return (hashed - (1 << 32) if hashed >> 31 else hashed) % partitions


def hash_of(columns: Sequence[StateColumn], row: bytes, base: int, seed: int) -> int:
    """Return the hash of a row's columns, as an unsigned number."""
    for index, column in enumerate(columns):
        if not row[base + (index >> 3)] >> (index & 7) & 1:
            seed = _hash(column, row, base, base + _header(len(columns)) + 8 * index, seed)
    return seed


def _hash(column: StateColumn, row: bytes, base: int, at: int, seed: int) -> int:
    kind = column.kind
    (word,) = struct.unpack_from("<Q", row, at)
    if isinstance(kind, dict):
        return hash_of(columns_of(kind), row, base + (word >> 32), seed)  # structs alone can be keys
    if word == _MINUS_ZERO.get(kind):  # which has the hash of 0.0
        word = 0
    if kind == "float":
        return _end(_mix(seed, word), 4)
    if kind in _IN_FOUR:
        (signed,) = struct.unpack_from("<b" if kind == "byte" else "<h" if kind == "short" else "<i", row, at)
        return _end(_mix(seed, signed & _MASK), 4)
    if kind in ("string", "binary") or kind.startswith(("varchar", "char")) or _is_long(kind):
        offset, size = word >> 32, word & _MASK
        return _of_bytes(row[base + offset : base + offset + size], seed)
    return _end(_mix(_mix(seed, word & _MASK), word >> 32), 8)


def _is_long(kind: str) -> bool:
    return kind.startswith("decimal(") and decimal_of(kind)[0] > 18


def _of_bytes(data: bytes, seed: int) -> int:
    whole = len(data) // 4 * 4
    for (part,) in struct.iter_unpack("<I", data[:whole]):
        seed = _mix(seed, part)
    for byte in data[whole:]:
        seed = _mix(seed, (byte - 256 if byte > 127 else byte) & _MASK)
    return _end(seed, len(data))


def _mix(seed: int, part: int) -> int:
    part = part * 0xCC9E2D51 & _MASK
    part = (part << 15 | part >> 17) & _MASK
    seed ^= part * 0x1B873593 & _MASK
    seed = (seed << 13 | seed >> 19) & _MASK
    return seed * 5 + 0xE6546B64 & _MASK


def _end(seed: int, length: int) -> int:
    seed ^= length
    seed = (seed ^ seed >> 16) * 0x85EBCA6B & _MASK
    seed = (seed ^ seed >> 13) * 0xC2B2AE35 & _MASK
    return seed ^ seed >> 16
