"""Rows of a chunk as parameters of statements, and the rows that a table cannot hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from airflow_ft.sinks.arrow import booleans, flags
from airflow_ft.sinks.base.key_texts import where
from airflow_ft.sinks.base.keyed import Chunk
from airflow_ft.sinks.cassandra import columns
from airflow_ft.sinks.cassandra.columns import LARGEST_ROW, LONGEST_KEY, lengths, values
from airflow_ft.sinks.cassandra.spec import CassandraSink
from airflow_ft.sinks.cassandra.table import Table, written

Mask = npt.NDArray[np.bool_]
_TEXTS = ("ascii", "text", "blob")
_FIXED_BYTES = 16  # of a key column of another type, at most
_FRAME_BYTES = 3  # around each column of a partition key that has several


def unfit(sink: CassandraSink, table: Table, rows: pa.RecordBatch, deleted: Mask) -> dict[int, str]:
    """Return the rows that the table cannot hold exactly, by their place, with the reason."""
    found: dict[int, str] = {}
    size = np.zeros(rows.num_rows, np.int64)
    for name in written(sink, rows.schema.names):
        column, is_key = rows.column(name), name in table.key
        for wrong, why in columns.unfit(column, table.types[name]):
            found |= where(wrong if is_key else wrong & ~deleted, f"column {name} {why}")
        length = lengths(column)
        size += length if is_key else length * ~deleted
    for part, names in (("partition key", table.partition), ("clustering columns", table.clustering)):
        framed = len(names) > 1 and names is table.partition
        longer = _key_size(table, rows, names, framed=framed) > LONGEST_KEY
        found |= where(longer, f"its {part} ({', '.join(names)}) is longer than {LONGEST_KEY} bytes")
    found |= where(size > LARGEST_ROW, f"its texts and blobs are longer than {LARGEST_ROW} bytes")
    if len(table.partition) == 1 and table.types[name := table.partition[0]] in _TEXTS:
        column = rows.column(name)
        empty = (lengths(column) == 0) & booleans(column.is_valid())
        found |= where(empty, f"column {name}, the partition key, is empty")
    return found


def _key_size(table: Table, rows: pa.RecordBatch, names: Sequence[str], *, framed: bool) -> npt.NDArray[np.int64]:
    """Return at least the bytes of some key columns; `framed`: each has its length before it and a zero after it."""
    size = np.zeros(rows.num_rows, np.int64)
    for name in names:
        size += lengths(rows.column(name)) if table.types[name] in _TEXTS else _FIXED_BYTES
        size += _FRAME_BYTES if framed else 0
    return size


def inserts(
    sink: CassandraSink, table: Table, chunk: Chunk, first: int, seconds: int
) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Return the written columns, and of each row its values, write timestamp and, if any, seconds to live.

    NULL is written, which deletes the cell: a value that is left out would leave the older one.
    """
    names = written(sink, chunk.rows.schema.names)
    rows, stamps = _picked(chunk, ~chunk.deletes, first)
    living = [[seconds] * len(stamps)] if seconds else []
    found = [values(rows.column(name), table.types[name]) for name in names]
    return names, list(zip(*found, stamps, *living, strict=True))


def deletes(table: Table, chunk: Chunk, first: int) -> list[tuple[Any, ...]]:
    """Return the write timestamp and the key of each delete."""
    rows, stamps = _picked(chunk, chunk.deletes, first)
    return list(zip(stamps, *keys(table, rows), strict=True))


def keys(table: Table, rows: pa.RecordBatch) -> list[list[Any]]:
    """Return the columns of the key."""
    return [values(rows.column(name), table.types[name]) for name in table.key]


def _picked(chunk: Chunk, wanted: Mask, first: int) -> tuple[pa.RecordBatch, Sequence[int]]:
    """Return the rows that are not refused, with their write timestamps."""
    wanted = wanted.copy()
    wanted[list(chunk.refused)] = False
    stamps = (first + chunk.first + np.flatnonzero(wanted)).tolist()
    return chunk.rows.filter(flags(wanted)), stamps
