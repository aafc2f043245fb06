"""Buckets of a Paimon table: which of them a row belongs to (murmur hash over the bytes of its bucket key)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_ft.sinks.arrow import numbers, scalar
from airflow_ft.sinks.base.table_columns import WHOLE

KINDS = (*WHOLE, "string", "boolean", "date")
"""Types of columns that this sink computes buckets of."""
_HEADER_BITS, _INLINE, _SEED = 8, 7, 42
_FIRST, _SECOND, _STEP = np.uint32(0xCC9E2D51), np.uint32(0x1B873593), np.uint32(0xE6546B64)

Words = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Buckets:
    """The number of buckets of a table, and the columns that divide its rows among them. 0: it has none."""

    count: int = 0
    key: Sequence[str] = ()

    def of(self, rows: pa.RecordBatch) -> npt.NDArray[np.int64]:
        """Return the bucket of each row. A column that the rows lack is NULL."""
        columns = [rows.column(name) if name in rows.schema.names else None for name in self.key]
        found: npt.NDArray[np.int64] = np.abs(np.fmod(hashes(columns, rows.num_rows).astype(np.int64), self.count))
        return found


@dataclass(frozen=True, slots=True)
class Layout:
    """Partitions, primary key and buckets of a table."""

    partition_by: Sequence[str] = ()
    primary_key: Sequence[str] = ()
    buckets: Buckets = field(default_factory=Buckets)

    @property
    def trimmed_key(self) -> list[str]:
        """Return the primary key without partition columns: the order of the rows in files."""
        return [name for name in self.primary_key if name not in self.partition_by]


def hashes(columns: Sequence[pa.Array | None], rows: int) -> npt.NDArray[np.int32]:
    """Return the hash of each row with these values, as Paimon's `BinaryRow` has it."""
    nulls = (len(columns) + 63 + _HEADER_BITS) // 64
    fixed: Words = np.zeros((rows, nulls + len(columns)), np.uint64)
    texts: list[list[bytes | None] | None] = []
    shapes = np.zeros((rows, len(columns)), np.int64)  # words behind the fixed ones
    for index, column in enumerate(columns):
        bit = index + _HEADER_BITS
        empty = np.ones(rows, bool) if column is None else numbers(column.is_null().cast(pa.uint8())).astype(bool)
        fixed[empty, bit // 64] |= np.uint64(1 << bit % 64)
        texts.append(None)
        if column is None:
            continue
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            values = column.cast(pa.large_binary()).to_pylist()
            texts[-1] = values
            lengths = numbers(pc.fill_null(pc.binary_length(column), 0)).astype(np.int64)
            shapes[:, index] = np.where(lengths > _INLINE, (lengths + 7) // 8, 0)
            inline = np.flatnonzero((lengths <= _INLINE) & ~empty)
            packed = np.array([values[row] for row in inline.tolist()], "S8").view("<u8")
            fixed[inline, nulls + index] = packed | (
                (np.uint64(0x80) | lengths[inline].astype(np.uint64)) << np.uint64(56)
            )
            far = np.flatnonzero(lengths > _INLINE)
            fixed[far, nulls + index] = lengths[far].astype(np.uint64)  # with its place, which depends on the others
        else:
            fixed[:, nulls + index] = _words(column)
    found = np.zeros(rows, np.int32)
    codes = np.zeros(rows, np.int64)
    for index in range(len(columns)):
        codes = np.unique(codes * (int(shapes[:, index].max(initial=0)) + 1) + shapes[:, index], return_inverse=True)[1]
    for code in range(int(codes.max(initial=-1)) + 1):
        mine = np.flatnonzero(codes == code)
        shape = shapes[mine[0]].tolist()
        words = np.zeros((len(mine), fixed.shape[1] + sum(shape)), np.uint64)
        words[:, : fixed.shape[1]] = fixed[mine]
        behind = fixed.shape[1]
        for index, length in enumerate(shape):
            column_texts = texts[index]
            if length and column_texts is not None:
                words[:, nulls + index] |= np.uint64(8 * behind << 32)
                data = np.array([column_texts[row] for row in mine.tolist()], f"S{8 * length}")
                words[:, behind : behind + length] = data.view("<u8").reshape(len(mine), length)
                behind += length
        found[mine] = _murmur(words)
    return found


def _words(column: pa.Array) -> npt.NDArray[np.uint64]:
    """Return each value in eight bytes, its sign in its own bytes alone; NULL is 0."""
    if pa.types.is_date32(column.type):
        column = column.view(pa.int32())
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    values = numbers(pc.fill_null(column, scalar(0, column.type)))
    return values.view(f"<u{column.type.bit_width // 8}").astype(np.uint64)


def _murmur(words: Words) -> npt.NDArray[np.int32]:
    with np.errstate(over="ignore"):
        found = np.full(len(words), _SEED, np.uint32)
        for column in words.T:
            for half in (column.astype(np.uint32), (column >> np.uint64(32)).astype(np.uint32)):
                found = _turned(found ^ _turned(half * _FIRST, 15) * _SECOND, 13) * np.uint32(5) + _STEP
        found ^= np.uint32(8 * words.shape[1])
        for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
            found = (found ^ (found >> np.uint32(shift))) * np.uint32(factor)
        return found.view(np.int32)


def _turned(values: Any, bits: int) -> Any:
    return (values << np.uint32(bits)) | (values >> np.uint32(32 - bits))
