"""An Iceberg table does what the protocol demands: files of the log, rows written again, partitions."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

from airflow_ft import IcebergSink
from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.sink_spec import SinkSpec
from airflow_ft.testing import Bag, ParticipantConformance, Target, Values, plain
from airflow_ft.testing.tables import Row
from tests.conformance.values import CLOCK, EARLY, FINITE, LATE, LATE_MOMENT, NESTED, NOT_FINITE
from tests.sinks.iceberg.world import Table, in_file, of_server
from tools.servers import IcebergRest

pytestmark = pytest.mark.sampled
NULLS = pa.table({"id": [1, 2, 3, 4], "text": ["a", None, "c", None]})


class Changed(Table):
    """A table that somebody else can change."""

    adopts = True

    def values(self) -> Values:
        """Into another table, that the sink makes."""

        def read() -> list[dict[str, Any]]:
            found = self.read("kinds")
            return plain(found) if "id" in found.column_names else []

        refused = {
            "unsigned": ("whole", pa.array([1], pa.uint32())),
            "a date before the year 1": ("day", EARLY),
            "a date after the year 9999": ("day", LATE),
            "a time after the year 9999": ("local", LATE_MOMENT),
        }
        return Values(self.beside("kinds"), {**FINITE, **NOT_FINITE, **NESTED, **CLOCK}, read, refused=refused)

    def bag(self) -> Bag:
        def rows() -> list[Row]:
            return [(each["id"], each["text"], each["note"]) for each in self.read("bag").to_pylist()]

        return Bag(self.beside("bag"), rows)

    def plant(self, what: str, id: int) -> bool:
        with self.opened() as table:
            assert table is not None
            row = table.scan(f"id = {id}").to_arrow()
            if what == "loss":
                table.delete(f"id = {id}")
            elif what == "double":
                table.append(row)
            else:
                at = next(index for index, name in enumerate(row.column_names) if name.lower() == "text")
                field = row.schema.field(at)
                table.overwrite(row.set_column(at, field, pa.array(["changed"], field.type)), f"id = {id}")
        return True

    def mistaken(self) -> dict[str, tuple[SinkSpec, ConnectionInfo]]:
        with closing(self.catalog()) as catalog:
            catalog.create_namespace_if_not_exists(self.space)
            schema = pa.schema([("id", pa.string()), ("text", pa.string())])
            catalog.create_table_if_not_exists((self.space, "another"), schema)
        glue = {**self.connection.extra, "type": "glue"}
        found = {
            "no such table": (self.beside("nothing", create=False), self.connection),
            "another type": (self.beside("another"), self.connection),
            "an unknown catalog": (self.sink, replace(self.connection, extra=glue)),
        }
        if "uri" in self.connection.extra:
            nowhere = {**self.connection.extra, "uri": "sqlite:////nonexistent/catalog.db"}
            found["no such catalog"] = (self.sink, replace(self.connection, extra=nowhere))
        return {**super().mistaken(), **found}

    def beside(self, name: str, **settings: Any) -> IcebergSink:
        """A sink into another table of the same namespace."""
        return IcebergSink(table=f"lake.{self.space}.{name}", name=self.sink.name, **settings)


class TestIceberg(ParticipantConformance):
    """Files of the log become the table's."""

    @pytest.fixture
    def target(self, tmp_path: Path) -> Iterator[Target]:
        yield Changed(in_file(tmp_path))


class TestPartitions(ParticipantConformance):
    @pytest.fixture
    def target(self, tmp_path: Path) -> Iterator[Target]:
        table = Changed(in_file(tmp_path), partition_by=("text", "bucket(4, id)"))
        table.adopts = False
        yield table


class TestExisting(ParticipantConformance):
    """A table of somebody else's, with another name and a required column, whose columns evolve and manifests merge."""

    @pytest.fixture
    def target(self, tmp_path: Path) -> Iterator[Target]:
        table = Changed(in_file(tmp_path), schema_evolution=True)
        fields = (
            NestedField(1, "id", LongType()),
            NestedField(2, "TEXT", StringType(), required=True),
            NestedField(3, "more", StringType()),
        )
        with closing(table.catalog()) as catalog:
            catalog.create_namespace("shop")
            old = {"commit.manifest.min-count-to-merge": "2", "format-version": "1"}
            catalog.create_table("shop.orders", Schema(*fields), properties=old)
        table.refused, table.taken, table.adopts = NULLS, (1, 3), False
        yield table


@pytest.mark.server
@pytest.mark.sampled(among="Iceberg's REST catalog")
class TestRest(ParticipantConformance):
    """In a REST catalog, through which each request may be lost."""

    @pytest.fixture
    def target(self, iceberg_rest: IcebergRest) -> Iterator[Target]:
        yield Changed(of_server(iceberg_rest), f"s{uuid.uuid4().hex[:8]}")
