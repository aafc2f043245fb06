"""Cassandra does what the protocol demands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Session

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.sink_spec import SinkSpec
from airflow_ft.sinks.cassandra.server import opened
from airflow_ft.sinks.cassandra.spec import CassandraSink
from airflow_ft.testing import Pairs, ParticipantConformance, Target, Upserts, Values, deliveries
from airflow_ft.testing.world import World
from tests.conformance.values import CLOCK, FINITE, LATE_MOMENT, MICRO, MOMENTS, NOT_FINITE, UTC_MICRO, without
from tools.servers import Cassandra

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.sampled(among="Cassandra"), pytest.mark.timeout(300)]
KEYSPACE = "shop"
_EPOCH = datetime(1970, 1, 1)
INSTANTS = pa.array(
    [each and each.replace(microsecond=each.microsecond // 1000 * 1000) for each in MOMENTS], MICRO
).cast(UTC_MICRO)
KINDS = {
    "flag": "boolean",
    "tiny": "tinyint",
    "small": "smallint",
    "whole": "int",
    "big": "bigint",
    "single": "float",
    "double": "double",
    "text": "text",
    "amount": "decimal",
    "day": "date",
    "moment": "timestamp",
    "raw": "blob",
    "odd_single": "float",
    "odd_double": "double",
    "clock": "time",
    "id_text": "uuid",
    "wide": "varint",
}


class Tables(Target):
    """The table `orders` of a keyspace, which is emptied."""

    at_once = False

    def __init__(self, server: Cassandra, session: Session) -> None:
        self.server, self.db = server, session
        for name, columns in {
            "orders": "id bigint PRIMARY KEY, text text, at timestamp",
            "keyed": "id bigint PRIMARY KEY, text text",
            "pairs": "id bigint, part text, text text, PRIMARY KEY (id, part)",
            "kinds": "id bigint PRIMARY KEY, " + ", ".join(f'"{name}" {kind}' for name, kind in KINDS.items()),
        }.items():
            session.execute(f"CREATE TABLE IF NOT EXISTS {KEYSPACE}.{name} ({columns})")
            session.execute(f"TRUNCATE {KEYSPACE}.{name}")
        self.sink = CassandraSink(table="orders", conn_id="ring")
        self.connection = connection_to(server)
        self.refused = pa.table(
            {
                "id": [1, 2, 3],
                "text": ["a", "refused", "c"],
                "at": pa.array([0, 1, None], pa.int64()).cast(MICRO).cast(UTC_MICRO),
            }
        )
        self.taken = (1, 3)

    def ids(self) -> list[int]:
        return sorted(row[0] for row in self.db.execute(f"SELECT id FROM {KEYSPACE}.orders"))

    def plant(self, what: str, id: int) -> int:
        if what == "loss":
            self.db.execute(f"DELETE FROM {KEYSPACE}.orders WHERE id = %s", (id,))
        elif what == "change":
            self.db.execute(f"UPDATE {KEYSPACE}.orders SET text = 'changed' WHERE id = %s", (id,))
        return int(what in ("loss", "change"))  # a key is there once

    def upserts(self) -> Upserts | None:
        return Upserts(replace(self.sink, table=f"{KEYSPACE}.keyed", change_column="op"), self._texts)

    def pairs(self) -> Pairs:
        def read() -> dict[tuple[int, str], str | None]:
            rows = self.db.execute(f"SELECT id, part, text FROM {KEYSPACE}.pairs")
            return {(row.id, row.part): row.text for row in rows}

        return Pairs(replace(self.sink, table=f"{KEYSPACE}.pairs"), read)

    def _texts(self) -> dict[int, str]:
        return {row.id: row.text for row in self.db.execute(f"SELECT id, text FROM {KEYSPACE}.keyed")}

    def mistaken(self) -> Mapping[str, tuple[SinkSpec, ConnectionInfo]]:
        return {
            **super().mistaken(),
            "no such keyspace": (self.sink, replace(self.connection, schema="nowhere")),
            "no such table": (replace(self.sink, table="nothing"), self.connection),
        }

    def values(self) -> Values | None:
        columns = {
            **without(FINITE, "local", "moment"),
            **NOT_FINITE,
            **CLOCK,
            "moment": INSTANTS,
            "id_text": pa.array(["00000000-0000-0000-0000-000000000000", "FFFFFFFF-ffff-ffff-ffff-ffffffffffff", None]),
            "wide": FINITE["big"],
        }
        kinds = pa.array(["no-uuid", "{00000000-0000-0000-0000-000000000000}", ""])
        refused = {
            "a fraction of a millisecond": ("moment", pa.array([1, -999], pa.int64()).cast(MICRO).cast(UTC_MICRO)),
            "the year 10000": ("moment", LATE_MOMENT.cast(UTC_MICRO)),
            "no UUID": ("id_text", kinds),
            "a large row": ("text", pa.array(["x" * 4_000_001])),
        }
        seen = {"id_text": str.lower}
        return Values(replace(self.sink, table="kinds"), columns, self._kinds, seen=seen, refused=refused)

    def _kinds(self) -> Sequence[Mapping[str, Any]]:
        names = [name for name in KINDS if name != "moment"]
        query = f"SELECT id, toUnixTimestamp(moment) AS moment, {', '.join(names)} FROM {KEYSPACE}.kinds"
        found = []
        for row in self.db.execute(query):
            values = row._asdict()
            if values["moment"] is not None:
                values["moment"] = (_EPOCH + timedelta(milliseconds=values["moment"])).replace(tzinfo=UTC)
            if values["day"] is not None:
                values["day"] = values["day"].date()
            if values["clock"] is not None:
                values["clock"] = values["clock"].time()
            if values["id_text"] is not None:
                values["id_text"] = str(values["id_text"])
            found.append(values)
        return found


def connection_to(server: Cassandra) -> ConnectionInfo:
    """Return the connection to a server's keyspace."""
    return ConnectionInfo("ring", "cassandra", server.host, server.port, server.user, server.password, KEYSPACE)


@contextmanager
def tables(server: Cassandra) -> Iterator[Tables]:
    """Give the target, with a session of its own."""
    with opened(connection_to(server)) as session:
        session.get_execution_profile(EXEC_PROFILE_DEFAULT).request_timeout = 60
        replication = "{'class': 'SimpleStrategy', 'replication_factor': 1}"
        session.execute(f"CREATE KEYSPACE IF NOT EXISTS {KEYSPACE} WITH replication = {replication}")
        yield Tables(server, session)


class TestCassandra(ParticipantConformance):
    @pytest.fixture
    def target(self, cassandra_server: Cassandra) -> Iterator[Target]:
        with tables(cassandra_server) as target:
            yield target

    @pytest.mark.release
    @pytest.mark.timeout(1_200)
    def test_memory_does_not_grow_with_rows(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[override]
        """A million rows take too long on a small server."""
        monkeypatch.setattr(deliveries, "_MANY_ROWS", (20_000, 200_000))
        super().test_memory_does_not_grow_with_rows(world)
