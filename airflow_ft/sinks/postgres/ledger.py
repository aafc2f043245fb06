"""The tables `airflow_ft_head` and `airflow_ft_ledger` of a PostgreSQL database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import psycopg2

from airflow_ft.protocol.errors import SinkAccessError
from airflow_ft.sinks.base.columns import Misfits
from airflow_ft.sinks.base.sql_ledger import (
    HEAD,
    LEDGER,
    PRIVILEGES,
    SqlLedger,
    cannot_create,
    statements,
)
from airflow_ft.sinks.base.sql_names import quoted
from airflow_ft.sinks.postgres.failures import Meaning, describe, meaning
from airflow_ft.sinks.postgres.naming import TableName
from airflow_ft.sinks.postgres.session import Session
from airflow_ft.sinks.postgres.spec import PostgresSink

_CREATING = 0x61667470  # an arbitrary constant: the key of the advisory locks under which tables, and heads, are made

_MADE = "`airflow ft setup PIPELINE --dag FILE --print` prints the statements."
_TEXT, _NUMBER = ("text", "varchar"), ("int8",)
_KEYS = (("pipeline", "participant"), ("pipeline", "participant", "number", "branch"))
_COLUMNS = (
    dict.fromkeys(("pipeline", "participant", "installation"), _TEXT)
    | dict.fromkeys(("epoch", "attempt", "last_delivered", "floor"), _NUMBER),
    dict.fromkeys(("pipeline", "participant", "branch", "installation", "kind", "digest", "counts", "detail"), _TEXT)
    | dict.fromkeys(("number", "epoch", "attempt"), _NUMBER)
    | {"at": ("timestamptz", "timestamp")},
)
_CHECKED = """
SELECT c.relkind::text, c.relpersistence::text, row_security_active(c.oid),
       array(SELECT what FROM unnest(%s) AS what WHERE NOT has_table_privilege(c.oid, what)),
       (SELECT json_agg(json_build_array(a.attname, t.typname, a.attnotnull AND NOT a.atthasdef
                                         AND a.attidentity = '' AND a.attgenerated = ''))
        FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
        WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),
       (SELECT coalesce(json_agg((SELECT json_agg(a.attname ORDER BY a.attname COLLATE "C") FROM pg_attribute a
                         WHERE a.attrelid = c.oid AND a.attnum = ANY (i.indkey[0:i.indnkeyatts - 1]))), '[]')
        FROM pg_index i WHERE i.indrelid = c.oid AND i.indisunique AND i.indimmediate AND i.indisvalid
        AND i.indpred IS NULL AND i.indexprs IS NULL)
FROM pg_class c WHERE c.oid = to_regclass(%s)
"""


def ddl_of(schema: str) -> Sequence[str]:
    """The statements that make both tables where they are lacking; schema "": where the search path leads."""
    head, ledger = TableName(schema, HEAD).sql, TableName(schema, LEDGER).sql
    types = {"text": "text", "key": 'text COLLATE "C"', "integer": "bigint"}
    return statements(head, ledger, **types, at="timestamptz NOT NULL DEFAULT now()", branches=True)


def create_schema(schema: str) -> str:
    """Return the statement that creates a schema where it is missing."""
    return f"CREATE SCHEMA IF NOT EXISTS {quoted(schema)}"


@dataclass(frozen=True, slots=True)
class Ledger(SqlLedger):
    """A schema's memory of one pipeline. It has markers of branches and of whole numbers."""

    session: Session
    schema: str
    pipeline: str
    participant: str

    has_branches: ClassVar[bool] = True

    @property
    def tables(self) -> tuple[str, str]:
        """Head and ledger, quoted."""
        return TableName(self.schema, HEAD).sql, TableName(self.schema, LEDGER).sql

    def rows(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        return self.session.rows(self._sql(sql), values)

    def run(self, sql: str, *values: object) -> None:
        self.session.run(self._sql(sql), values)

    def lock(self) -> None:
        """Lock the head's row until the transaction ends; call it before reading the row.

        Without a row it locks its place. Otherwise a row that another process creates meanwhile would be read without
        a lock, and a newer attempt that has raised it by then would be lowered again.
        """
        row = "SELECT 1 FROM {head} WHERE pipeline = ? AND participant = ? FOR UPDATE"
        if not self.rows(row, *self.key):
            self.rows(f"SELECT pg_advisory_xact_lock({_CREATING}, hashtext(?))", " ".join(self.key))
            self.rows(row, *self.key)

    def exists(self) -> bool:
        sql = "SELECT count(to_regclass(name)) FROM unnest(%s) AS name"
        return bool(self.session.value(sql, ([*self.tables],)) == len(self.tables))

    def create(self) -> None:
        """The tables, where they are lacking, and whether this user may use them.

        SinkAccessError: with the statements that a privileged person has to run.
        """
        if not self.exists():
            may = self._may_create()  # before an error aborts the caller's transaction
            # IF NOT EXISTS alone fails where two make the same table at once.
            made = "; ".join((f"SELECT pg_advisory_xact_lock({_CREATING})", *ddl_of(self.schema)))
            try:
                self.session.run(made)
            except psycopg2.Error as error:
                if meaning(error) not in (Meaning.ACCESS, Meaning.ROWS):  # ROWS: an event trigger has raised
                    raise
                raise self._cannot_create(f"creating them failed: {describe(error)}", may) from error
        self.check()

    def require_creatable(self) -> None:
        """Raise what `create` would where the schema is missing, or this user may not create tables there."""
        may = self._may_create()
        if may is None:
            raise self._cannot_create("the schema itself is missing.", may)
        if not may:
            raise self._cannot_create("this user may not create tables there.", may)

    def _may_create(self) -> bool | None:
        """Return whether this user may create tables in the schema; None: there is no such schema."""
        sql = "SELECT has_schema_privilege(oid, 'CREATE') FROM pg_namespace WHERE nspname = %s"
        found = self.session.rows(sql, (self.schema,))
        return bool(found[0][0]) if found else None

    def _cannot_create(self, why: str, may: bool | None) -> SinkAccessError:
        statements = ddl_of(self.schema) if may is not None else (create_schema(self.schema), *ddl_of(self.schema))
        return cannot_create(self.schema, why, statements)

    def check(self) -> None:
        """SinkAccessError unless both are as `ddl_of` makes them, outlive a crash, and this user may use them."""
        for name, columns, key in zip(self.tables, _COLUMNS, _KEYS, strict=True):
            kind, persistence, guarded, lacking, there, keys = self.session.rows(_CHECKED, ([*PRIVILEGES], name))[0]
            if kind != "r":
                raise SinkAccessError(
                    f"{name} is not an ordinary table, so it cannot be the ledger.",
                    code="ledger_unfit",
                    remedy=f"Rename it. Or, before the first delivery, set another ledger_schema=. {_MADE}",
                    table=name,
                )
            if persistence != "p":
                raise SinkAccessError(
                    f"table {name} is unlogged: a crash of the server empties it.",
                    code="table_unlogged",
                    remedy=f"Run `ALTER TABLE {name} SET LOGGED`.",
                    table=name,
                )
            found = {column: (type, must) for column, type, must in there or ()}
            wrong = [column for column, type in columns.items() if found.get(column, ("", False))[0] not in type]
            wrong += [column for column, (_, must) in found.items() if must and column not in columns]
            if wrong or sorted(key) not in keys:
                what = f"column {wrong[0]!r} differs" if wrong else f"its key ({', '.join(key)}) is missing"
                raise SinkAccessError(
                    f"table {name} is not as the sink creates it: {what}.",
                    code="ledger_unfit",
                    remedy=f"Restore the table. Or, before the first delivery, set another ledger_schema=. {_MADE}",
                    table=name,
                    wrong=wrong[0] if wrong else "key",
                )
            if guarded:
                raise SinkAccessError(
                    f"row-level security of table {name} applies to the connection's user.",
                    code="row_security_active",
                    remedy=f"Run `ALTER TABLE {name} DISABLE ROW LEVEL SECURITY`, or `ALTER ROLE ... BYPASSRLS`.",
                    table=name,
                )
            if lacking:
                remedy = f"Run `GRANT {', '.join(lacking)} ON {name} TO ...` for the connection's user."
                raise Misfits(name).not_granted(lacking, remedy)

    def _sql(self, sql: str) -> str:
        """`?` becomes psycopg2's placeholder, and names of tables fill their places."""
        head, ledger = (name.replace("%", "%%") for name in self.tables)
        text = sql.replace("%", "%%").replace("?", "%s")
        return text.replace("{head}", head).replace("{ledger}", ledger)


def ledger_of(session: Session, sinks: Mapping[str, PostgresSink], pipeline: str, participant: str) -> Ledger:
    """The ledger, in the schema that the sinks name, or else the search path. SinkAccessError: neither names one."""
    named = next((sink.ledger_schema for sink in sinks.values() if sink.ledger_schema), None)
    schema = named or session.value("SELECT current_schema()")
    if not schema:
        raise SinkAccessError(
            "the ledger has no schema: none of the search path of the connection's user exists.",
            code="schema_missing",
            remedy="Set PostgresSink(ledger_schema=...), or run `ALTER ROLE ... SET search_path = ...`.",
        )
    return Ledger(session, schema, pipeline, participant)
