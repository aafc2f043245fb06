"""The tables `airflow_ft_head` and `airflow_ft_ledger` of a PostgreSQL database."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import psycopg2

from airflow_ft.core.errors import SinkAccessError
from airflow_ft.sinks.base.sql_ledger import HEAD, LEDGER, PRIVILEGES, SqlLedger, cannot_create, statements
from airflow_ft.sinks.postgres.failures import Meaning, describe, meaning
from airflow_ft.sinks.postgres.naming import TableName
from airflow_ft.sinks.postgres.session import Session

_CREATING = 0x61667470  # an arbitrary constant: the key of the advisory locks under which tables, and heads, are made


def ddl_of(schema: str) -> Sequence[str]:
    """The statements that make both tables where they are lacking; schema "": where the search path leads."""
    head, ledger = TableName(schema, HEAD).sql, TableName(schema, LEDGER).sql
    types = {"text": "text", "key": 'text COLLATE "C"', "integer": "bigint"}
    return statements(head, ledger, **types, at="timestamptz NOT NULL DEFAULT now()")


@dataclass(frozen=True, slots=True)
class Ledger(SqlLedger):
    """What a schema remembers of one pipeline.

    Rows that were prepared become visible with their marker, but without the head: a prepared transaction that had
    changed it would lock it until the decision. So the number delivered last is the higher one of what the head says
    and of the newest marker of its owner.
    """

    session: Session
    schema: str
    pipeline: str
    participant: str

    delivered: ClassVar[str] = (
        "greatest(last_delivered, (SELECT max(number) FROM {ledger} AS marker WHERE kind = 'committed' AND"
        " (marker.pipeline, marker.participant, marker.installation) = (head.pipeline, head.participant,"
        " head.installation)))"
    )

    @property
    def tables(self) -> tuple[str, str]:
        """Head and ledger, quoted."""
        return TableName(self.schema, HEAD).sql, TableName(self.schema, LEDGER).sql

    def rows(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        return self.session.rows(self._sql(sql), values)

    def run(self, sql: str, *values: object) -> None:
        self.session.run(self._sql(sql), values)

    def lock(self) -> None:
        """The head's row until the transaction ends: before it is read.

        Where there is none to lock yet, its place: else one that somebody makes meanwhile is read without a lock, and a
        newer attempt, which has raised it by then, is lowered again.
        """
        row = "SELECT 1 FROM {head} WHERE pipeline = ? AND participant = ? FOR UPDATE"
        if not self.rows(row, *self.key):
            self.rows(f"SELECT pg_advisory_xact_lock({_CREATING}, hashtext(?))", " ".join(self.key))
            self.rows(row, *self.key)

    def prune(self, floor: int) -> None:
        # What the markers say of the number delivered last has to outlive them.
        mine = "pipeline = ? AND participant = ?"
        newest = f"SELECT max(number) FROM {{ledger}} WHERE {mine} AND kind = 'committed' AND number <= ?"
        sql = f"UPDATE {{head}} SET last_delivered = greatest(last_delivered, ({newest})) WHERE {mine}"
        self.run(sql, *self.key, floor, *self.key)
        SqlLedger.prune(self, floor)

    def installations(self) -> list[str]:
        """The owners of head and markers."""
        mine = "pipeline = ? AND participant = ?"
        sql = f"SELECT installation FROM {{head}} WHERE {mine} UNION SELECT installation FROM {{ledger}} WHERE {mine}"
        return [row[0] for row in self.rows(sql, *self.key, *self.key)]

    def exists(self) -> bool:
        sql = "SELECT count(to_regclass(name)) FROM unnest(%s) AS name"
        return bool(self.session.value(sql, ([*self.tables],)) == len(self.tables))

    def create(self) -> None:
        """The tables, where they are lacking, and whether this user may use them.

        SinkAccessError: with the statements that a privileged person has to run.
        """
        if not self.exists():
            # IF NOT EXISTS alone fails where two make the same table at once.
            made = "; ".join((f"SELECT pg_advisory_xact_lock({_CREATING})", *ddl_of(self.schema)))
            try:
                self.session.run(made)
            except psycopg2.Error as error:
                if meaning(error) is not Meaning.ACCESS:
                    raise
                raise cannot_create(self.schema, describe(error), ddl_of(self.schema)) from error
        self.check()

    def check(self) -> None:
        """SinkAccessError unless this user may use both tables, and they outlive a crash."""
        sql = (
            "SELECT name, relpersistence::text, array(SELECT what FROM unnest(%s) AS what WHERE NOT"
            " has_table_privilege(to_regclass(name), what)) FROM unnest(%s) AS name"
            " JOIN pg_class ON pg_class.oid = to_regclass(name)"
        )
        for name, persistence, lacking in self.session.rows(sql, ([*PRIVILEGES], [*self.tables])):
            if persistence != "p":
                raise SinkAccessError(
                    f"{name} is unlogged: a crash would empty it.", remedy=f"ALTER TABLE {name} SET LOGGED."
                )
            if lacking:
                raise SinkAccessError(
                    f"the connection's user lacks {', '.join(lacking)} on {name}.",
                    remedy=f"GRANT {', '.join(lacking)} ON {name} to it.",
                )

    def _sql(self, sql: str) -> str:
        """`?` becomes psycopg2's placeholder, and names of tables fill their places."""
        head, ledger = (name.replace("%", "%%") for name in self.tables)
        text = sql.replace("%", "%%").replace("?", "%s")
        return text.replace("{head}", head).replace("{ledger}", ledger)
