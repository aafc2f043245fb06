"""A Delta table does what the protocol demands, on disk and in a bucket: files of the log, and rows written anew."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import obstore
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_ft import DeltaSink
from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.sink_spec import SinkSpec
from airflow_ft.sinks.files.objects import Objects
from airflow_ft.testing import Bag, ParticipantConformance, Target, Values, plain
from airflow_ft.testing.tables import Row
from airflow_ft.testing.world import Fate
from tests.conformance.values import CLOCK, EARLY, FINITE, LATE, LATE_MOMENT, NESTED, NOT_FINITE
from tests.sinks.delta.world import Table, TableInBucket
from tools.servers import S3

pytestmark = pytest.mark.sampled
EMPTY = pa.table({"id": [1, 2, 3, 4], "text": ["a", "", None, "d" * 300]})
NULLS = pa.table({"id": [1, 2, 3, 4], "text": ["a", None, "c", None]})


class Changed(Table):
    """A table that somebody else can change."""

    adopts = True
    calls = "tests.sinks.files.dying:around_commits"

    def values(self) -> Values:
        """Into another table, that the sink makes."""
        sink = self.beside("kinds")
        uri = f"{self.uri.rpartition('/')[0]}/kinds"

        def read() -> list[dict[str, Any]]:
            there = DeltaTable.is_deltatable(uri, self.options)
            return plain(DeltaTable(uri, storage_options=self.options).to_pyarrow_table()) if there else []

        refused = {
            "unsigned": ("whole", pa.array([1], pa.uint32())),
            "a time of the day": ("day", CLOCK["clock"].slice(0, 1)),
        }
        late = {"late": pa.concat_arrays([EARLY, LATE]), "late_moment": LATE_MOMENT}
        return Values(sink, {**FINITE, **NOT_FINITE, **NESTED, **late}, read, refused=refused)

    def bag(self) -> Bag:
        uri = f"{self.uri.rpartition('/')[0]}/bag"

        def rows() -> list[Row]:
            if not DeltaTable.is_deltatable(uri, self.options):
                return []
            found = DeltaTable(uri, storage_options=self.options).to_pyarrow_table().to_pylist()
            return [(each["id"], each["text"], each["note"]) for each in found]

        return Bag(self.beside("bag"), rows)

    def plant(self, what: str, id: int) -> bool:
        table = self.open()
        if what == "loss":
            table.delete(f"id = {id}")
        elif what == "change":
            text = next(name for name in table.to_pyarrow_dataset().schema.names if name.lower() == "text")
            table.update({text: "'changed'"}, predicate=f"id = {id}")
        else:
            rows = table.to_pyarrow_table()
            write_deltalake(table, rows.filter(pc.equal(rows["id"], id)), mode="append")
        return True

    def drop(self) -> bool:
        shutil.rmtree(self.path)
        return True

    def mistaken(self) -> dict[str, tuple[SinkSpec, ConnectionInfo]]:
        folder = self.uri.rpartition("/")[0]
        self.put("full/part-00000.parquet", b"something")
        if not DeltaTable.is_deltatable(f"{folder}/another", self.options):
            rows = pa.table({"id": ["one"], "text": ["a"]})
            write_deltalake(f"{folder}/another", rows, storage_options=self.options)
        places = {"a folder of something else": "full", "no such table": "nothing", "another type": "another"}
        sinks = {what: self.beside(name, create=what != "no such table") for what, name in places.items()}
        return {name: (sink, self.connection) for name, sink in {**sinks, **self.more_mistakes()}.items()}

    def beside(self, name: str, **settings: Any) -> DeltaSink:
        """A sink into another table of the same folder."""
        return DeltaSink(table=f"{self.sink.table.rpartition('/')[0]}/{name}", name=self.sink.name, **settings)

    def put(self, name: str, data: bytes) -> None:
        path = self.path.parent / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)

    def more_mistakes(self) -> dict[str, DeltaSink]:
        self.put("file", b"something")
        return {"no folder": self.beside("file")}


class ChangedInBucket(TableInBucket, Changed):
    """The same in S3."""

    def drop(self) -> bool:
        return False

    def put(self, name: str, data: bytes) -> None:
        key = f"{self.uri.removeprefix(f's3://{self.server.bucket}/').rpartition('/')[0]}/{name}"
        obstore.put(Objects.of(self.sink.table, self.connection, "").store, key, data)

    @contextmanager
    def losing(self, fate: Fate, skip: int) -> Iterator[tuple[ConnectionInfo, Callable[[], bool]] | None]:
        """Each entry of the log is a request: so somebody puts them together, as Spark does every ten versions."""
        if DeltaTable.is_deltatable(self.uri, self.options):
            self.open().create_checkpoint()
        with super().losing(fate, skip) as way:
            yield way

    def more_mistakes(self) -> dict[str, DeltaSink]:
        return {"no such bucket": DeltaSink(table="s3://aws@nobody/orders", name="lake")}


def partitioned(table: Changed) -> Changed:
    """With what rows by text are like."""
    table.refused, table.taken, table.adopts, table.texts = EMPTY, (1, 3), False, 16
    return table


class TestDelta(ParticipantConformance):
    @pytest.fixture
    def target(self, tmp_path: Path) -> Iterator[Target]:
        yield Changed(tmp_path)


class TestPartitions(ParticipantConformance):
    @pytest.fixture
    def target(self, tmp_path: Path) -> Iterator[Target]:
        yield partitioned(Changed(tmp_path, partition_by=("text",)))


class TestExisting(ParticipantConformance):
    """A table of somebody else's, with a wider type, another name and NOT NULL, whose columns evolve."""

    @pytest.fixture
    def target(self, tmp_path: Path) -> Iterator[Target]:
        table = Changed(tmp_path, schema_evolution=True)
        schema = pa.schema([("id", pa.int64()), pa.field("TEXT", pa.string(), nullable=False), ("more", pa.float64())])
        DeltaTable.create(str(table.path), schema)
        table.refused, table.taken, table.adopts = NULLS, (1, 3), False
        yield table


@pytest.mark.server
class TestS3(ParticipantConformance):
    @pytest.fixture
    def target(self, s3: S3) -> Iterator[Target]:
        yield ChangedInBucket(s3)


@pytest.mark.server
class TestPartitionsInS3(ParticipantConformance):
    trips_apart = 5

    @pytest.fixture
    def target(self, s3: S3) -> Iterator[Target]:
        yield partitioned(ChangedInBucket(s3, partition_by=("text",)))
