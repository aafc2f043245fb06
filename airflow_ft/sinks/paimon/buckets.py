"""Buckets of a Paimon table: which of them a row belongs to (murmur hash over the bytes of its bucket key)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_ft.sinks.arrow import indices, numbers, octets
from airflow_ft.sinks.base.table_columns import WHOLE
from airflow_ft.sinks.files.partitions import groups
from airflow_ft.sinks.paimon.binary_row import binary_rows

KINDS = (*WHOLE, "string", "boolean", "date")
"""Types of columns that this sink computes buckets of."""
_SEED = 42
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
    data = binary_rows(columns, rows)
    found = np.zeros(rows, np.int32)
    for mine in groups(numbers(pc.binary_length(data))):  # rows of the same length
        words = np.frombuffer(octets(data.take(indices(mine))), "<u8")
        found[mine] = _murmur(words.reshape(len(mine), -1))
    return found


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
