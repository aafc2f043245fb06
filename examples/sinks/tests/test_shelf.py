import sqlite3
from contextlib import closing
from dataclasses import replace

import pyarrow as pa
import pytest

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.testing import Bag, ParticipantConformance, Target, Values
from shelf_for_airflow import ShelfSink

PLANTED = {
    "loss": "DELETE FROM orders WHERE id = {id}",
    "double": "INSERT INTO orders SELECT * FROM orders WHERE id = {id}",
    "change": "UPDATE orders SET text = 'changed' WHERE id = {id}",
}


class ShelfFile(Target):
    def __init__(self, folder):
        self.path = folder / "shop.db"
        self.sink = ShelfSink(table="orders", conn_id="shop")
        self.connection = ConnectionInfo("shop", "sqlite", host=str(self.path))
        self.sql("CREATE TABLE orders (id INTEGER, text TEXT CHECK (text <> 'refused'))")
        self.refused = pa.table({"id": [1, 2, 3], "text": ["a", "refused", "c"]})
        self.taken = (1, 3)

    def sql(self, statement):
        with closing(sqlite3.connect(self.path)) as db:
            found = db.execute(statement).fetchall()
            db.commit()
            return found

    def ids(self):
        return [row[0] for row in self.sql("SELECT id FROM orders ORDER BY id")]

    def plant(self, what, id):
        self.sql(PLANTED[what].format(id=id))
        return 1

    def drop(self):
        self.sql("DROP TABLE orders")
        return True

    def bag(self):
        self.sql("CREATE TABLE bag (id INTEGER, text TEXT, note TEXT)")
        return Bag(ShelfSink(table="bag", conn_id="shop"), lambda: self.sql("SELECT id, text, note FROM bag"))

    def values(self):
        def read():
            try:
                rows = self.sql("SELECT id, big, ratio, words, data FROM kinds")
            except sqlite3.OperationalError:
                return []  # nothing was delivered yet
            return [dict(zip(("id", "big", "ratio", "words", "data"), row, strict=True)) for row in rows]

        return Values(
            sink=ShelfSink(table="kinds", conn_id="shop"),
            columns={
                "big": pa.array([-(2**63), 0, 2**63 - 1, None]),
                "ratio": pa.array([5e-324, 1.7976931348623157e308, float("inf"), None]),
                "words": pa.array(["", "it's \N{SNOWMAN} ", None]),
                "data": pa.array([b"", b"\x00\xff", None]),
            },
            read=read,
            refused={"NaN": ("ratio", pa.array([float("nan")]))},
        )

    def mistaken(self):
        self.sql("CREATE TABLE keyed (id INTEGER PRIMARY KEY ON CONFLICT REPLACE, text TEXT)")
        return {
            "no such folder": (self.sink, replace(self.connection, host="/nonexistent/shop.db")),
            "a key that replaces rows": (ShelfSink(table="keyed", conn_id="shop"), self.connection),
        }


class TestShelf(ParticipantConformance):
    @pytest.fixture
    def target(self, tmp_path):
        return ShelfFile(tmp_path)
