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
from tests.conformance.values import FINITE, NESTED, NOT_FINITE, UTC_MICRO, without
from tests.sinks.hive.world import Table, read_file
from tools.servers import Hdfs, Hive, VersityGw

pytestmark = [pytest.mark.server, pytest.mark.sampled(among="Hive")]
FIRST_DAY, SECOND = -141_427, 1_000_000  # 1582-10-15
MOMENTS = (-2_208_988_800 * SECOND, -SECOND, 0, 1, 1_729_992_600_000_250, (2**63 - 1) // 1000)  # since 1970
NO_MOMENTS = (-2_208_988_800 * SECOND - SECOND, -1, -SECOND // 2, (2**63 - 1) // 1000 + 1)


def days(*since_1970: int) -> pa.Array:
    return pa.array(since_1970, pa.int32()).cast(pa.date32())


def moments(*micros: int) -> pa.Array:
    return pa.array(micros, pa.int64()).cast(UTC_MICRO)


def listed(*micros: int) -> pa.Array:
    """Lists of two each, of which the second is NULL."""
    values = pa.array([each for one in micros for each in (one, None)], pa.int64()).cast(UTC_MICRO)
    return pa.ListArray.from_arrays(pa.array(range(0, len(values) + 1, 2), pa.int32()), values)


EARLY = pa.table({"id": [1, 2, 3, 4], "text": ["a", "", "c", "d"], "day": days(0, 1, FIRST_DAY - 1, -1)})
EMPTY = pa.table({"id": [1, 2, 3, 4], "text": ["a", "", "c", "x" * 300]})


class Changed(Table):
    """A table that somebody else can change."""

    adopts = True

    def values(self) -> Values:
        """Into another table, that the sink makes."""

        def read() -> list[dict[str, Any]]:
            return plain(pa.Table.from_pylist(self.read("kinds"), self.schema("kinds"))) if self.files("kinds") else []

        columns = without({**FINITE, **NOT_FINITE, **NESTED}, "local")
        if self.sink.format != "orc":
            return Values(self.beside("kinds"), columns, read)
        columns["moment"] = pa.concat_arrays([moments(*MOMENTS), pa.nulls(1, UTC_MICRO)])
        columns["day"] = pa.concat_arrays([days(FIRST_DAY, -1, 0, 19_782, 2_932_896), pa.nulls(1, pa.date32())])
        columns["times"] = listed(*MOMENTS)
        wrong = {f"moment {each}": ("moment", moments(each)) for each in NO_MOMENTS}
        wrong["an early day"] = ("day", days(FIRST_DAY - 1))
        wrong["a moment in a list"] = ("times", listed(NO_MOMENTS[0]))
        return Values(self.beside("kinds", format="orc"), columns, read, refused=wrong)

    def schema(self, name: str) -> pa.Schema:
        """Of the newest file."""
        return read_file(self.files(name)[-1]).schema

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


class TestOrc(ParticipantConformance):
    """Rows are written again, as ORC."""

    @pytest.fixture
    def target(self, hive: Hive) -> Iterator[Target]:
        table = Changed(hive, format="orc")
        table.adopts = False
        yield table

    @pytest.mark.release
    def test_memory_does_not_grow_with_rows(self, world: World) -> None:
        super().test_memory_does_not_grow_with_rows(world)


class TestOrcOfOthers(ParticipantConformance):
    """A managed table of another program, as ORC and in partitions."""

    @pytest.fixture
    def target(self, hive: Hive) -> Iterator[Target]:
        table = Changed(hive)
        keys = {"text": "string", "airflow_ft": "string"}
        table.make({"day": "date", "id": "bigint"}, keys, kind="MANAGED_TABLE", format="orc")
        table.refused, table.taken, table.adopts = EARLY, (1, 4), False
        yield table

    @pytest.mark.release
    def test_memory_does_not_grow_with_rows(self, world: World) -> None:
        super().test_memory_does_not_grow_with_rows(world)


@pytest.mark.sampled(among="HDFS")
class TestHdfs(ParticipantConformance):
    """Files on HDFS, below a metastore's schema there."""

    @pytest.fixture
    def target(self, hdfs: Hdfs, hive: Hive) -> Iterator[Target]:
        table = Changed(hive, location=hdfs.url)
        yield table

    @pytest.mark.release
    def test_memory_does_not_grow_with_rows(self, world: World) -> None:
        super().test_memory_does_not_grow_with_rows(world)


class TestS3(ParticipantConformance):
    """Files in a bucket, below a metastore's schema there, in partitions."""

    @pytest.fixture
    def target(self, versitygw: VersityGw, hive_s3: Hive, s3_keys: None) -> Iterator[Target]:
        table = Changed(hive_s3, location=f"s3a://{versitygw.bucket}/warehouse", partition_by=("text",))
        table.refused, table.taken, table.adopts = EMPTY, (1, 3), False
        yield table

    @pytest.mark.release
    def test_memory_does_not_grow_with_rows(self, world: World) -> None:
        super().test_memory_does_not_grow_with_rows(world)
