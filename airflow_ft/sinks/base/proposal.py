"""Propose a table for a sink's rows as CREATE TABLE, for people who may create it. No server is asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from airflow_ft.sinks.base.sql_sink import SqlSink

TypeOf = Callable[[pa.DataType, bool], str]
"""The column type for values of an Arrow type, in a key or not; "": no column takes them as they are."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """SQL dialect of a system: `quoted` names, `end` after the columns.

    `fold` maps names that the system treats as one column to one text. `is_name` returns whether a column can
    have a name.
    """

    quoted: Callable[[str], str]
    type_of: TypeOf
    end: str = ""
    fold: Callable[[str], str] = str
    is_name: Callable[[str], bool] = bool


def no_column(name: str, kind: pa.DataType) -> str:
    """Return the comment in place of a column that no type of the system takes."""
    return f"-- {name!r}: no column takes {kind}. Write to_json or CAST(... AS STRING) in the job."


def create_table(table: str, sink: SqlSink, columns: pa.Schema, dialect: Dialect) -> str:
    """Return the statement; `table` is quoted.

    Only key columns are NOT NULL. A column that no type fits, or that cannot have its name, becomes a comment.
    """
    lines, comments = [], []
    for name in columns.names:
        if name == sink.change_column:
            continue
        if not dialect.is_name(name):
            comments.append(f"-- {name!r}: no column can have this name. Rename it in the job.")
            continue
        kind = columns.field(name).type
        in_key = dialect.fold(name) in map(dialect.fold, sink.key_columns)
        if not (column := dialect.type_of(kind, in_key)):
            comments.append(no_column(name, kind))
            continue
        lines.append(f"{dialect.quoted(name)} {column}{' NOT NULL' if in_key else ''}")
    if sink.version_column:
        lines.append(f"{dialect.quoted(sink.version_column)} BIGINT NOT NULL DEFAULT 0")
    if sink.key_columns:
        lines.append(f"PRIMARY KEY ({', '.join(map(dialect.quoted, sink.key_columns))})")
    body = ",\n".join(f"  {line}" for line in lines)
    return "\n".join([*comments, f"CREATE TABLE IF NOT EXISTS {table} (\n{body}\n){dialect.end};"])
