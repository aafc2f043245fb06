"""Columns of SQLite, and which values they keep as they are.

SQLite has four kinds of values, and converts a value whose column prefers another kind ("affinity"). The text '007' in
a column of type INT becomes the number 7. So rows go only into columns that keep them. Other types go as text: decimals
with all their digits, dates as 2024-05-31, timestamps as 2024-05-31 12:00:00.000000 (UTC).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_ft.protocol.errors import AirflowFtError, UnfitTargetError
from airflow_ft.sinks.arrow import beyond
from airflow_ft.sinks.base.columns import Misfits, TableColumn
from airflow_ft.sinks.base.sql_names import quoted
from airflow_ft.sinks.refused import NullFound
from airflow_ft.sinks.sqlite.file import code_of
from airflow_ft.sinks.sqlite.spec import fold

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
class Column(TableColumn):
    """A column of a table. `strict`: it takes values of its kind alone. `generated`: it takes none."""

    declared: str
    not_null: bool
    fills_itself: bool
    is_rowid: bool
    strict: bool
    generated: bool

    @property
    def must(self) -> bool:
        return self.not_null and not self.fills_itself

    def keeps(self, kind: str, type: pa.DataType) -> bool:
        """Return whether values of this kind, made of that type, stay what they are."""
        declared = upper(self.declared)
        if self.strict:
            return declared == "ANY" or _STRICT.get(declared) == kind
        if self.is_rowid:
            return kind == INTEGER
        looks_like_no_number = pa.types.is_date(type) or pa.types.is_timestamp(type)
        return looks_like_no_number or affinity(declared) in _KEEPS[kind]


def upper(declared: str) -> str:
    """Return a declared type in capitals, as SQLite compares it: letters outside ASCII have no second form."""
    return declared.encode("utf-8", "surrogatepass").upper().decode("utf-8", "surrogatepass")


def affinity(declared: str) -> str:
    """Return the affinity of a declared type, in the order of SQLite's own rules (sqlite.org/datatype3.html)."""
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
    """The columns, by their names as `fold` has them; {} where there is no such table."""
    table_list = listed(db, table)
    if table_list is None or table_list[0] != "table":
        return {}
    rows = db.execute('SELECT name, type, "notnull", dflt_value, pk, hidden FROM pragma_table_xinfo(?)', (table,))
    found = rows.fetchall()
    keys = [row[0] for row in found if row[4]]
    indexed = "SELECT count(*) FROM pragma_index_list(?) WHERE origin = 'pk'"  # a rowid is its own index
    has_rowid_key = len(keys) == 1 and db.execute(indexed, (table,)).fetchone() == (0,)
    strict = bool(table_list[1])
    columns = {}
    for name, declared, notnull, default, key, hidden in found:
        is_rowid = bool(key) and has_rowid_key and fold(declared) == "integer"
        fills_itself = default is not None or is_rowid or bool(hidden)
        columns[fold(name)] = Column(name, declared, bool(notnull), fills_itself, is_rowid, strict, bool(hidden))
    return columns


def listed(db: sqlite3.Connection, name: str) -> tuple[str, int] | None:
    """Return what SQLite calls it ("table", "view", "virtual"), and whether it is STRICT; None: there is nothing."""
    sql = "SELECT type, strict FROM pragma_table_list WHERE schema = 'main' AND name = ? COLLATE NOCASE"
    found: tuple[str, int] | None = db.execute(sql, (name,)).fetchone()
    return found


def create_table(db: sqlite3.Connection, table: str, schema: pa.Schema, sink: str) -> None:
    """Make a table for rows of this schema. UnfitTargetError: SQLite makes no such table (too many columns)."""
    try:
        db.execute(table_of(table, schema))
    except sqlite3.OperationalError as error:
        if code_of(error) != sqlite3.SQLITE_ERROR:
            raise
        raise UnfitTargetError(
            f"SQLite refuses to create the table {table!r}: {error}.",
            code="table_uncreatable",
            remedy="Change the columns of the rows in the job, or create a table that takes them.",
            sink=sink,
            table=table,
        ) from error


def table_of(table: str, schema: pa.Schema, unless: str = "") -> str:
    """The statement that makes one. `unless`: an IF NOT EXISTS."""
    columns = ", ".join(f"{quoted(field.name)} {kind_of(field.type) or TEXT}" for field in schema)
    return f"CREATE TABLE {unless}{quoted(table)} ({columns})"


def schema_problems(
    table: str, columns: dict[str, Column] | None, schema: pa.Schema, sink: str
) -> Iterator[AirflowFtError]:
    """All that speaks against rows of this schema; `columns` is None for a table that will be made for them."""
    seen: dict[str, str] = {}
    misfits = Misfits(table, sink)
    for field in schema:
        kind = kind_of(field.type)
        if not kind:
            yield UnfitTargetError(
                f"SQLite has no type for {field.type}.",
                code="type_unsupported",
                remedy=f"Convert it in the job: `to_json({field.name})`, or select its parts.",
                sink=sink,
                column=field.name,
                type=str(field.type),
            )
        if other := seen.get(fold(field.name)):
            what, remedy = misfits.ambiguous(other, field.name), "Rename one of them in the job."
            yield misfits.of_table(what, "column_ambiguous", remedy, column=field.name)
        seen[fold(field.name)] = field.name
        if columns is None or not kind:
            continue
        column = columns.get(fold(field.name))
        if column is None:
            added = f"ALTER TABLE {quoted(table)} ADD COLUMN {quoted(field.name)} {kind}"
            known = (each.name for each in columns.values() if not each.generated)
            yield misfits.missing(field.name, field.name, known, f"Run `{added}`, or drop the column in the job.")
        elif column.generated:
            remedy = "Drop the column in the job, or create the table with a plain column of this name."
            yield misfits.generated(field.name, column.name, remedy)
        elif not column.keeps(kind, field.type):
            remedy = f"Declare the column as {kind}, as which SQLite gets the values, or cast in the job."
            yield misfits.unfit(field.name, column.declared, str(field.type), remedy)
    for column in (columns or {}).values():
        if column.must and fold(column.name) not in seen:
            remedy = "Add the column to the rows in the job, or give it a default."
            yield misfits.required(column.name, remedy)


def values(batch: pa.RecordBatch) -> list[list[Any]]:
    """The values of each column, as SQLite gets them."""
    return [_values(column) for column in batch.columns]


def refused(batch: pa.RecordBatch, columns: dict[str, Column]) -> dict[int, str]:
    """Rows that SQLite would change without a word, and why; by their place in the batch."""
    found: dict[int, str] = {}
    for field, values in zip(batch.schema, batch.columns, strict=True):
        for row in beyond(values):
            found.setdefault(row, f"{field.name}: outside the years 1 to 9999, which have no standard text form")
        checks: list[tuple[pa.Array, str]] = []
        if pa.types.is_floating(field.type):
            checks.append((pc.is_nan(values), f"{field.name}: NaN, which SQLite would store as NULL"))
        if field.type == pa.uint64():
            larger = pc.greater(values, pa.scalar(_LARGEST, pa.uint64()))
            checks.append((larger, f"{field.name}: more than {_LARGEST}, the largest integer of SQLite"))
        if columns[fold(field.name)].is_rowid and values.null_count:
            made_up = "NULL in the INTEGER PRIMARY KEY, which SQLite would replace by a new number"
            checks.append((pc.is_null(values), NullFound(f"{field.name}: {made_up}")))
        for wrong, why in checks:
            for row in pc.indices_nonzero(pc.fill_null(wrong, False)).to_pylist():
                found.setdefault(row, why)
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
