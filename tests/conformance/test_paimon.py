"""A Paimon table does what the protocol demands. It is read by pypaimon."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from airflow_ft import PaimonSink
from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.sink_spec import SinkSpec
from airflow_ft.testing import Bag, Pairs, ParticipantConformance, Target, Upserts, Values, plain
from airflow_ft.testing.tables import Row
from tests.conformance.values import CLOCK, EARLY, FINITE, LATE, LATE_MOMENT, NESTED, NOT_FINITE
from tests.sinks.paimon.world import Table
from tools.paimon import Paimon

pytestmark = pytest.mark.sampled
EMPTY = pa.table({"id": [1, 2, 3, 4], "text": ["a", "", "c", "d" * 300]})
NULLS = pa.table({"id": [1, 2, 3, 4], "text": ["a", None, "c", None]})


class Changed(Table):
    """A table that pypaimon reads and can change."""

    adopts = True
    calls = "tests.sinks.files.dying:around_commits"

    def __init__(self, folder: Path, paimon: Paimon, **settings: Any) -> None:
        super().__init__(folder, **settings)
        self.paimon = paimon.at(folder)

    @property
    def named(self) -> str:
        """As pypaimon names it."""
        return f"shop.{self.path.name}"

    def seen(self, name: str) -> pa.Table:
        """The rows that pypaimon sees; no columns: there is no table."""
        return self.paimon.rows(name) if self.paimon.has(name) else pa.table({})

    def read(self) -> pa.Table:
        return self.seen(self.named)

    def values(self) -> Values:
        """Into another table, that the sink makes."""
        refused = {
            "unsigned": ("whole", pa.array([1], pa.uint32())),
            "a time of the day": ("day", CLOCK["clock"].slice(0, 1)),
        }
        columns = {
            **FINITE,
            **NOT_FINITE,
            **NESTED,
            "late": pa.concat_arrays([EARLY, LATE]),
            "late_moment": LATE_MOMENT,
        }
        return Values(self.beside("kinds"), columns, lambda: plain(self.seen("shop.kinds")), refused=refused)

    def bag(self) -> Bag | None:
        def rows() -> list[Row]:
            return [(each["id"], each["text"], each["note"]) for each in self.seen("shop.bag").to_pylist()]

        return Bag(self.beside("bag"), rows)

    def plant(self, what: str, id: int) -> bool:
        rows = self.read()
        mine = pc.equal(rows["id"], id)
        if what == "double":
            self.paimon.append(self.named, rows.filter(mine))
            return True
        kept = rows.filter(pc.invert(mine))
        if what == "change":
            at = next(index for index, name in enumerate(rows.column_names) if name.lower() == "text")
            changed = rows.filter(mine).set_column(at, rows.schema.field(at), pa.array(["changed"]))
            kept = pa.concat_tables([kept, changed])
        self.paimon.overwrite(self.named, kept)
        return True

    def mistaken(self) -> dict[str, tuple[SinkSpec, ConnectionInfo]]:
        folder = self.path.parent
        for name in ("full/part-00000.parquet", "file"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(b"something")
        for name, types, keys, options in (
            ("another", {"id": pa.string(), "text": pa.string()}, (), {}),
            ("vectors", {"id": pa.int64(), "text": pa.string()}, (), {"deletion_vectors.enabled": "true"}),
        ):
            if not self.paimon.has(f"shop.{name}"):
                self.paimon.create(f"shop.{name}", pa.schema(types), (), keys, **options)
        places = {
            "a folder of something else": "full",
            "no folder": "file",
            "no such table": "nothing",
            "another type": "another",
            "deletion vectors": "vectors",
        }
        sinks = {what: self.beside(name, create=what != "no such table") for what, name in places.items()}
        return {what: (sink, self.connection) for what, sink in sinks.items()}

    def beside(self, name: str, **settings: Any) -> PaimonSink:
        """A sink into another table of the same database."""
        return PaimonSink(table=str(self.path.with_name(name)), name=self.sink.participant, **settings)


class Keyed(Changed):
    """A table with the primary key `id`, in which a key is there once."""

    adopts = False

    def __init__(self, folder: Path, paimon: Paimon, **settings: Any) -> None:
        super().__init__(folder, paimon, primary_key=("id",), **settings)

    def bag(self) -> None:
        """Equal rows are one."""

    def upserts(self) -> Upserts:
        def read() -> dict[int, str]:
            return {each["id"]: each["text"] for each in self.seen("shop.keyed").to_pylist()}

        return Upserts(self.beside("keyed", change_column="op"), read)

    def pairs(self) -> Pairs:
        def read() -> dict[tuple[int, str], str | None]:
            return {(each["id"], each["part"]): each["text"] for each in self.seen("shop.pairs").to_pylist()}

        return Pairs(replace(self.beside("pairs"), primary_key=("id", "part")), read)

    def plant(self, what: str, id: int) -> bool:
        return what != "double" and super().plant(what, id)

    def mistaken(self) -> dict[str, tuple[SinkSpec, ConnectionInfo]]:
        columns = pa.schema({"id": pa.int64(), "text": pa.string()})
        for name, key, options in (
            ("by_text", "text", {"bucket": "1"}),
            ("dynamic", "id", {}),
            ("merged", "id", {"bucket": "1", "merge_engine": "partial-update"}),
        ):
            if not self.paimon.has(f"shop.{name}"):
                self.paimon.create(f"shop.{name}", columns, (), (key,), **options)
        tables = {"another key": "by_text", "dynamic buckets": "dynamic", "another merge engine": "merged"}
        more = {what: (self.beside(name), self.connection) for what, name in tables.items()}
        return {**super().mistaken(), **more}

    def beside(self, name: str, **settings: Any) -> PaimonSink:
        return super().beside(name, primary_key=self.sink.primary_key, **settings)


class TestPaimon(ParticipantConformance):
    """Files of the log become the table's."""

    @pytest.fixture
    def target(self, tmp_path: Path, paimon: Paimon) -> Iterator[Target]:
        yield Changed(tmp_path, paimon)


class TestPartitions(ParticipantConformance):
    """Each text is a partition."""

    @pytest.fixture
    def target(self, tmp_path: Path, paimon: Paimon) -> Iterator[Target]:
        table = Changed(tmp_path, paimon, partition_by=("text",))
        table.refused, table.taken, table.adopts, table.texts = EMPTY, (1, 2, 3), False, 16
        yield table


class TestBuckets(ParticipantConformance):
    """Rows are divided by a hash of their key."""

    @pytest.fixture
    def target(self, tmp_path: Path, paimon: Paimon) -> Iterator[Target]:
        table = Changed(tmp_path, paimon, buckets=3, bucket_key=("id",))
        table.adopts = False
        yield table


class TestKeys(ParticipantConformance):
    """The last row of a key counts."""

    @pytest.fixture
    def target(self, tmp_path: Path, paimon: Paimon) -> Iterator[Target]:
        yield Keyed(tmp_path, paimon, buckets=2)


class TestExisting(ParticipantConformance):
    """A table of another program, with another name and NOT NULL, whose columns evolve."""

    @pytest.fixture
    def target(self, tmp_path: Path, paimon: Paimon) -> Iterator[Target]:
        table = Changed(tmp_path, paimon, schema_evolution=True)
        fields = [("id", pa.int64()), pa.field("TEXT", pa.string(), nullable=False), ("more", pa.float64())]
        table.paimon.create(table.named, pa.schema(fields))
        table.refused, table.taken, table.adopts = NULLS, (1, 3), False
        yield table
