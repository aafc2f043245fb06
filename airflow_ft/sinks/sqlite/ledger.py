"""The tables `airflow_ft_head` and `airflow_ft_ledger` of a SQLite file."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from typing import Any

from airflow_ft.sinks.base.sql_ledger import HEAD, LEDGER, SqlLedger

_DDL = (
    """CREATE TABLE IF NOT EXISTS {head} (
    pipeline TEXT NOT NULL, participant TEXT NOT NULL, installation TEXT NOT NULL, epoch INTEGER NOT NULL,
    attempt INTEGER NOT NULL, last_delivered INTEGER NOT NULL, floor INTEGER NOT NULL,
    PRIMARY KEY (pipeline, participant))""",
    """CREATE TABLE IF NOT EXISTS {ledger} (
    pipeline TEXT NOT NULL, participant TEXT NOT NULL, number INTEGER NOT NULL, installation TEXT NOT NULL,
    kind TEXT NOT NULL, epoch INTEGER NOT NULL, attempt INTEGER NOT NULL, digest TEXT NOT NULL, counts TEXT NOT NULL,
    detail TEXT NOT NULL, at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP, PRIMARY KEY (pipeline, participant, number))""",
)


@dataclass(frozen=True, slots=True)
class Ledger(SqlLedger):
    """What a file remembers of one pipeline."""

    db: sqlite3.Connection
    pipeline: str
    participant: str

    def rows(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        return self._execute(sql, values).fetchall()

    def run(self, sql: str, *values: object) -> None:
        self._execute(sql, values)

    def create(self) -> None:
        for statement in _DDL:
            self.run(statement)

    def exists(self) -> bool:
        sql = f"SELECT count(*) FROM sqlite_master WHERE name IN ('{HEAD}', '{LEDGER}')"
        return bool(self.rows(sql)[0][0] == len(_DDL))

    def _execute(self, sql: str, values: tuple[Any, ...]) -> sqlite3.Cursor:
        return self.db.execute(sql.format(head=HEAD, ledger=LEDGER), values)
