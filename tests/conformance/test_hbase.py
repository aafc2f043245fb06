"""HBase does what the protocol demands."""

from __future__ import annotations

import json
import struct
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from datetime import time as clock
from decimal import Decimal
from typing import Any

import happybase
import pyarrow as pa
import pytest

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.sink_spec import SinkSpec
from airflow_ft.sinks.hbase.spec import HBaseSink
from airflow_ft.testing import Pairs, ParticipantConformance, Target, Upserts, Values
from airflow_ft.testing.world import World
from tests.conformance.values import AS_JSON, CLOCK, FINITE, NAN, NESTED, NOT_FINITE, REFUSED_BY_JSON
from tools.servers import HBase

pytestmark = [pytest.mark.server, pytest.mark.sampled(among="HBase")]
TABLES = {"orders": {"f": {"max_versions": 1}}, "kinds": {"f": {}, "g": {}}}
LATER = 10**15
"""A timestamp (milliseconds) in a future that no delivery reaches."""
JSON: dict[str, Callable[[str | bytes], Any]] = dict.fromkeys(("listed", "parts", "ratios"), json.loads)
TEXTS: dict[str, Callable[[str], Any]] = {
    "flag": lambda text: {"true": True, "false": False}[text],
    **dict.fromkeys(("tiny", "small", "whole", "big"), int),
    **dict.fromkeys(("single", "double"), float),
    **JSON,
}
EPOCH = datetime(1970, 1, 1)
RATIOS = pa.array([[0.5], None], pa.list_(pa.float64()))
NESTED_NAN = {"nested NaN": ("ratios", pa.array([[NAN]]))}


def _number(form: str) -> Callable[[bytes], Any]:
    return lambda data: struct.unpack(f">{form}", data)[0]


def _decimal(data: bytes) -> Decimal:
    whole = int.from_bytes(data[4:], "big", signed=True)
    return Decimal((int(whole < 0), tuple(map(int, str(abs(whole)))), -int.from_bytes(data[:4], "big", signed=True)))


def _moment(data: bytes) -> datetime:
    return EPOCH + timedelta(microseconds=_number("q")(data))


BYTES: dict[str, Callable[[bytes], Any]] = {
    "flag": lambda data: {b"\xff": True, b"\0": False}[data],
    **{name: _number(form) for name, form in zip(("tiny", "small", "whole", "big"), "bhiq", strict=True)},
    **dict.fromkeys(("single", "odd_single"), _number("f")),
    **dict.fromkeys(("double", "odd_double"), _number("d")),
    "amount": _decimal,
    "day": lambda data: date(1970, 1, 1) + timedelta(days=_number("i")(data)),
    "moment": lambda data: _moment(data).replace(tzinfo=UTC),
    "local": _moment,
    "clock": lambda data: clock.fromisoformat(f"{_moment(data):%H:%M:%S.%f}"),
    "raw": bytes,
    **JSON,
}


class Rows(Target):
    """Rows of two tables whose keys begin as no others do, so that nothing has to be emptied."""

    at_once = False

    def __init__(self, server: HBase, encoding: str, salt: int) -> None:
        self.server = server
        self.run = uuid.uuid4().hex[:8]
        self.connection = ConnectionInfo("rows", "hbase", host=server.host, port=server.port)
        self.sink = HBaseSink(
            table="orders", row_key=f"{self.run}:{{id}}", conn_id="rows", family="f", encoding=encoding, salt=salt
        )
        self.refused = pa.table({"id": [1, 2, 3], "text": ["a", "b", "c"], "parts": [[0.5], [NAN], None]})
        self.taken = (1, 3)
        there = self.db.tables()
        for name, families in TABLES.items():
            if name.encode() not in there:
                self.db.create_table(name, families)

    @property
    def db(self) -> happybase.Connection:
        """Connect anew: the gateway closes connections that rest for a minute."""
        return happybase.Connection(self.server.host, self.server.port, timeout=60_000)

    def rows(self, table: str, run: str) -> dict[int, dict[str, bytes]]:
        """By id, whatever bucket they lie in."""
        found = {}
        for key, row in self.db.table(table).scan(filter=f"RowFilter(=, 'substring:{run}:')"):
            text = key.decode().rpartition(":")[2]
            found[int(text)] = {name.decode().partition(":")[2]: value for name, value in row.items()}
        return found

    def ids(self) -> list[int]:
        return sorted(self.rows("orders", self.run))

    def key(self, id: int, run: str = "") -> bytes:
        [key] = [
            key for key, _ in self.db.table("orders").scan(filter=f"RowFilter(=, 'substring:{run or self.run}:{id}')")
            if key.endswith(f":{id}".encode())
        ]  # fmt: skip
        return bytes(key)

    def plant(self, what: str, id: int) -> int:
        if what == "loss":
            self.db.table("orders").delete(self.key(id))
        elif what == "change":
            self.db.table("orders").put(self.key(id), {b"f:text": b"changed"})
        return int(what != "double")  # a key is there once

    def upserts(self) -> Upserts | None:
        sink = replace(self.sink, row_key=f"{self.run}k:{{id}}", change_column="op")
        write = None if self.sink.salt else self._write
        return Upserts(sink, self._texts, write)

    def pairs(self) -> Pairs:
        def read() -> dict[tuple[int, str], str | None]:
            found = {}
            for key, row in self.db.table("orders").scan(filter=f"RowFilter(=, 'substring:{self.run}p:')"):
                id, part = key.decode().split(f"{self.run}p:")[1].split(":")
                found[int(id), part] = row[b"f:text"].decode() if b"f:text" in row else None
            return found

        return Pairs(replace(self.sink, row_key=f"{self.run}p:{{id}}:{{part}}"), read)

    def _texts(self) -> dict[int, str | None]:
        rows = self.rows("orders", f"{self.run}k")
        return {id: row["text"].decode() if "text" in row else None for id, row in rows.items()}

    def _write(self, id: int, text: str, number: int) -> None:
        key = f"{self.run}k:{id}".encode()
        self.db.table("orders").put(key, {b"f:id": b"", b"f:text": text.encode()}, timestamp=LATER + number)

    def mistaken(self) -> dict[str, tuple[SinkSpec, ConnectionInfo]]:
        return {
            **super().mistaken(),
            "no such table": (replace(self.sink, table="nothing"), self.connection),
            "no such family": (replace(self.sink, family="none"), self.connection),
            "no such transport": (self.sink, replace(self.connection, extra={"transport": "carrier pigeon"})),
        }

    def values(self) -> Values | None:
        is_text = self.sink.encoding == "text"
        columns = {**FINITE, **CLOCK, "listed": NESTED["listed"], "parts": NESTED["parts"], "ratios": RATIOS}
        columns |= {} if is_text else NOT_FINITE
        run = f"{self.run}v"

        def read() -> list[dict[str, Any]]:
            found = []
            for id, row in self.rows("kinds", run).items():
                values: dict[str, Any] = {**dict.fromkeys(columns), "id": id}
                for name, value in row.items():
                    if name == "id":
                        continue
                    if is_text:
                        values[name] = value if name == "raw" else TEXTS.get(name, str)(value.decode())
                    else:
                        values[name] = BYTES.get(name, bytes.decode)(value)
                found.append(values)
            return found

        seen = {**AS_JSON, "raw": bytes}
        sink = replace(self.sink, table="kinds", row_key=f"{run}:{{id}}", columns={"text": "g:text", "big": "g:big"})
        if is_text:
            return Values(sink, columns, read, seen=seen, refused={**REFUSED_BY_JSON, **NESTED_NAN})
        return Values(sink, columns, read, refused=NESTED_NAN)


@pytest.mark.parametrize(("encoding", "salt"), [("text", 0), ("bytes", 16)], ids=["text", "bytes, salted"])
class TestHBase(ParticipantConformance):
    @pytest.fixture
    def target(self, hbase: HBase, encoding: str, salt: int) -> Iterator[Target]:
        yield Rows(hbase, encoding, salt)

    @pytest.mark.release
    def test_memory_does_not_grow_with_rows(self, world: World) -> None:
        super().test_memory_does_not_grow_with_rows(world)
