"""Judge a table: would it keep rows of a schema as they are? At the vote, and again in the delivering transaction.

Between the two the file is not locked, so the table may have changed.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import pyarrow as pa

from airflow_ft.protocol.errors import AirflowFtError, UnfitTargetError
from airflow_ft.sinks.base.sql_names import quoted
from airflow_ft.sinks.sqlite.columns import listed, read_columns, schema_problems
from airflow_ft.sinks.sqlite.ddl import conflict_clauses
from airflow_ft.sinks.sqlite.file import code_of


def exists(db: sqlite3.Connection, table: str) -> bool:
    """Return whether there is a table, or anything else of that name."""
    return listed(db, table) is not None


def shape_problems(db: sqlite3.Connection, table: str, sink: str) -> Iterator[UnfitTargetError]:
    """Yield the problems of a table that is there which have nothing to do with the columns of rows."""
    found = listed(db, table)
    if found is not None and found[0] != "table":
        yield UnfitTargetError(
            f"{table!r} is a {'view' if found[0] == 'view' else 'virtual table'}.",
            code="table_unsupported",
            remedy="Set table= of the sink to an ordinary table.",
            sink=sink,
            table=table,
        )
    elif wrong := [each for each in conflict_clauses(_ddl(db, table)) if each != "abort"]:
        yield UnfitTargetError(
            f"a constraint of table {table!r} has ON CONFLICT {wrong[0].upper()}, which drops or replaces rows.",
            code="table_unsupported",
            remedy="Create the table again without ON CONFLICT.",
            sink=sink,
            table=table,
        )


def problems(db: sqlite3.Connection, table: str, schema: pa.Schema, sink: str) -> list[AirflowFtError]:
    """Return all reasons why a table that is there would not keep rows of this schema as they are."""
    found: list[AirflowFtError] = list(shape_problems(db, table, sink))
    if not found:
        found += schema_problems(table, read_columns(db, table), schema, sink)
    if not found and schema.names:
        found += _refused_statement(db, table, schema, sink)
    return found


def insert_statement(table: str, names: list[str]) -> str:
    """Return the statement that puts one row in."""
    columns = ", ".join(map(quoted, names))
    return f"INSERT INTO {quoted(table)} ({columns}) VALUES ({', '.join('?' * len(names))})"


def _refused_statement(db: sqlite3.Connection, table: str, schema: pa.Schema, sink: str) -> Iterator[UnfitTargetError]:
    """Compile the INSERT with its triggers and indexes: a table, function or collation may be missing."""
    try:
        db.execute(f"EXPLAIN {insert_statement(table, schema.names)}", [None] * len(schema.names))
    except sqlite3.OperationalError as error:
        if code_of(error) != sqlite3.SQLITE_ERROR:
            raise
        yield UnfitTargetError(
            f"SQLite cannot insert into table {table!r}: {error}.",
            code="table_broken",
            remedy="Create what is missing, or drop the trigger or index that needs it.",
            sink=sink,
            table=table,
        )


def _ddl(db: sqlite3.Connection, table: str) -> str:
    sql = "SELECT sql FROM sqlite_schema WHERE type = 'table' AND name = ? COLLATE NOCASE"
    found = db.execute(sql, (table,)).fetchone()
    return str(found[0] or "") if found is not None else ""
