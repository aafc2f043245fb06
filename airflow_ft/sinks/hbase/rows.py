"""Rows of the log as HBase holds them: row keys, and cells of bytes."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_ft.protocol.errors import AirflowFtError, UnfitTargetError
from airflow_ft.sinks.arrow import (
    BYTES,
    binaries,
    booleans,
    decoded,
    decoded_type,
    flags,
    is_binary,
    is_text,
    masked,
    numbers,
    scalar,
)
from airflow_ft.sinks.base.changes import missing_in_rows
from airflow_ft.sinks.base.json_columns import decimal_text, plain, unsupported, without_text
from airflow_ft.sinks.base.key_texts import ambiguous, keys, named_problems, unfit_type, where
from airflow_ft.sinks.base.keyed import Chunk
from airflow_ft.sinks.hbase.spec import HBaseSink

_LONGEST_KEY = 32_767  # bytes: org.apache.hadoop.hbase.HConstants.MAX_ROW_LENGTH
_LARGEST_CELL = 10_000_000  # bytes, below hbase.client.keyvalue.maxsize of 10 MiB
_LARGEST_ROW = 1_900_000  # bytes in a frame, below hbase.regionserver.thrift.framed.max_frame_size_in_mb of 2
_LONGEST_NUMBER = 80  # bytes, of the text of any number, date or time: 76 digits, a sign, a point and a zero
_THRIFT_BYTES = 32  # of a row, and of a cell, beside its texts: 16 and 23 in the binary protocol


def cells(sink: HBaseSink, schema: pa.Schema) -> dict[str, str]:
    """Return the columns that are written, each with its family and qualifier."""
    found = {}
    for name in schema.names:
        if name in sink.columns:
            found[name] = sink.columns[name]
        elif sink.family is not None and name != sink.change_column:
            found[name] = f"{sink.family}:{name}"
    return found


def schema_problems(sink: HBaseSink, schema: pa.Schema, name: str) -> Iterator[AirflowFtError]:
    """Yield why rows with these columns do not fit."""
    for problem in named_problems(schema, "row_key", sink.key_columns, sink.change_column, "HBase"):
        yield problem.located(sink=name)
    for column in sink.columns:
        if column not in schema.names:
            yield missing_in_rows(column, "columns", schema.names).located(sink=name)
    written, taken = cells(sink, schema), dict[str, str]()
    for column in schema.names:
        if column not in written and column not in (*sink.key_columns, sink.change_column):
            yield UnfitTargetError(
                f"the rows have a column {column!r}, for which the sink names no cell.",
                code="column_missing",
                remedy='Add it to columns=, give family="f" for all others, or drop it in the job.',
                sink=name,
                column=column,
            )
    for column, cell in written.items():
        if (other := taken.setdefault(cell, column)) != column:
            yield UnfitTargetError(
                f"the columns {other!r} and {column!r} both go into {cell}.",
                code="column_ambiguous",
                remedy="Rename one in the job, or give it another cell by columns=.",
                sink=name,
                column=column,
            )
        if unsupported(schema.field(column).type) or (sink.encoding == "bytes" and _no_bytes(schema.field(column))):
            what = f"value of encoding={sink.encoding!r} in HBase"
            yield unfit_type(schema.field(column), what).located(sink=name)


def _no_bytes(field: pa.Field) -> bool:
    """Return whether Java has no number for values of this type: without a sign, of 16 bits, of nanoseconds."""
    kind = decoded_type(field.type)
    in_nanoseconds = (pa.types.is_timestamp(kind) or pa.types.is_time(kind)) and kind.unit == "ns"
    return bool(pa.types.is_unsigned_integer(kind) or pa.types.is_float16(kind) or in_nanoseconds)


def unfit(
    sink: HBaseSink, rows: pa.RecordBatch, deletes: npt.NDArray[np.bool_], framed: bool = False
) -> dict[int, str]:
    """Return the rows that HBase, or a `framed` gateway, cannot take exactly, by their place, with the reason."""
    found: dict[int, str] = {}
    written = cells(sink, rows.schema)
    named = sum(len(cell.encode()) + _THRIFT_BYTES for cell in written.values())
    size = np.full(rows.num_rows, _THRIFT_BYTES + named)  # of a row in a request, without its key and values
    for name in written:
        column, has_text = decoded(rows.column(name)), ~deletes
        if sink.encoding == "text" or pa.types.is_nested(column.type):
            for wrong, why in without_text(column):
                found |= where(wrong & ~deletes, f"column {name} {why}")
                has_text &= ~wrong
        lengths = _lengths(column, has_text)
        size += lengths
        found |= where(lengths > _LARGEST_CELL, f"column {name} is larger than {_LARGEST_CELL:,} bytes")
    found |= ambiguous(sink.parts, rows)
    length = numbers(pc.binary_length(keys(sink.parts, rows)))
    longest = _LONGEST_KEY - len(_prefix(sink, b""))
    found |= where(length > longest, f"the row key is longer than {longest:,} bytes")
    large = framed & ~deletes & (size + length > _LARGEST_ROW)
    too_large = where(large, f"the row is larger than {_LARGEST_ROW:,} bytes, and the gateway takes frames")
    return where(length == 0, "the row key is empty") | too_large | found


def _lengths(column: pa.Array, has_text: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """Return the bytes of each value, or more than these where all values are short; 0 without a text."""
    if pa.types.is_nested(column.type):
        column = plain(masked(column, flags(has_text)))
    elif not (is_text(column.type) or is_binary(column.type)):
        return np.full(len(column), _LONGEST_NUMBER)
    lengths = pc.fill_null(pc.binary_length(column).cast(pa.int64()), scalar(0, pa.int64()))
    return numbers(lengths) * has_text


@dataclass(frozen=True, slots=True)
class Cells:
    """Rows as row keys, and columns of values as large_binary; null: no cell.

    The values of rows that are not written mean nothing.
    """

    keys: list[bytes]
    columns: Mapping[bytes, pa.Array]  # by family and qualifier

    def values(self) -> Iterator[dict[bytes, bytes]]:
        """Yield the cells of each row."""
        columns = [column.to_pylist() for column in self.columns.values()]
        for row in range(len(self.keys)):
            pairs = ((name, column[row]) for name, column in zip(self.columns, columns, strict=True))
            yield {name: value for name, value in pairs if value is not None}


def encoded(sink: HBaseSink, chunk: Chunk) -> Cells:
    """Return the rows of a chunk as HBase holds them."""
    rows = chunk.rows
    live = ~chunk.deletes
    live[list(chunk.refused)] = False
    keep = None if live.all() else flags(live)  # others may hold values that have no text
    encode = _texts if sink.encoding == "text" else _big_endian
    columns = {}
    for name, cell in cells(sink, rows.schema).items():
        column = rows.column(name)
        columns[cell.encode()] = encode(decoded(column) if keep is None else masked(column, keep))
    return Cells(row_keys(sink, rows), columns)


def row_keys(sink: HBaseSink, rows: pa.RecordBatch) -> list[bytes]:
    """Return the key of each row, with the prefix of its bucket."""
    found = keys(sink.parts, rows).cast(BYTES).to_pylist()
    return [_prefix(sink, key) + key for key in found] if sink.salt else found


def _prefix(sink: HBaseSink, key: bytes) -> bytes:
    if not sink.salt:
        return b""
    return b"%0*d:" % (len(str(sink.salt - 1)), zlib.crc32(key) % sink.salt)


def _texts(column: pa.Array) -> pa.Array:
    return (column if is_binary(column.type) else plain(column)).cast(BYTES)


def _big_endian(column: pa.Array) -> pa.Array:
    """Return values as HBase's `Bytes.toBytes` writes them in Java; dates and times as whole numbers."""
    kind, types = column.type, pa.types
    if types.is_boolean(kind):
        return pc.if_else(column, scalar(b"\xff", BYTES), scalar(b"\0", BYTES))
    if types.is_decimal(kind):
        return _decimals(column)
    if types.is_date(kind):
        column = column.cast(pa.date32()).cast(pa.int32())
    elif types.is_timestamp(kind):
        column = column.cast(pa.timestamp("us", kind.tz)).cast(pa.int64())
    elif types.is_time(kind):
        column = column.cast(pa.time64("us")).cast(pa.int64())
    elif not (types.is_integer(kind) or types.is_floating(kind)):
        return _texts(column)
    values = numbers(column)
    data = pa.py_buffer(values.astype(values.dtype.newbyteorder(">")))
    there = flags(booleans(column.is_valid())).buffers()[1] if column.null_count else None
    return pa.Array.from_buffers(pa.binary(values.dtype.itemsize), len(column), [there, data]).cast(BYTES)


def _decimals(column: pa.Array) -> pa.Array:
    """Four bytes of scale, then the digits as the shortest number in two's complement (Java's `BigInteger`)."""
    scale = max(column.type.scale, 0).to_bytes(4, "big")
    found: Sequence[str | None] = decimal_text(column).to_pylist()
    whole = (None if text is None else int(text.replace(".", "")) for text in found)
    return binaries(
        [
            None if n is None else scale + n.to_bytes((n if n >= 0 else ~n).bit_length() // 8 + 1, "big", signed=True)
            for n in whole
        ]
    )
