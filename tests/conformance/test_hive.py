"""A table of a Hive metastore does what the protocol demands: files of the log, rows written again, partitions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.sink_spec import SinkSpec
from airflow_ft.testing import Bag, ParticipantConformance, Target, Values, plain
from airflow_ft.testing.tables import Row
from airflow_ft.testing.world import World
from tests.conformance.values import FINITE, NESTED, NOT_FINITE
from tests.sinks.hive.world import Table
from tools.servers import Hive

pytestmark = [pytest.mark.server, pytest.mark.sampled(among="Hive")]
EMPTY = pa.table({"id": [1, 2, 3, 4], "text": ["a", "", "c", "x" * 300]})


class Changed(Table):
    """A table that somebody else can change."""

    adopts = True

    def values(self) -> Values:
        """Into another table, that the sink makes."""

        def read() -> list[dict[str, Any]]:
            return plain(pa.Table.from_pylist(self.read("kinds"), self.schema("kinds"))) if self.files("kinds") else []

        columns = {name: values for name, values in {**FINITE, **NOT_FINITE, **NESTED}.items() if name != "local"}
        return Values(self.beside("kinds"), columns, read)

    def schema(self, name: str) -> pa.Schema:
        """Of the newest file."""
        return pa.parquet.read_schema(self.files(name)[-1])

    def bag(self) -> Bag:
        def rows() -> list[Row]:
            return [(each["id"], each.get("text"), each.get("note")) for each in self.read("bag")]

        return Bag(self.beside("bag"), rows)

    def mistaken(self) -> dict[str, tuple[SinkSpec, ConnectionInfo]]:
        self.make({"id": "string", "text": "string"}, {"airflow_ft": "string"}, "another")
        self.make({"id": "bigint", "text": "string"}, {"dt": "string"}, "plain")
        return {
            **super().mistaken(),
            "no such table": (self.beside("nothing", create=False), self.connection),
            "another type": (self.beside("another"), self.connection),
            "no column of ours": (self.beside("plain"), self.connection),
            "a login": (self.sink, replace(self.connection, extra={"auth_mechanism": "GSSAPI"})),
        }


class TestHive(ParticipantConformance):
    """Files of the log become the table's."""

    @pytest.fixture
    def target(self, hive: Hive) -> Iterator[Target]:
        yield Changed(hive)

    @pytest.mark.release
    def test_memory_does_not_grow_with_rows(self, world: World) -> None:
        super().test_memory_does_not_grow_with_rows(world)


class TestPartitions(ParticipantConformance):
    """Each text is a partition."""

    @pytest.fixture
    def target(self, hive: Hive) -> Iterator[Target]:
        table = Changed(hive, partition_by=("text",))
        table.refused, table.taken, table.adopts = EMPTY, (1, 3), False
        yield table

    @pytest.mark.release
    def test_memory_does_not_grow_with_rows(self, world: World) -> None:
        super().test_memory_does_not_grow_with_rows(world)


class TestManaged(ParticipantConformance):
    """A managed table of somebody else's, with other names and more columns."""

    @pytest.fixture
    def target(self, hive: Hive) -> Iterator[Target]:
        table = Changed(hive)
        columns = {"text": "string", "more": "string", "id": "bigint"}
        table.make(columns, {"airflow_ft": "string"}, kind="MANAGED_TABLE")
        yield table

    @pytest.mark.release
    def test_memory_does_not_grow_with_rows(self, world: World) -> None:
        super().test_memory_does_not_grow_with_rows(world)
