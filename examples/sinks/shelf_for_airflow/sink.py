"""Run in tasks: insert all rows for a SQLite file, and the marker, in one transaction."""

import re
import sqlite3
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from airflow_ft.protocol.errors import SinkUnavailableError, UnfitTargetError, together
from airflow_ft.protocol.write_ahead_log import WalReader
from airflow_ft.sinks.base.comparison import compare_tables, rows_of
from airflow_ft.sinks.base.load import Load, load_all
from airflow_ft.sinks.base.one_transaction import OneTransactionParticipant
from airflow_ft.sinks.base.requirements import Finding, Requirement
from airflow_ft.sinks.base.settings import refuse_unknown
from airflow_ft.sinks.base.sql_ledger import DbApiLedger

# 1. Open a connection; store head and markers.


@contextmanager
def opened(path, mode="rw"):
    """Open a connection that rolls back on close what is not committed; "rwc" makes the file."""
    try:
        uri = f"{Path(path).absolute().as_uri()}?mode={mode}"
        with closing(sqlite3.connect(uri, uri=True, timeout=30, isolation_level=None)) as db:
            yield db
    except sqlite3.Error as error:
        raise SinkUnavailableError(
            f"{path}: {error}.",
            code="file_unusable",
            remedy="Make the file readable and writable, or correct the host of the connection.",
            path=str(path),
        ) from error


class Ledger(DbApiLedger):
    listed = "SELECT count(*) FROM sqlite_master WHERE name IN ('{head}', '{ledger}')"


# 2. Which columns fit, and how rows enter.

TYPES = {pa.int32(): "INTEGER", pa.int64(): "INTEGER", pa.float64(): "REAL", pa.string(): "TEXT", pa.binary(): "BLOB"}

DDL = "SELECT sql FROM sqlite_master WHERE type = 'table' AND name = ? COLLATE NOCASE"
REPLACING = re.compile(r"ON\s+CONFLICT|PRIMARY\s+KEY", re.IGNORECASE)  # replaces rows, or NULL by a number


def columns_of(db, table):
    return dict(db.execute("SELECT name, type FROM pragma_table_info(?)", (table,)).fetchall())


def schema_problems_of(db, sink, table, schema, make=True):
    """Yield why rows with these columns do not fit into the table, or into the one that `prepare` would `make`."""
    columns = columns_of(db, table)
    if not columns and not make:
        remedy = "Restore the table, or create it."
        yield UnfitTargetError(f"there is no table {table}.", code="table_missing", remedy=remedy, sink=sink)
        return
    if (found := db.execute(DDL, (table,)).fetchone()) and (wrong := REPLACING.search(found[0])):
        what, remedy = f"table {table} has {wrong[0]}, which may change rows.", "Create the table without it."
        yield UnfitTargetError(what, code="table_unsupported", remedy=remedy, sink=sink)
    for field in schema:
        wanted = TYPES.get(field.type)
        if wanted is None:
            what, code = f"{field.type} cannot be put on a shelf.", "type_unsupported"
        elif columns and columns.get(field.name) != wanted:
            what, code = f"table {table} has no column {field.name} of type {wanted}.", "column_missing"
        else:
            continue
        remedy = "Cast it in the job, or alter the table."
        yield UnfitTargetError(what, code=code, remedy=remedy, sink=sink, column=field.name)


def quoted(names):
    return ", ".join('"' + name.replace('"', '""') + '"' for name in names)


def values(rows):
    return zip(*(column.to_pylist() for column in rows.columns), strict=True)


@dataclass
class ShelfLoad(Load):
    db: sqlite3.Connection

    def unfit(self, rows):
        reals = [column for column in rows.columns if column.type == pa.float64()]
        wrong = [pc.indices_nonzero(pc.fill_null(pc.is_nan(column), False)) for column in reals]
        return {row: "NaN would become NULL" for rows in wrong for row in rows.to_pylist()}

    def insert(self, rows):
        marks = ", ".join("?" * rows.num_columns)
        sql = f"INSERT INTO {quoted([self.table])} ({quoted(rows.schema.names)}) VALUES ({marks})"
        self.db.execute("SAVEPOINT rows")
        try:
            count = self.db.executemany(sql, values(rows)).rowcount
            why = "" if count == rows.num_rows else "a trigger has left rows out"
        except sqlite3.IntegrityError as error:
            why = str(error)
        if why:
            self.db.execute("ROLLBACK TO rows")
        self.db.execute("RELEASE rows")
        return why


# 3. The participant: transactions, and what happens in them.


@dataclass
class ShelfParticipant(OneTransactionParticipant[sqlite3.Connection]):
    name: str
    tables: dict[str, str]
    path: str
    wal: WalReader

    def _preflight(self):
        return {"sqlite": sqlite3.sqlite_version}

    @contextmanager
    def _writing(self, fence, plan=None, *, create=False, keep=True):
        with opened(self.path, "rwc" if create else "rw") as db:
            db.execute("BEGIN IMMEDIATE")  # one writer at a time: no other process reads the head meanwhile
            ledger = Ledger(db, fence.pipeline, self.name)
            ledger.open(fence, create=create)
            yield db, ledger
            db.execute("COMMIT" if keep else "ROLLBACK")

    @contextmanager
    def _reading(self, pipeline, plan=None):
        if not Path(self.path).exists():
            yield None
            return
        with opened(self.path) as db:
            ledger = Ledger(db, pipeline, self.name)
            yield ledger if ledger.exists() else None

    def _schema_problems(self, db, readers, make):
        for sink, table in self.tables.items():
            for schema in [reader.schema(sink) for reader in readers if sink in reader.sinks()]:
                if not schema.names:  # the job returned nothing for it
                    continue
                problems = list(schema_problems_of(db, sink, table, schema, make))
                if make and not problems:
                    columns = ", ".join(f"{quoted([field.name])} {TYPES[field.type]}" for field in schema)
                    db.execute(f"CREATE TABLE IF NOT EXISTS {quoted([table])} ({columns})")
                yield from problems

    def _insert(self, db, plan, readers, dead_letters):
        if problems := list(self._schema_problems(db, readers, False)):  # the table may have changed since the vote
            raise together(problems)
        return load_all(
            self.tables, readers, lambda sink, reader: ShelfLoad(sink, self.tables[sink], reader, dead_letters, db)
        )


def open_participant(plan, connection, wal):
    for settings in plan.sinks.values():
        refuse_unknown(settings, {"table"})
    tables = {sink: settings["table"] for sink, settings in plan.sinks.items()}
    return ShelfParticipant(plan.name, tables, connection.host, wal)


# 4. Checks before Spark computes rows, for the doctor, and for verify.


def schema_problems(plan, connection, schemas):
    if not Path(connection.host).exists():
        return []
    with opened(connection.host) as db:
        tables = {sink: plan.sinks[sink]["table"] for sink in schemas}
        return [each for sink in schemas for each in schema_problems_of(db, sink, tables[sink], schemas[sink])]


def required(pipeline, plan, connection):
    """Yield what must be there before Spark starts; `airflow ft doctor` reads it too."""
    for name, settings in plan.sinks.items():
        yield Requirement("file", partial(found, connection.host, settings["table"]), name)


def found(path, table):
    if not Path(path).exists() and Path(path).parent.is_dir():
        return Finding(f"{path} will be made")
    with opened(path) as db:
        return Finding(f"{path}, {len(columns_of(db, table))} columns")


def verify(delivered, plan, connection, wal):
    with opened(connection.host) as db:
        return compare_tables(
            delivered,
            plan,
            wal,
            table=lambda settings: settings["table"],
            columns=lambda table: columns_of(db, table),
            found=lambda table, columns: rows_of(db, f"SELECT {quoted(columns)} FROM {quoted([table])}"),
            values=values,
        )
