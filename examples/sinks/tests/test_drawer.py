import json
import sqlite3
from contextlib import closing
from dataclasses import replace

import pyarrow as pa
import pytest

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.testing import Pairs, ParticipantConformance, Target, Upserts, Values
from drawer_for_airflow import DrawerSink

PLANTED = {
    "loss": "DELETE FROM cards WHERE key = '{id}'",
    "change": """UPDATE cards SET value = '{{"id": {id}, "text": "changed"}}' WHERE key = '{id}'""",
}


class DrawerFile(Target):
    at_once = False

    def __init__(self, folder):
        self.path = folder / "shop.db"
        self.sink = DrawerSink(drawer="orders", key="{id}", conn_id="shop")
        self.connection = ConnectionInfo("shop", "sqlite", host=str(self.path))
        self.sql("PRAGMA user_version = 1")  # makes the file
        self.refused = pa.table({"id": [1, 2, 3], "text": ["a", "b", "c"], "ratio": [0.5, float("nan"), None]})
        self.taken = (1, 3)

    def sql(self, statement):
        with closing(sqlite3.connect(self.path)) as db:
            found = db.execute(statement).fetchall()
            db.commit()
            return found

    def rows(self, drawer):
        try:
            found = self.sql(f"SELECT value FROM cards WHERE drawer = '{drawer}' AND value IS NOT NULL")
        except sqlite3.OperationalError:
            return []  # nothing was delivered yet
        return [json.loads(value) for (value,) in found]

    def ids(self):
        return sorted(row["id"] for row in self.rows("orders"))

    def plant(self, what, id):
        if what not in PLANTED:
            return 0  # a key is there once
        self.sql(PLANTED[what].format(id=id))
        return 1

    def upserts(self):
        def write(id, text, number):
            card = json.dumps({"id": id, "text": text})
            self.sql(f"INSERT OR REPLACE INTO cards VALUES ('changes', '{id}', {1 << 62}, {number}, '{card}')")

        return Upserts(
            sink=replace(self.sink, drawer="changes", change_column="op"),
            read=lambda: {row["id"]: row["text"] for row in self.rows("changes")},
            write=write,
        )

    def pairs(self):
        return Pairs(
            sink=replace(self.sink, drawer="pairs", key="{id}:{part}"),
            read=lambda: {(row["id"], row["part"]): row["text"] for row in self.rows("pairs")},
        )

    def values(self):
        return Values(
            sink=replace(self.sink, drawer="kinds"),
            columns={
                "big": pa.array([-(2**63), 0, 2**63 - 1, None]),
                "ratio": pa.array([5e-324, 1.7976931348623157e308, -0.0, None]),
                "words": pa.array(["", "it's \N{SNOWMAN} ", None]),
            },
            read=lambda: self.rows("kinds"),
            refused={"NaN": ("ratio", pa.array([float("nan")]))},
        )

    def mistaken(self):
        return {"no such folder": (self.sink, replace(self.connection, host="/nonexistent/shop.db"))}


class TestDrawer(ParticipantConformance):
    @pytest.fixture
    def target(self, tmp_path):
        return DrawerFile(tmp_path)
