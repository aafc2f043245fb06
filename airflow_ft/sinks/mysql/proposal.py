"""Tables that would take what a job gives: CREATE TABLE for MySQL and MariaDB alike."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.model import ParticipantPlan
from airflow_ft.sinks.arrow import decoded_type, first_fit, is_binary, is_text
from airflow_ft.sinks.base.json_columns import unsupported
from airflow_ft.sinks.base.proposal import Dialect, create_table
from airflow_ft.sinks.mysql.naming import TableName, quote
from airflow_ft.sinks.mysql.spec import MySqlSink


def propose(plan: ParticipantPlan, connection: ConnectionInfo, columns: Mapping[str, pa.Schema]) -> Iterator[str]:
    """A statement for each sink whose columns are known."""
    sinks = MySqlSink.all_of(plan)
    for name, schema in columns.items():
        sink = sinks[name]
        table = TableName.parse(sink.table).within(connection.schema)
        yield create_table(table.sql, sink, schema, _DIALECT)


def _type_of(kind: pa.DataType, in_key: bool) -> str:
    kind, types = decoded_type(kind), pa.types
    if is_text(kind):  # byte by byte, as Spark compares: utf8mb4_bin ignores blanks at the end
        return "VARBINARY(1020)" if in_key else "LONGTEXT"
    if is_binary(kind):
        return "VARBINARY(255)" if in_key else "LONGBLOB"
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
_DIALECT = Dialect(quote, _type_of, " ENGINE=InnoDB DEFAULT CHARSET=utf8mb4", fold=str.lower)
