"""Rows of the log as Kafka records: which column becomes key, value, headers, partition and timestamp."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_ft.protocol.errors import DeclinedError, together
from airflow_ft.protocol.lookup import did_you_mean
from airflow_ft.sinks.arrow import booleans, decoded, flags, is_binary, is_text, offsets, positions, scalar
from airflow_ft.sinks.base import json_columns
from airflow_ft.sinks.kafka.spec import KafkaSink

Headers = list[tuple[str, str | bytes | None]]  # as confluent_kafka types it; the values are bytes
_SLICE_BYTES = 8 * 1024 * 1024  # of Arrow data encoded at once, so that memory stays bounded with wide rows
_SLICE_ROWS = 16_384

# What a record and its batch cost beyond key, value and headers: 61 bytes of batch, at most 5 each for eight
# variable-length fields, and what librdkafka reserves on top when it checks message.max.bytes.
RECORD_OVERHEAD = 128
HEADER_OVERHEAD = 10


@dataclass(frozen=True, slots=True)
class Records:
    """Some rows as records; lists of equal length. None for a whole list: no record has that part."""

    values: Sequence[bytes | None]
    keys: Sequence[bytes | None] | None
    partitions: Sequence[int] | None
    timestamps: Sequence[int] | None
    headers: Sequence[Headers | None] | None

    def sizes(self) -> list[int]:
        """An upper bound of each record's uncompressed size in a batch of its own, in bytes."""
        sizes = [RECORD_OVERHEAD + (len(value) if value is not None else 0) for value in self.values]
        if self.keys is not None:
            sizes = [size + (len(key) if key is not None else 0) for size, key in zip(sizes, self.keys, strict=True)]
        if self.headers is not None:
            sizes = [
                size + sum(HEADER_OVERHEAD + len(name.encode()) + len(value or b"") for name, value in headers or ())
                for size, headers in zip(sizes, self.headers, strict=True)
            ]
        return sizes


@dataclass(frozen=True, slots=True)
class RecordColumns:
    """Some rows as records, in columns of equal length. None for a whole column: no record has that part.

    `values` and `keys` are large_binary; `partitions` are int64 without nulls, -1 leaves the choice to the partitioner.
    """

    values: pa.Array
    keys: pa.Array | None
    partitions: pa.Array | None
    timestamps: Sequence[int] | None
    headers: Sequence[Headers | None] | None

    def __len__(self) -> int:
        return len(self.values)

    def rows(self) -> Records:
        """Return the same, to iterate over one by one."""
        return Records(
            values=_listed(self.values),
            keys=_listed(self.keys) if self.keys is not None else None,
            partitions=self.partitions.to_pylist() if self.partitions is not None else None,
            timestamps=self.timestamps,
            headers=self.headers,
        )


class RecordEncoder:
    """Encodes the batches of one sink.

    Raises:
        DeclinedError: the schema does not fit the sink's settings (at construction).
    """

    def __init__(self, sink: KafkaSink, schema: pa.Schema) -> None:
        self._sink = sink
        self._schema = schema
        if problems := list(schema_problems(sink, schema)):
            raise together(problems)
        taken = set(sink.roles.values())
        self._json_columns = [name for name in schema.names if name not in taken]

    def unfit(self, batch: pa.RecordBatch) -> dict[int, str]:
        """Rows that can be a record of no topic, by their place in the batch, and why."""
        found: dict[int, str] = {}

        def refuse(which: pa.Array, why: str) -> None:
            for index in positions(which):
                found.setdefault(index, why)

        for name in self._json_columns if self._sink.value is None else ():
            for which, what in (
                (json_columns.not_finite, "NaN or infinity"),
                (json_columns.beyond_years, "a date or a time outside of the years 1 to 9999"),
                (json_columns.repeated_keys, "a map with a repeated key"),
            ):
                refuse(which(batch.column(name)), f"column {name!r}: {what}, which JSON cannot hold")
        if (name := self._sink.headers) is not None:
            for which, what, _, _ in _refused_headers(batch.column(name)):
                refuse(which, f"column {name!r}: {what}")
        if (name := self._sink.partition) is not None:
            numbers = batch.column(name)
            refuse(pc.less(numbers, scalar(0, numbers.type)), f"column {name!r}: a partition below 0")
        if (name := self._sink.timestamp) is not None:
            why = f"column {name!r}: a time that Kafka cannot hold (it holds those from 1970 to 9999)"
            refuse(json_columns.beyond_years(batch.column(name)), why)
            times = _milliseconds(batch.column(name)).cast(pa.int64())
            refuse(pc.less_equal(times, scalar(0, times.type)), why)
        return found

    def encode(self, batch: pa.RecordBatch) -> Iterator[Records]:
        """As `columns`, to iterate over one by one."""
        for columns in self.columns(batch):
            yield columns.rows()

    def columns(self, batch: pa.RecordBatch) -> Iterator[RecordColumns]:
        """The batch as records, in slices of bounded size, in order.

        Raises:
            DeclinedError: a value cannot be sent (see `json_columns` and `_refused_headers`); names the column.
        """
        for rows in _slices(batch):
            yield self._encode(rows)

    def _encode(self, rows: pa.RecordBatch) -> RecordColumns:
        sink = self._sink
        return RecordColumns(
            values=self._bytes(rows, sink.value) if sink.value is not None else self._json(rows),
            keys=self._bytes(rows, sink.key) if sink.key is not None else None,
            partitions=_integers(rows.column(sink.partition), -1) if sink.partition is not None else None,
            timestamps=(
                _integers(_milliseconds(rows.column(sink.timestamp)), 0).to_pylist()
                if sink.timestamp is not None
                else None
            ),
            headers=self._headers(rows.column(sink.headers)) if sink.headers is not None else None,
        )

    def _json(self, rows: pa.RecordBatch) -> pa.Array:
        columns = [rows.column(name) for name in self._json_columns]
        try:
            return _binary(json_columns.objects(self._json_columns, columns, rows.num_rows))
        except json_columns.NotJsonError:
            for name, column in zip(self._json_columns, columns, strict=True):
                try:
                    json_columns.encode(column)
                except json_columns.NotJsonError as error:
                    raise error.located(column=name, participant=self._sink.conn_id) from None
            raise

    def _bytes(self, rows: pa.RecordBatch, name: str) -> pa.Array:
        column = rows.column(name)
        return _binary(pc.cast(column, pa.large_string()) if pa.types.is_integer(column.type) else column)

    def _headers(self, column: pa.Array) -> list[Headers | None]:
        for which, what, remedy, code in _refused_headers(column):
            if positions(which):
                raise self._declined(f"the rows have {what}.", self._sink.headers or "", remedy, code)
        names, values = _header_parts(column)
        keys: Sequence[Any] = pc.cast(names, pa.large_string()).to_pylist()
        contents = _listed(_binary(values))
        offsets = column.offsets.to_pylist()
        valid = column.is_valid().to_pylist()
        result: list[Headers | None] = []
        for row, exists in enumerate(valid):
            if not exists:
                result.append(None)
                continue
            low, high = offsets[row], offsets[row + 1]
            result.append(list(zip(keys[low:high], contents[low:high], strict=True)))
        return result

    def _declined(self, what: str, column: str, remedy: str, code: str) -> DeclinedError:
        return DeclinedError(what, code=code, column=column, remedy=remedy, participant=self._sink.conn_id)


def schema_problems(sink: KafkaSink, schema: pa.Schema) -> Iterator[DeclinedError]:
    """All that makes a schema one that the sink's settings do not fit."""

    def refuse(what: str, column: str, remedy: str, code: str, **fields: Any) -> DeclinedError:
        return DeclinedError(what, code=code, column=column, remedy=remedy, participant=sink.conn_id, **fields)

    for role, name in sink.roles.items():
        found = schema.get_all_field_indices(name)
        if len(found) != 1:
            times = f"{len(found)} columns of this name" if found else "no column of this name"
            yield refuse(
                f"the rows have {times}, which the sink needs as its {role}. Their columns are"
                f" {', '.join(schema.names)}.",
                name,
                ("" if found else did_you_mean(name, schema.names))
                + f"Have the job return one column {name!r}, or name another one as {role}= of the sink.",
                "column_ambiguous" if found else "job_column_missing",
                role=role,
            )
            continue
        kind, (fits, remedy) = schema.field(name).type, _ROLE_TYPES[role]
        if not fits(kind):
            yield refuse(f"type {kind} cannot be the {role}.", name, remedy, "column_unfit", role=role, type=str(kind))
    rest = [field for field in schema if field.name not in sink.roles.values()]
    if sink.value is not None:
        if rest:
            lost = [field.name for field in rest]
            yield refuse(
                f"with value={sink.value!r}, the columns {', '.join(lost)} would be lost.",
                rest[0].name,
                "Drop them in the job, or remove value= from the sink to send a JSON object.",
                "column_unused",
                columns=lost,
            )
        return
    for name in sorted({name for name in schema.names if schema.names.count(name) > 1} - set(sink.roles.values())):
        yield refuse("the rows have several columns of this name.", name, "Rename them in the job.", "column_ambiguous")
    for field in rest:
        if reason := json_columns.unsupported(field.type):
            yield refuse(
                f"JSON cannot hold the column: {reason}.",
                field.name,
                "Cast it in the job.",
                "type_unsupported",
                type=str(field.type),
            )


def _is_text_or_bytes(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return is_text(kind) or is_binary(kind)


def _are_headers(kind: pa.DataType) -> bool:
    if pa.types.is_map(kind):
        return is_text(kind.key_type) and _is_text_or_bytes(kind.item_type)
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)) or not pa.types.is_struct(kind.value_type):
        return False
    struct = kind.value_type
    if sorted(field.name for field in struct) != ["key", "value"]:
        return False
    return is_text(struct.field("key").type) and _is_text_or_bytes(struct.field("value").type)


_ROLE_TYPES: Mapping[str, tuple[Callable[[pa.DataType], bool], str]] = {
    "key": (
        lambda kind: pa.types.is_integer(kind) or _is_text_or_bytes(kind),
        "Cast it to string, binary or integer.",
    ),
    "value": (_is_text_or_bytes, "Cast it to string or binary."),
    "headers": (_are_headers, "Make it array<struct<key: string, value: binary>> or map<string, binary>."),
    "partition": (pa.types.is_signed_integer, "Cast it to integer."),
    "timestamp": (
        lambda kind: pa.types.is_timestamp(kind) or pa.types.is_signed_integer(kind),
        "Cast it to timestamp, or to milliseconds as bigint.",
    ),
}
"""Which types can have a role, and what helps where another one has it."""


def _header_parts(column: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return the keys and the values of all headers."""
    if pa.types.is_map(column.type):
        return column.keys, column.items
    return pc.struct_field(column.values, "key"), pc.struct_field(column.values, "value")


def _refused_headers(column: pa.Array) -> Iterator[tuple[pa.Array, str, str, str]]:
    """Mark rows with headers that Kafka or its client cannot hold. Yield also what they are, the remedy and the code.

    A header that is null as a whole has no key. librdkafka reads a key up to its first NUL.
    """
    keys = pc.cast(_header_parts(column)[0], pa.large_string())
    for found, what, remedy, code in (
        (keys.is_null(), "a header without a key", "Give every header a key.", "null_refused"),
        (pc.match_substring(keys, "\0"), "a header key with a NUL", "Remove the NULs in the job.", "value_unfit"),
    ):
        marked = booleans(pc.fill_null(found, scalar(False, pa.bool_())))
        if marked.any():
            places = zip(column.is_valid().to_pylist(), pairwise(column.offsets.to_pylist()), strict=True)
            rows = [valid and bool(marked[low:high].any()) for valid, (low, high) in places]
            yield flags(np.array(rows, np.bool_)), what, remedy, code


def _slices(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    if batch.num_rows == 0:
        return
    row_bytes = max(1, batch.nbytes // batch.num_rows)
    step = max(1, min(_SLICE_ROWS, _SLICE_BYTES // row_bytes))
    for start in range(0, batch.num_rows, step):
        yield batch.slice(start, step)


def _binary(column: pa.Array) -> pa.Array:
    """As large_binary: without a copy, where it is text of that kind."""
    return pc.cast(decoded(column), pa.large_binary())


def _listed(column: pa.Array) -> list[bytes | None]:
    """The values of a large_binary column."""
    ends = offsets(column).tolist()
    data = column.buffers()[2]
    whole = data.slice(ends[0], ends[-1] - ends[0]).to_pybytes() if data is not None else b""
    found = [whole[start - ends[0] : stop - ends[0]] for start, stop in pairwise(ends)]
    return [value if valid else None for value, valid in zip(found, column.is_valid().to_pylist(), strict=True)]


def _integers(column: pa.Array, null: int) -> pa.Array:
    return pc.fill_null(pc.cast(column, pa.int64()), scalar(null, pa.int64()))


def _milliseconds(column: pa.Array) -> pa.Array:
    if pa.types.is_timestamp(column.type):
        column = pc.floor_temporal(column, unit="millisecond") if column.type.unit in ("us", "ns") else column
        return pc.cast(pc.cast(column, pa.timestamp("ms", column.type.tz)), pa.int64())
    return column
