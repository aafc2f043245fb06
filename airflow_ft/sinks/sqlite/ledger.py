"""The tables `airflow_ft_head` and `airflow_ft_ledger` of a SQLite file."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from typing import ClassVar

from airflow_ft.sinks.base.sql_ledger import DbApiLedger, statements


class Ledger(DbApiLedger):
    """A file's memory of one pipeline."""

    __slots__ = ()

    listed: ClassVar[str] = "SELECT count(*) FROM sqlite_master WHERE name IN ('{head}', '{ledger}')"
    ddl: ClassVar[Sequence[str]] = statements(integer="INTEGER", at="TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP")

    @staticmethod
    def has_rows(db: sqlite3.Connection, participant: str, sink: str) -> bool:
        """Return whether a checkpoint that the file remembers had rows of this sink."""
        rows = db.execute("SELECT counts FROM airflow_ft_ledger WHERE participant = ?", (participant,))
        return any(json.loads(counts).get(sink) for (counts,) in rows)
