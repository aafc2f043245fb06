"""Keys that an upsert needs in its table: exactly one unique key, of whole columns, that identifies rows.

INSERT ... ON DUPLICATE KEY UPDATE replaces the row it meets in *any* unique key. So a key over the beginning of a text
would merge several rows, and a second unique key would overwrite another row. Values that the collation of a key
column treats as equal (case, accents, blanks at the end) are one key, as the table declares.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from airflow_ft.protocol.errors import UnfitTargetError
from airflow_ft.sinks.mysql.catalog import information_schema
from airflow_ft.sinks.mysql.failures import NOT_ALLOWED, suppressed
from airflow_ft.sinks.mysql.naming import TableName, quote
from airflow_ft.sinks.mysql.session import Session
from airflow_ft.sinks.mysql.spec import MySqlSink
from airflow_ft.sinks.mysql.vote import Target


@dataclass(slots=True)
class Unique:
    """A unique key: its columns in lower case, or expressions in brackets; `prefixes` by the column's name."""

    name: str
    parts: list[str] = field(default_factory=list)
    prefixes: dict[str, int] = field(default_factory=dict)
    nullable: bool = False
    hashed: bool = False

    def __str__(self) -> str:
        return f"{self.name} ({', '.join(self._part_text(part) for part in self.parts)})"

    def _part_text(self, part: str) -> str:
        return f"{part}({self.prefixes[part]})" if part in self.prefixes else part

    @property
    def is_usable(self) -> bool:
        """Return whether different rows have different keys, and the server finds a row by its key.

        MariaDB keeps a key that is too long for an index as a hash, which it does not search.
        """
        return not self.nullable and not self.prefixes and not self.hashed


def check_keys(session: Session, target: Target, sink: MySqlSink) -> None:
    """The keys of the table must be what an upsert needs.

    Raises:
        UnfitTargetError: key_columns are not a unique key of whole columns, or another unique key could be hit. Also
            if a column of the key or the version column does not fit. Has the statement that helps.
    """
    name = target.table.name
    if session.is_mariadb and (period := _period_key(session, name)):
        what = f"{name} has the key {period}. MariaDB has no INSERT ... ON DUPLICATE KEY UPDATE for such a table."
        remedy = f"Drop that key of {name}, or use strategy 'local'."
        raise target.misfits.of_table(what, "table_unsupported", remedy, key=period)
    wanted = sorted(key.lower() for key in sink.key_columns)
    unique = unique_keys(session, name)
    same = [key for key in unique if sorted(key.parts) == wanted]
    fitting = [key for key in same if key.is_usable]
    if not fitting:
        raise _no_key(target, sink, same)
    if others := [str(key) for key in unique if key not in fitting]:
        what = f"{name} has other unique keys: {', '.join(others)}."
        what += " An upsert that meets one of them would overwrite another row."
        remedy = f"Drop these keys of {name}, or use strategy 'local'."
        raise target.misfits.of_table(what, "other_unique_key", remedy, keys=others)
    for key in sink.key_columns:
        _check_key_column(target, key)
    version = target.table.column(sink.version_column or "")
    if version is None or version.type != "bigint" or version.generated:
        wanted_name = sink.version_column or ""
        change = f"{'ADD' if version is None else 'MODIFY'} COLUMN {quote(wanted_name)}"
        remedy = f"Run ALTER TABLE {name.sql} {change} BIGINT NOT NULL DEFAULT 0."
        raise target.misfits.no_version(wanted_name, version is not None, remedy)


def _period_key(session: Session, name: TableName) -> str:
    """A key over a period, as SHOW CREATE TABLE shows it ("": none): older releases list them nowhere else."""
    statement = ""
    with suppressed(NOT_ALLOWED):  # then the vote on privileges speaks
        statement = str((session.row(f"SHOW CREATE TABLE {name.sql}") or ("", ""))[1])
    found = re.search(r"^\s*((?:PRIMARY|UNIQUE) KEY .*WITHOUT OVERLAPS\))", statement, re.MULTILINE | re.IGNORECASE)
    return found[1] if found else ""


def unique_keys(session: Session, name: TableName) -> list[Unique]:
    """The unique keys of a table, the primary key first.

    Also those that the optimizer does not see (INVISIBLE, IGNORED): they are kept unique, too.
    """
    expression = "NULL" if session.is_mariadb else "EXPRESSION"  # MariaDB has no keys over expressions
    columns = f"INDEX_NAME, COLUMN_NAME, {expression}, SUB_PART, NULLABLE, INDEX_TYPE"
    order = "AND NON_UNIQUE = 0 ORDER BY INDEX_NAME <> 'PRIMARY', INDEX_NAME, SEQ_IN_INDEX"
    found: dict[str, Unique] = {}
    for index, column, computed, prefix, null, kind in information_schema(session, name, "STATISTICS", columns, order):
        key = found.setdefault(str(index), Unique(str(index)))
        part = f"({computed})" if column is None else str(column).lower()
        key.parts.append(part)
        if prefix is not None:
            key.prefixes[part] = int(prefix)
        key.nullable |= str(null).upper() == "YES"
        key.hashed |= str(kind).upper() == "HASH"
    return list(found.values())


def _no_key(target: Target, sink: MySqlSink, same: list[Unique]) -> UnfitTargetError:
    """Return the error; `same` are keys of these columns that rows cannot be found by."""
    name = target.table.name
    for key in sink.key_columns:
        if target.table.column(key) is None:
            return target.misfits.no_such_key(key, [each.name for each in target.table.columns.values()])
    keys = ", ".join(map(quote, sink.key_columns))
    short = next((key for key in same if (key.prefixes or key.hashed) and not key.nullable), None)
    if short is None:
        remedy = f"Run ALTER TABLE {name.sql} ADD PRIMARY KEY ({keys}), or name the table's key in key_columns."
        return target.misfits.no_key(sink.key_columns, remedy)
    old = "PRIMARY KEY" if short.name.upper() == "PRIMARY" else f"KEY {quote(short.name)}"
    new = "PRIMARY KEY" if old == "PRIMARY KEY" else f"UNIQUE {old}"
    what = f"the key {short} of {name} compares only the beginning of a value. Rows whose keys begin alike would become"
    what += " one."
    if short.hashed:
        what = (
            f"the key {short} of {name} is a hash, by which MariaDB finds no rows. Deletes would read the whole table."
        )
    remedy = f"Change the text and binary columns among {keys} of {name} to VARCHAR or VARBINARY NOT NULL. Keep their"
    remedy += " collations. Make each as long as its longest value, and all at most 3,072 bytes together."
    remedy += f" Then run ALTER TABLE {name.sql} DROP {old}, ADD {new} ({keys})."
    return target.misfits.of_table(what, "key_unfit", remedy, key=str(short))


def _check_key_column(target: Target, key: str) -> None:
    column = target.table.column(key)
    assert column is not None  # it is in the key
    name = f"{target.table.name}.{column.name}"
    if column.generated:
        what = f"the server computes the key column {name}, so neither rows nor deletes can name its value."
        stored = f"ALTER TABLE {target.table.name.sql} MODIFY {quote(column.name)} {column.full_type} NOT NULL"
        remedy = f"Store the values: run {stored}."
        raise target.misfits.of_table(what, "column_generated", remedy, key_column=column.name)
    if column.type == "set":
        what = f"the key column {name} is a SET, whose text depends on the order of its labels."
        what += " Deletes would miss rows."
        raise target.misfits.of_table(what, "column_unfit", f"Change {name} to VARCHAR.", key_column=column.name)
