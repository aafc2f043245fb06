"""Rows of the log as a script takes them: keys, kinds of change, and columns of texts, packed with MessagePack."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgpack
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_ft.protocol.errors import AirflowFtError, UnfitTargetError
from airflow_ft.sinks.arrow import booleans, flags, is_binary, masked
from airflow_ft.sinks.base.json_columns import objects, plain, unsupported, without_text
from airflow_ft.sinks.base.key_texts import ambiguous, keys, named_problems, unfit_type, where
from airflow_ft.sinks.base.keyed import Chunk
from airflow_ft.sinks.redis.spec import OURS, RedisSink
from airflow_ft.sinks.refused import NullFound

_PUT, _DELETE, _LEAVE = 0, 1, 2


def schema_problems(sink: RedisSink, schema: pa.Schema, name: str) -> Iterator[AirflowFtError]:
    """Yield why rows with these columns do not fit."""
    for problem in named_problems(schema, "key", sink.key_columns, sink.change_column, "Redis"):
        yield problem.located(sink=name)
    values = written(sink, schema)
    if sink.value == "string" and len(values) != 1:
        what = (
            f"value='string' takes one column beside those of the key, and the rows have {', '.join(values) or 'none'}."
        )
        remedy = 'Give value="hash" or value="json", or drop columns in the job.'
        yield UnfitTargetError(what, code="column_unfit", remedy=remedy, sink=name, columns=values)
    for column in values:
        field = schema.field(column)
        if column == sink.version_field and sink.value != "string":
            what = f"the rows have a column {column!r}, which is the sink's own field."
            remedy = "Rename the column in the job, or give the sink another version_field=."
            yield UnfitTargetError(what, code="column_reserved", remedy=remedy, sink=name, column=column)
        elif unsupported(field.type):
            yield unfit_type(field, "value in Redis").located(sink=name)


def written(sink: RedisSink, schema: pa.Schema) -> list[str]:
    """Return the columns that are written."""
    left_out = {sink.change_column, *(sink.key_columns if sink.value == "string" else ())}
    return [name for name in schema.names if name not in left_out]


def unfit(sink: RedisSink, rows: pa.RecordBatch, deletes: npt.NDArray[np.bool_]) -> dict[int, str]:
    """Return the rows that Redis cannot hold exactly, by their place, with the reason."""
    found: dict[int, str] = {}
    for name in written(sink, rows.schema):
        column = rows.column(name)
        if sink.value == "string":
            null = NullFound(f"column {name} is NULL, which a string cannot be")
            found |= where(booleans(column.is_null()) & ~deletes, null)
        for wrong, why in without_text(column):
            found |= where(wrong & ~deletes, f"column {name} {why}")
    found |= ambiguous(sink.parts, rows)
    if OURS.startswith(sink.parts[0][0]):  # a column may complete it, also where the key begins with one
        found |= where(booleans(pc.starts_with(keys(sink.parts, rows), OURS)), f"the key begins with {OURS!r}")
    return found


@dataclass(frozen=True, slots=True)
class Entries:
    """Rows as keys and values. A deleted or refused row has values, too, which are not written."""

    keys: list[str]
    kinds: list[int]
    fields: list[str]
    columns: list[list[Any]]  # str, bytes or None

    def values(self, row: int) -> dict[str, bytes]:
        """Return the fields of a row that are not NULL."""
        found = {name: column[row] for name, column in zip(self.fields, self.columns, strict=True)}
        return {
            name: value if isinstance(value, bytes) else value.encode()
            for name, value in found.items()
            if value is not None
        }


def entries(sink: RedisSink, chunk: Chunk, number: int) -> Entries:
    """Return the rows of a chunk as keys and values; `number` is the checkpoint's."""
    rows = chunk.rows
    kinds = np.where(chunk.deletes, _DELETE, _PUT)
    kinds[list(chunk.refused)] = _LEAVE
    texts = keys(sink.parts, rows).to_pylist()
    names = written(sink, rows.schema)
    live = flags(kinds == _PUT)  # others may hold values that have no text
    columns = [masked(rows.column(name), live) for name in names]
    if sink.value != "json":
        values = [(column if is_binary(column.type) else plain(column)).to_pylist() for column in columns]
        return Entries(texts, kinds.tolist(), names, values)
    numbers = pa.array(np.full(rows.num_rows, number, np.int64))
    text = objects([sink.version_field, *names], [numbers, *columns], rows.num_rows)
    return Entries(texts, kinds.tolist(), ["json"], [text.to_pylist()])


def packed(sink: RedisSink, found: Entries) -> bytes:
    """Return what the scripts unpack."""
    content: Mapping[str, Any] = {
        "count": len(found.keys),
        "keys": found.keys,
        "kinds": found.kinds,
        "type": "hash" if sink.value == "hash" else "string",
        "version": "" if sink.value == "string" else sink.version_field,
        "fields": found.fields,
        "columns": found.columns,
        "ttl": sink.ttl_seconds,
    }
    data: bytes = msgpack.packb(content, use_bin_type=False)  # the server knows no binary type
    return data
