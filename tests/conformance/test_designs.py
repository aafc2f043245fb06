"""Right sinks of other designs than ours pass the kit: a case that fails here raises a false alarm."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.testing import Bag, ParticipantConformance, Target, Upserts, Values
from tests import example_sinks
from tests.conformance import designs
from tests.conformance.designs import journal
from tests.conformance.test_sqlite import PLANTED

pytestmark = pytest.mark.sampled


@pytest.fixture(scope="module", autouse=True)
def _installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A distribution that offers the designs, for this process and those of the kit."""
    site = tmp_path_factory.mktemp("site")
    info = site / "designs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: designs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(designs.ENTRY_POINTS)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(site))
        paths = [str(site), str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
        example_sinks.forget()
        yield
    example_sinks.forget()


class File(Target):
    """A table of its own SQLite file."""

    made = "CREATE TABLE orders (id INTEGER NOT NULL UNIQUE, text TEXT)"

    def __init__(self, folder: Path, kind: type[designs.DesignSink], at_once: bool) -> None:
        self.path, self.kind, self.at_once = folder / "shop.db", kind, at_once
        self.sink = kind(table="orders")
        self.connection = ConnectionInfo("shop", "sqlite", host=str(self.path))
        self.refused, self.taken = pa.table({"id": [1, 2, 2, 3], "text": ["a", "b", "again", "c"]}), (1, 2, 3)
        self.sql(self.made)

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.path)) as db:
            found = db.execute(statement).fetchall()
            db.commit()
            return found

    def ids(self) -> list[int]:
        return [row[0] for row in self.sql("SELECT id FROM orders ORDER BY id")]

    def plant(self, what: str, id: int) -> int:
        if what == "double":  # the column is UNIQUE
            self.sql("CREATE TABLE again AS SELECT * FROM orders")
            self.sql("DROP TABLE orders")
            self.sql("ALTER TABLE again RENAME TO orders")
        self.sql(PLANTED[what].format(id=id))
        return 1

    def drop(self) -> bool:
        self.sql("DROP TABLE orders")
        return True

    def bag(self) -> Bag | None:
        self.sql("CREATE TABLE bag (id INTEGER, text TEXT, note TEXT)")
        return Bag(self.kind(table="bag"), lambda: self.sql("SELECT id, text, note FROM bag"))


class Keyed(File):
    """A table with a key, in which a deleted row stays as a tombstone."""

    columns = "version INTEGER NOT NULL DEFAULT 0, deleted INTEGER NOT NULL DEFAULT 0"
    made = f"CREATE TABLE orders (id INTEGER PRIMARY KEY, text TEXT CHECK (text <> 'refused'), {columns})"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, designs.KeyedSink, at_once=True)
        self.refused, self.taken = pa.table({"id": [1, 2, 3], "text": ["a", "refused", "c"]}), (1, 3)

    def fresh(self) -> Target:
        self.sql("UPDATE orders SET version = 0")  # as the error `versions_ahead` demands
        return self

    def ids(self) -> list[int]:
        return [row[0] for row in self.sql("SELECT id FROM orders WHERE NOT deleted ORDER BY id")]

    def bag(self) -> Bag | None:
        return None

    def upserts(self) -> Upserts:
        self.sql(f"CREATE TABLE keyed (id INTEGER PRIMARY KEY, text TEXT, {self.columns})")

        def write(id: int, text: str, number: int) -> None:
            self.sql(f"INSERT OR REPLACE INTO keyed VALUES ({id}, '{text}', {number}, 0)")

        def rows() -> Mapping[int, str]:
            return dict(self.sql("SELECT id, text FROM keyed WHERE NOT deleted"))

        return Upserts(self.kind(table="keyed"), rows, write)


class Journal(Target):
    """A file of lines."""

    at_once = False

    def __init__(self, folder: Path) -> None:
        self.path = folder / "journal"
        self.sink = designs.JournalSink(table="orders")
        self.connection = ConnectionInfo("shop", "journal", host=str(self.path))

    def ids(self) -> list[int]:
        return sorted(row["id"] for row in journal.read(self.path, "orders"))

    def bag(self) -> Bag:
        def rows() -> Sequence[Any]:
            return [(row["id"], row["text"], row.get("note")) for row in journal.read(self.path, "bag")]

        return Bag(designs.JournalSink(table="bag"), rows)

    def values(self) -> Values:
        columns = {"big": pa.array([-(2**63), 2**63 - 1, None]), "words": pa.array(["", "a\n\N{SNOWMAN}\0 ", None])}
        refused = {"a fraction": ("big", pa.array([0.5]))}
        return Values(
            designs.JournalSink(table="kinds"), columns, lambda: journal.read(self.path, "kinds"), refused=refused
        )


class TestChunked(ParticipantConformance):
    @pytest.fixture
    def target(self, tmp_path: Path) -> Target:
        return File(tmp_path, designs.ChunkedSink, at_once=False)


class TestStaged(ParticipantConformance):
    @pytest.fixture
    def target(self, tmp_path: Path) -> Target:
        return File(tmp_path, designs.StagedSink, at_once=True)


class TestJournal(ParticipantConformance):
    @pytest.fixture
    def target(self, tmp_path: Path) -> Target:
        return Journal(tmp_path)


class TestKeyed(ParticipantConformance):
    @pytest.fixture
    def target(self, tmp_path: Path) -> Target:
        return Keyed(tmp_path)
