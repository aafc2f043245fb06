"""Redis does what the protocol demands."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
import redis

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import UnfitTargetError
from airflow_ft.protocol.sink_spec import SinkSpec
from airflow_ft.sinks.redis.spec import ATOMIC_ROWS, RedisSink
from airflow_ft.testing import Pairs, ParticipantConformance, Target, Upserts, Values
from airflow_ft.testing.world import World
from tests.conformance.values import AS_JSON, CLOCK, FINITE, NAN, NESTED, REFUSED_BY_JSON
from tests.raising import raises
from tools.servers import Redis

pytestmark = [pytest.mark.server, pytest.mark.sampled]
PARSED: dict[str, Callable[[str], Any]] = {
    "flag": lambda text: {"true": True, "false": False}[text],
    **dict.fromkeys(("tiny", "small", "whole", "big"), int),
    **dict.fromkeys(("single", "double"), float),
}
BINARY = {name for name, column in FINITE.items() if pa.types.is_binary(column.type)}


class Keys(Target):
    """Keys `orders:ID` of a database that is emptied."""

    def __init__(self, server: Redis, value: str, strategy: str) -> None:
        self.server = server
        self.db = redis.Redis(port=server.port, password=server.password, decode_responses=True)
        self.raw = redis.Redis(port=server.port, password=server.password)
        self.db.flushall()
        self.sink = RedisSink(key="orders:{id}", conn_id="cache", value=value, strategy=strategy)
        self.connection = ConnectionInfo("cache", "redis", host="127.0.0.1", port=server.port, password=server.password)
        self.refused = pa.table({"id": [1, 2, 3], "text": ["a", None if value == "string" else "refused", "c"]})
        if value != "string":
            self.refused = self.refused.append_column("ratio", pa.array([0.5, NAN, None]))
        self.taken = (1, 3)
        self.at_once = strategy == "atomic"

    def ids(self) -> list[int]:
        return sorted(int(key.partition(":")[2]) for key in self.db.scan_iter("orders:*", count=10_000))

    def plant(self, what: str, id: int) -> int:
        key = f"orders:{id}"
        if what == "loss":
            return int(self.db.delete(key))
        if what == "change" and self.sink.value == "hash":
            self.db.hset(key, "text", "changed")
            return 1
        if what == "change":
            self.db.set(key, "changed")
            return 1
        return 0  # a key is there once

    def upserts(self) -> Upserts | None:
        return Upserts(replace(self.sink, key="keyed:{id}", change_column="op"), self._texts)

    def pairs(self) -> Pairs:
        def read() -> dict[tuple[int, str], str | None]:
            found = ((key.split(":"), self._read(key).get("text")) for key in self.db.scan_iter("pairs:*"))
            return {(int(id), part): text for (_, id, part), text in found}

        return Pairs(replace(self.sink, key="pairs:{id}:{part}"), read)

    def _texts(self) -> dict[int, str | None]:
        return {int(key.partition(":")[2]): self._read(key).get("text") for key in self.db.scan_iter("keyed:*")}

    def _read(self, key: str) -> dict[str, Any]:
        if self.sink.value == "string":
            return {"text": self.db.get(key)}
        if self.sink.value == "json":
            found: dict[str, Any] = json.loads(self.db.get(key) or "")
            return found
        return {
            name.decode(): value if name.decode() in BINARY else value.decode()
            for name, value in self.raw.hgetall(key).items()
        }

    def mistaken(self) -> dict[str, tuple[SinkSpec, ConnectionInfo]]:
        other = replace(self.connection, extra={"db": "none"})
        return {**super().mistaken(), "no such database": (self.sink, other)}

    def values(self) -> Values | None:
        """All types as text; as JSON has them."""
        if self.sink.value == "string":
            return None

        columns = {**FINITE, **NESTED} if self.sink.value == "json" else {**FINITE, **CLOCK}

        def read() -> list[dict[str, Any]]:
            found = []
            for key in self.db.scan_iter("kinds:*"):
                row = {**dict.fromkeys(columns), **self._read(key), "id": int(key.partition(":")[2])}
                if self.sink.value == "hash":
                    row |= {name: parsed(row[name]) for name, parsed in PARSED.items() if row[name] is not None}
                found.append(row)
            return found

        seen = {**AS_JSON, "raw": AS_JSON["raw"] if self.sink.value == "json" else bytes}
        return Values(replace(self.sink, key="kinds:{id}"), columns, read, seen=seen, refused=REFUSED_BY_JSON)


@pytest.mark.parametrize(
    ("value", "strategy"), [("hash", "upsert"), ("json", "upsert"), ("string", "upsert"), ("hash", "atomic")]
)
class TestRedis(ParticipantConformance):
    @pytest.fixture
    def target(self, redis_server: Redis, value: str, strategy: str) -> Iterator[Target]:
        yield Keys(redis_server, value, strategy)

    @pytest.mark.release
    def test_memory_does_not_grow_with_rows(self, world: World) -> None:
        if not world.target.at_once:
            super().test_memory_does_not_grow_with_rows(world)
            return
        plan = world.plan(world.table(0, ATOMIC_ROWS + 1))
        with raises(UnfitTargetError, "limit_reached", limit=ATOMIC_ROWS):
            world.prepare(plan)
        world.shows([])
