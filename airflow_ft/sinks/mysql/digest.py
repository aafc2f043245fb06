"""A row of a table as a digest that the server computes: equal only for equal values."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_ft.sinks.mysql.catalog import Column
from airflow_ft.sinks.mysql.naming import quote
from airflow_ft.sinks.mysql.type_checks import BYTES


def digest(alias: str, columns: Sequence[Column]) -> str:
    """SHA-256 over the columns' own digests: unambiguous, and no value is ever copied into a longer one."""
    each = ", ".join(
        f"COALESCE(SHA2({_exact(f'{alias}.{quote(column.name)}', column)}, 256), '-')" for column in columns
    )
    return f"UNHEX(SHA2(CONCAT_WS(',', {each}), 256))"


def _exact(name: str, column: Column) -> str:
    """The value as text that is equal only for equal values."""
    if column.type in BYTES:
        return name
    if column.type == "float":
        return f"CAST({name} + 0E0 AS CHAR)"  # as text a FLOAT shows six digits only
    if column.type == "bit":
        return f"CAST({name} + 0 AS CHAR)"
    return f"CAST({name} AS CHAR CHARACTER SET utf8mb4)"
