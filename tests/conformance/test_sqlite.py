"""SQLite does what the protocol demands."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest

from airflow_ft.core.ports import ConnectionInfo
from airflow_ft.sinks.sqlite.spec import SqliteSink
from airflow_ft.testing import ParticipantConformance, Target


class File(Target):
    """A table of its own file, in which an id stands once."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "shop.db"
        self.sink = SqliteSink(table="orders", conn_id="shop")
        self.connection = ConnectionInfo("shop", "sqlite", host=str(self.path))
        ids = [1, 2, 2, 3]
        self.refused, self.taken = pa.table({"id": ids, "text": ["a", "b", "again", "c"]}), (1, 2, 3)
        self.sql("CREATE TABLE orders (id INTEGER NOT NULL UNIQUE, text TEXT)")

    def sql(self, statement: str) -> list[tuple[object, ...]]:
        with closing(sqlite3.connect(self.path)) as db:
            found = db.execute(statement).fetchall()
            db.commit()
            return found

    def ids(self) -> list[int]:
        return [row[0] for row in self.sql("SELECT id FROM orders ORDER BY id")]  # type: ignore[misc]


class TestSqlite(ParticipantConformance):
    @pytest.fixture
    def target(self, tmp_path: Path) -> Iterator[Target]:
        yield File(tmp_path)
