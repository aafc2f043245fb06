"""Tables that would take what a job gives: CREATE TABLE for MySQL and MariaDB alike."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import pyarrow as pa

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.model import ParticipantPlan
from airflow_ft.sinks.arrow import decoded_type, first_fit, is_binary, is_text
from airflow_ft.sinks.base.json_columns import unsupported
from airflow_ft.sinks.base.proposal import Dialect, create_table
from airflow_ft.sinks.mysql.naming import TableName, is_column_name, quote
from airflow_ft.sinks.mysql.spec import MySqlSink


def propose(plan: ParticipantPlan, connection: ConnectionInfo, columns: Mapping[str, pa.Schema]) -> Iterator[str]:
    """A statement for each sink whose columns are known."""
    sinks = MySqlSink.all_of(plan)
    for name, schema in columns.items():
        sink = sinks[name]
        table = TableName.parse(sink.table).within(connection.schema)
        keys = {key.lower() for key in sink.key_columns}
        in_key = [decoded_type(field.type) for field in schema if field.name.lower() in keys]
        yield create_table(table.sql, sink, schema, replace(_DIALECT, type_of=partial(_type_of, *_key_room(in_key))))


_KEY_BYTES = 3072  # of InnoDB: https://dev.mysql.com/doc/refman/8.4/en/innodb-limits.html
_TEXT_BYTES, _BINARY_BYTES, _OTHER_BYTES = 1020, 255, 20
"""Bytes that a column has in a key with enough room. DECIMAL(38) has 18, other types have less."""


def _key_room(kinds: Sequence[pa.DataType]) -> tuple[int, int]:
    """Return the bytes for each text and for each binary value in a key of columns of these types."""
    texts, binaries = sum(map(is_text, kinds)), sum(map(is_binary, kinds))
    room = _KEY_BYTES - _OTHER_BYTES * (len(kinds) - texts - binaries)
    binary = min(_BINARY_BYTES, room // max(1, texts + binaries))
    return min(_TEXT_BYTES, (room - binary * binaries) // max(1, texts)), binary


def _type_of(text_bytes: int, binary_bytes: int, kind: pa.DataType, in_key: bool) -> str:
    kind, types = decoded_type(kind), pa.types
    if is_text(kind):  # byte by byte, as Spark compares: utf8mb4_bin ignores blanks at the end
        return f"VARBINARY({text_bytes})" if in_key else "LONGTEXT"
    if is_binary(kind):
        return f"VARBINARY({binary_bytes})" if in_key else "LONGBLOB"
    if types.is_decimal(kind):
        return f"DECIMAL({kind.precision},{kind.scale})" if kind.scale <= 30 else ""
    if types.is_timestamp(kind):
        return "DATETIME(6)"  # in UTC; TIMESTAMP ends in 2038
    is_json = types.is_nested(kind) and unsupported(kind) is None and not in_key
    return "JSON" if is_json else first_fit(kind, _NAMES)


_NAMES = (
    (pa.types.is_boolean, "BOOLEAN"),
    (pa.types.is_int8, "TINYINT"),
    (pa.types.is_int16, "SMALLINT"),
    (pa.types.is_int32, "INT"),
    (pa.types.is_integer, "BIGINT"),
    (pa.types.is_float64, "DOUBLE"),
    (pa.types.is_floating, "FLOAT"),
    (pa.types.is_date, "DATE"),
    (pa.types.is_time, "TIME(6)"),
)
_DIALECT = Dialect(
    quote,
    partial(_type_of, *_key_room(())),
    " ENGINE=InnoDB DEFAULT CHARSET=utf8mb4",
    fold=str.lower,
    is_name=is_column_name,
)
