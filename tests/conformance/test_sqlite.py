"""SQLite does what the protocol demands."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import date
from pathlib import Path

import pyarrow as pa
import pytest

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.sink_spec import SinkSpec
from airflow_ft.sinks.sqlite.spec import SqliteSink
from airflow_ft.testing import Bag, ParticipantConformance, Target, Values
from tests.conformance.values import CLOCK, FINITE, INF, NAN, NUL, digits, instant

PLANTED = {
    "loss": "DELETE FROM orders WHERE id = {id}",
    "double": "INSERT INTO orders SELECT * FROM orders WHERE id = {id}",
    "change": "UPDATE orders SET text = 'changed' WHERE id = {id}",
}


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

    def plant(self, what: str, id: int) -> bool:
        if what == "double":  # the column is UNIQUE
            self.sql("CREATE TABLE again AS SELECT * FROM orders")
            self.sql("DROP TABLE orders")
            self.sql("ALTER TABLE again RENAME TO orders")
        self.sql(PLANTED[what].format(id=id))
        return True

    def drop(self) -> bool:
        self.sql("DROP TABLE orders")
        return True

    def bag(self) -> Bag:
        self.sql("CREATE TABLE bag (id INTEGER, text TEXT, note TEXT)")
        return Bag(
            SqliteSink(table="bag", conn_id="shop"),
            lambda: self.sql("SELECT id, text, note FROM bag"),  # type: ignore[arg-type, return-value]
        )

    def mistaken(self) -> dict[str, tuple[SinkSpec, ConnectionInfo]]:
        return {
            "no such folder": (self.sink, replace(self.connection, host="/nonexistent/shop.db")),
            "no such table": (SqliteSink(table="no_orders", conn_id="shop", create=False), self.connection),
        }

    def values(self) -> Values:
        """Into a table that the sink makes. NaN and the largest unsigned numbers have no form in SQLite."""
        unsigned = pa.array([0, 2**63 - 1, None], pa.uint64())
        columns = {**FINITE, **NUL, "unsigned": unsigned, "infinite": pa.array([INF, -INF, None])}
        names = ", ".join(f'"{name}"' for name in columns)

        def read() -> list[dict[str, object]]:
            if not self.sql("SELECT 1 FROM sqlite_master WHERE name = 'kinds'"):
                return []
            return [dict(zip(("id", *columns), row, strict=True)) for row in self.sql(f"SELECT id, {names} FROM kinds")]

        return Values(
            SqliteSink(table="kinds", conn_id="shop"),
            columns,
            read,
            seen={
                "flag": int,
                "amount": digits,
                "day": date.isoformat,
                "moment": lambda value: instant(value, " "),
                "local": lambda value: instant(value, " "),
            },
            refused={
                "NaN": ("double", pa.array([NAN])),
                "too large": ("unsigned", pa.array([2**63, 2**64 - 1], pa.uint64())),
                "a time of the day": ("day", CLOCK["clock"].slice(0, 1)),
            },
        )


class TestSqlite(ParticipantConformance):
    patience = 0.5  # the successor waits for the file until the frozen process has gone

    @pytest.fixture
    def target(self, tmp_path: Path) -> Iterator[Target]:
        yield File(tmp_path)
