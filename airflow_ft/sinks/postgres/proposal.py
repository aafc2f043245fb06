"""Tables that would take what a job gives: CREATE TABLE for PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.model import ParticipantPlan
from airflow_ft.sinks.arrow import first_fit, is_binary, is_text
from airflow_ft.sinks.base.proposal import Dialect, create_table
from airflow_ft.sinks.base.sql_names import quoted
from airflow_ft.sinks.postgres.ledger import create_schema
from airflow_ft.sinks.postgres.naming import MAX_BYTES, TableName
from airflow_ft.sinks.postgres.spec import PostgresSink


def propose(plan: ParticipantPlan, connection: ConnectionInfo, columns: Mapping[str, pa.Schema]) -> Iterator[str]:
    """A statement for each sink whose columns are known, after those for the schemas of their tables."""
    sinks = PostgresSink.all_of(plan)
    for schema in sorted({TableName.parse(sinks[name].table).schema for name in columns} - {""}):
        yield f"{create_schema(schema)};"
    for name, columns_of in columns.items():
        yield create_table(TableName.parse(sinks[name].table).sql, sinks[name], columns_of, _DIALECT)


def type_of(kind: pa.DataType, in_key: bool = False) -> str:
    """The type of column that takes values of an Arrow type, in a key too; "": none does."""
    types = pa.types
    if types.is_dictionary(kind):
        kind = kind.value_type
    if (types.is_list(kind) or types.is_large_list(kind)) and not types.is_nested(kind.value_type):
        element = type_of(kind.value_type)
        return f"{element}[]" if element else ""
    if types.is_decimal(kind):
        return f"numeric({kind.precision},{kind.scale})"
    if types.is_timestamp(kind):
        return "timestamptz" if kind.tz else "timestamp"
    return first_fit(kind, _NAMES)


_NAMES = (
    (is_text, "text"),
    (is_binary, "bytea"),
    (pa.types.is_boolean, "boolean"),
    (pa.types.is_int8, "smallint"),
    (pa.types.is_int16, "smallint"),
    (pa.types.is_int32, "integer"),
    (pa.types.is_integer, "bigint"),
    (pa.types.is_float64, "double precision"),
    (pa.types.is_floating, "real"),
    (pa.types.is_date, "date"),
    (pa.types.is_time, "time"),
)
_DIALECT = Dialect(quoted, type_of, is_name=lambda name: len(name.encode()) <= MAX_BYTES)
