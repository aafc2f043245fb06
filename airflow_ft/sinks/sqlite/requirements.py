"""Requirements on a file and its tables, and their checks; see `airflow_ft.sinks.base.requirements`.

A table must keep rows of a schema as they are. It is judged at the vote, and again in the delivering transaction:
between the two the file is not locked, so the table may have changed.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import pyarrow as pa

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import PROPOSED, AirflowFtError, UnfitTargetError
from airflow_ft.protocol.model import ParticipantPlan
from airflow_ft.sinks.base.requirements import ASK_SECONDS, Finding, Requirement
from airflow_ft.sinks.base.sql_names import quoted
from airflow_ft.sinks.sqlite.columns import listed, read_columns
from airflow_ft.sinks.sqlite.columns import schema_problems as problems_of
from airflow_ft.sinks.sqlite.file import SqliteFile, code_of
from airflow_ft.sinks.sqlite.spec import SqliteSink, fold

_TOKEN = re.compile(
    r"""
    (?P<space>[\ \t\n\f\r]+ | --[^\n]* | /\*.*?(?:\*/|\Z))      # white space and comments
  | (?P<quoted>'(?:[^']|'')*' | "(?:[^"]|"")*" | `(?:[^`]|``)*` | \[[^\]]*\])
  | (?P<word>[A-Za-z0-9_$\u0080-\U0010ffff]+)                   # keywords, plain names, numbers
  | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)


def required(pipeline: str, plan: ParticipantPlan, connection: ConnectionInfo) -> Generator[Requirement]:
    """Yield what must be there before `prepare`: a file that can be written, and tables of the right shape."""
    patient = SqliteFile.of(connection)  # waits for the end of a delivery
    file = replace(patient, wait_seconds=ASK_SECONDS)
    place = Requirement("file", partial(_file, file), closer=lambda: Finding(patient.describe()))
    yield place
    if place.find().problems:
        return
    for name, sink in SqliteSink.all_of(plan).items():
        yield Requirement(f"table {sink.table}", partial(_table, file, name, sink), name)


def _file(file: SqliteFile) -> Finding:
    file.require_place()
    with file.opened():
        return Finding()


def _table(file: SqliteFile, name: str, sink: SqliteSink) -> Finding:
    with file.opened() as db:
        if db is not None and exists(db, sink.table):
            return Finding(problems=list(shape_problems(db, sink.table, name)))
    if sink.create:
        return Finding()
    raise _no_table(file, sink)


def _no_table(file: SqliteFile, sink: SqliteSink) -> UnfitTargetError:
    return UnfitTargetError(
        f"{file.path} has no table {sink.table!r}, and the sink does not create it: create=False.",
        code="table_missing",
        remedy=f"Create the table {sink.table}: {PROPOSED}",
        path=str(file.path),
        table=sink.table,
    )


def schema_problems(
    plan: ParticipantPlan, connection: ConnectionInfo, schemas: Mapping[str, pa.Schema]
) -> Sequence[AirflowFtError]:
    """Return what speaks against each sink's schema; see `airflow_ft.sinks.fitting`."""
    found: list[AirflowFtError] = []
    sinks = SqliteSink.all_of(plan)
    file = SqliteFile.of(connection)
    with file.opened(participant=plan.name) as db:
        for name, schema in schemas.items():
            sink = sinks[name]
            if db is not None and exists(db, sink.table):
                found += problems(db, sink.table, schema, name)
            elif sink.create:
                found += problems_of(sink.table, None, schema, name)
            else:
                found.append(_no_table(file, sink).located(sink=name))
    return found


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
        found += problems_of(table, read_columns(db, table), schema, sink)
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


# --- the text of CREATE TABLE ---


def conflict_clauses(sql: str) -> list[str]:
    """Return the resolution of each ON CONFLICT clause of a CREATE TABLE, in lower case (`replace`).

    ON is a keyword that cannot be a plain name, so the two words beside each other are always such a clause.
    """
    tokens = [token for token in _TOKEN.finditer(sql) if token.lastgroup != "space"]
    words = ["" if token.lastgroup == "quoted" else fold(token.group()) for token in tokens]
    triples = zip(words, words[1:], words[2:], strict=False)
    return [third for first, second, third in triples if (first, second) == ("on", "conflict")]
