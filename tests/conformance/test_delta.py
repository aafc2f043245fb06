"""A Delta table does what the protocol demands: with files of the log as they are, and with rows written anew."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_ft import DeltaSink
from airflow_ft.core.ports import ConnectionInfo, SinkSpec
from airflow_ft.testing import ParticipantConformance, Target
from tests.sinks.delta.world import Table as ReadTable

pytestmark = pytest.mark.rotating
EMPTY = pa.table({"id": [1, 2, 3, 4], "text": ["a", "", None, "d" * 300]})
NULLS = pa.table({"id": [1, 2, 3, 4], "text": ["a", None, "c", None]})


class Table(ReadTable):
    """A table that is not there yet, which somebody else can change."""

    adopts = True

    def plant(self, what: str, id: int) -> bool:
        table = DeltaTable(str(self.path))
        if what == "loss":
            table.delete(f"id = {id}")
        elif what == "change":
            text = next(name for name in table.to_pyarrow_dataset().schema.names if name.lower() == "text")
            table.update({text: "'changed'"}, predicate=f"id = {id}")
        else:
            rows = table.to_pyarrow_table()
            write_deltalake(table, rows.filter(pc.equal(rows["id"], id)), mode="append")
        return True

    def mistaken(self) -> dict[str, tuple[SinkSpec, ConnectionInfo]]:
        folder = self.path.parent
        (folder / "full").mkdir(exist_ok=True)
        for name in ("full/part-00000.parquet", "file"):
            (folder / name).write_bytes(b"something")
        other = folder / "another"
        if not other.exists():
            write_deltalake(other, pa.table({"id": ["one"], "text": ["a"]}))
        sinks = {
            "a folder of something else": DeltaSink(table=str(folder / "full")),
            "no folder": DeltaSink(table=str(folder / "file")),
            "no such table": DeltaSink(table=str(folder / "nothing"), create=False),
            "another type": DeltaSink(table=str(other)),
        }
        return {name: (sink, self.connection) for name, sink in sinks.items()}


class TestDelta(ParticipantConformance):
    @pytest.fixture
    def target(self, tmp_path: Path) -> Iterator[Target]:
        yield Table(tmp_path)


class TestPartitions(ParticipantConformance):
    @pytest.fixture
    def target(self, tmp_path: Path) -> Iterator[Target]:
        table = Table(tmp_path, partition_by=("text",))
        table.refused, table.taken, table.adopts, table.texts = EMPTY, (1, 3), False, 16
        yield table


class TestExisting(ParticipantConformance):
    """A table of somebody else's, with a wider type, another name and NOT NULL, whose columns evolve."""

    @pytest.fixture
    def target(self, tmp_path: Path) -> Iterator[Target]:
        table = Table(tmp_path, schema_evolution=True)
        schema = pa.schema([("id", pa.int64()), pa.field("TEXT", pa.string(), nullable=False), ("more", pa.float64())])
        DeltaTable.create(str(table.path), schema)
        table.refused, table.taken, table.adopts = NULLS, (1, 3), False
        yield table
