"""Columns of SQLite, and which values they keep as they are.

SQLite has four kinds of values, and converts what is put into a column that prefers another kind ("affinity"): the text
'007' in a column of type INT becomes the number 7. So rows go only into columns that keep them. What has no kind of its
own goes as text: decimals with all their digits, dates as 2024-05-31, timestamps as 2024-05-31 12:00:00.000000 (UTC).
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_ft.core.errors import AirflowFtError, UnfitTargetError
from airflow_ft.sinks.arrow import beyond
from airflow_ft.sinks.base.sql_names import quoted

INTEGER, REAL, TEXT, BLOB, NUMERIC = "INTEGER", "REAL", "TEXT", "BLOB", "NUMERIC"
_KEEPS = {  # affinities by kind of value; BLOB converts nothing
    INTEGER: {INTEGER, NUMERIC, BLOB},
    REAL: {REAL, BLOB},
    TEXT: {TEXT, BLOB},
    BLOB: {INTEGER, REAL, TEXT, BLOB, NUMERIC},
}
_STRICT = {"INT": INTEGER, "INTEGER": INTEGER, "REAL": REAL, "TEXT": TEXT, "BLOB": BLOB}
_LARGEST = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table. `strict`: it takes values of its kind alone."""

    name: str
    declared: str
    must: bool
    is_rowid: bool
    strict: bool

    def keeps(self, kind: str, type: pa.DataType) -> bool:
        """Whether values of this kind, made of that type, stay what they are."""
        declared = self.declared.upper()
        if self.strict:
            return declared == "ANY" or _STRICT.get(declared) == kind
        if self.is_rowid:
            return kind == INTEGER
        looks_like_no_number = pa.types.is_date(type) or pa.types.is_timestamp(type)
        return looks_like_no_number or affinity(declared) in _KEEPS[kind]


def affinity(declared: str) -> str:
    """Of a declared type, in the order of SQLite's own rules (sqlite.org/datatype3.html)."""
    for words, found in ((("INT",), INTEGER), (("CHAR", "CLOB", "TEXT"), TEXT), (("BLOB",), BLOB)):
        if any(word in declared for word in words):
            return found
    if not declared:
        return BLOB
    return REAL if any(word in declared for word in ("REAL", "FLOA", "DOUB")) else NUMERIC


def kind_of(type: pa.DataType) -> str:
    """The kind of value that SQLite gets for an Arrow type; "": none."""
    if pa.types.is_integer(type) or pa.types.is_boolean(type):
        return INTEGER
    if pa.types.is_floating(type):
        return REAL
    if pa.types.is_binary(type) or pa.types.is_large_binary(type):
        return BLOB
    texts = (pa.types.is_string, pa.types.is_large_string, pa.types.is_decimal, pa.types.is_date, pa.types.is_timestamp)
    return TEXT if any(is_one(type) for is_one in texts) else ""


def read_columns(db: sqlite3.Connection, table: str) -> dict[str, Column]:
    """The columns that can be written, by their names in lower case; {} where there is no such table."""
    listed = _listed(db, table)
    if listed is None or listed[0] != "table":
        return {}
    rows = db.execute('SELECT name, type, "notnull", dflt_value, pk, hidden FROM pragma_table_xinfo(?)', (table,))
    found = [row for row in rows.fetchall() if row[5] == 0]  # others are generated
    keys = [row[0] for row in found if row[4]]
    strict = bool(listed[1])
    columns = {}
    for name, declared, notnull, default, key, _ in found:
        is_rowid = bool(key) and len(keys) == 1 and declared.upper() == "INTEGER"
        must = bool(notnull) and default is None and not is_rowid
        columns[name.lower()] = Column(name, declared, must, is_rowid, strict)
    return columns


def resolves_conflicts(db: sqlite3.Connection, table: str) -> bool:
    """Whether a constraint of the table does something else than to refuse: drop or replace rows, end a transaction."""
    sql = "SELECT sql FROM sqlite_master WHERE type = 'table' AND name = ? COLLATE NOCASE"
    found = db.execute(sql, (table,)).fetchone()
    return found is not None and re.search(r"\bON\s+CONFLICT\s+(?!ABORT\b)", found[0], re.IGNORECASE) is not None


def is_another_thing(db: sqlite3.Connection, name: str) -> bool:
    """Whether the name is a view's, or a virtual table's."""
    listed = _listed(db, name)
    return listed is not None and listed[0] != "table"


def _listed(db: sqlite3.Connection, name: str) -> tuple[str, int] | None:
    """What SQLite calls it ("table", "view", "virtual"), and whether it is STRICT; None: there is nothing."""
    sql = "SELECT type, strict FROM pragma_table_list WHERE schema = 'main' AND name = ? COLLATE NOCASE"
    found: tuple[str, int] | None = db.execute(sql, (name,)).fetchone()
    return found


def create_table(db: sqlite3.Connection, table: str, schema: pa.Schema) -> None:
    """A table for rows of this schema."""
    db.execute(table_of(table, schema))


def table_of(table: str, schema: pa.Schema) -> str:
    """The statement that makes one."""
    columns = ", ".join(f"{quoted(field.name)} {kind_of(field.type) or TEXT}" for field in schema)
    return f"CREATE TABLE {quoted(table)} ({columns})"


def misfits(table: str, columns: dict[str, Column] | None, schema: pa.Schema, sink: str) -> Iterator[AirflowFtError]:
    """All that speaks against rows of this schema; `columns` is None for a table that will be made for them."""
    seen: dict[str, str] = {}
    for field in schema:
        kind = kind_of(field.type)
        if not kind:
            yield UnfitTargetError(
                f"{field.type} has no form in SQLite.",
                remedy="in the job: to_json(column), or select its parts.",
                sink=sink,
                column=field.name,
            )
        if other := seen.get(field.name.lower()):
            yield UnfitTargetError(
                f"{other!r} and {field.name!r} are one name to SQLite.",
                remedy="rename one of them in the job.",
                sink=sink,
                column=field.name,
            )
        seen[field.name.lower()] = field.name
        if columns is None or not kind:
            continue
        column = columns.get(field.name.lower())
        if column is None:
            yield UnfitTargetError(
                f"table {table!r} has no column {field.name!r} that can be written.",
                remedy=f"ALTER TABLE {quoted(table)} ADD COLUMN {quoted(field.name)} {kind}; or drop it in the job.",
                sink=sink,
                column=field.name,
            )
        elif not column.keeps(kind, field.type):
            yield UnfitTargetError(
                f"{field.type} goes to SQLite as {kind}, which a column of type {column.declared} would change.",
                remedy=f"declare the column as {kind}, or cast in the job.",
                sink=sink,
                column=field.name,
            )
    for column in (columns or {}).values():
        if column.must and column.name.lower() not in seen:
            yield UnfitTargetError(
                f"column {column.name!r} of table {table!r} is NOT NULL without a default, and the rows have none.",
                remedy="add it to the job's rows, or give it a default.",
                sink=sink,
                column=column.name,
            )


def values(batch: pa.RecordBatch) -> list[list[Any]]:
    """The values of each column, as SQLite gets them."""
    return [_values(column) for column in batch.columns]


def refused(batch: pa.RecordBatch, columns: dict[str, Column]) -> dict[int, str]:
    """Rows that SQLite would change without a word, and why; by their place in the batch."""
    found: dict[int, str] = {}
    for field, values in zip(batch.schema, batch.columns, strict=True):
        for row in beyond(values):
            found.setdefault(row, f"{field.name}: outside of the years 1 to 9999, which has no text that others read")
        if pa.types.is_floating(field.type):
            wrong, why = pc.is_nan(values), "NaN has no form in SQLite, which would store NULL"
        elif field.type == pa.uint64():
            wrong, why = pc.greater(values, pa.scalar(_LARGEST, pa.uint64())), f"more than SQLite's largest, {_LARGEST}"
        elif columns[field.name.lower()].is_rowid and values.null_count:
            wrong, why = pc.is_null(values), "NULL in the INTEGER PRIMARY KEY, for which SQLite would make a number up"
        else:
            continue
        for row in pc.indices_nonzero(pc.fill_null(wrong, False)).to_pylist():
            found.setdefault(row, f"{field.name}: {why}")
    return found


def _values(column: pa.Array) -> list[Any]:
    type, text = column.type, pa.string()
    if pa.types.is_boolean(type):
        return [None if value is None else int(value) for value in column.to_pylist()]
    if pa.types.is_timestamp(type):
        return list(column.cast(pa.timestamp("us", type.tz)).cast(pa.timestamp("us")).cast(text).to_pylist())
    if pa.types.is_date(type):
        return list(column.cast(text).to_pylist())
    if pa.types.is_decimal(type):
        return [None if value is None else format(value, "f") for value in column.to_pylist()]
    return list(column.to_pylist())
