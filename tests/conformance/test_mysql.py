"""MySQL and MariaDB do what the protocol demands, by every strategy."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.sink_spec import SinkSpec
from airflow_ft.sinks.mysql.spec import MySqlSink
from airflow_ft.testing import Bag, Pairs, ParticipantConformance, Target, Upserts, Values
from tests.conformance.values import INF, LATE, MICRO, NAN, by_place
from tests.integration.test_mysql_values import CASES
from tools.servers import Database, MariaDb

pytestmark = [pytest.mark.server, pytest.mark.sampled]
REFUSED = {
    "NaN and infinity": ("double", pa.array([NAN, INF, -INF])),
    "out of range": ("tinyint", pa.array([-129, 128], pa.int16())),
    "below zero": ("bigint unsigned", pa.array([-1], pa.int64())),
    "no year": ("year", pa.array([1900, 2156], pa.int16())),
    "too many digits": ("decimal(38,10) into (65,30)", pa.array([10**35], pa.decimal128(38, 0))),
    "too long": ("varchar", pa.array(["x" * 5001])),
    "too many bytes": ("blob", pa.array([b"x" * 2**16])),
    "a late day": ("date", LATE),
    "a late moment": ("timestamp without zone", pa.array([datetime(2038, 1, 20), datetime(1969, 12, 31)], MICRO)),
    "no such label": ("enum", pa.array(["c", "A"])),
}
PLANTED = {
    "loss": "DELETE FROM orders WHERE id = {id}",
    "double": "INSERT INTO orders SELECT * FROM orders WHERE id = {id}",
    "change": "UPDATE orders SET text = 'changed' WHERE id = {id}",
}


def is_less_zero(value: Any) -> bool:
    """-0.0, whose sign the servers may drop."""
    return isinstance(value, float) and value == 0 and math.copysign(1, value) < 0


def as_stored(column: str, value: Any) -> Any:
    """In the type that PyMySQL has for the column, where the rows' is another one."""
    for prefix, type in (("DECIMAL", Decimal), ("DOUBLE", float), ("BIGINT", int)):
        if column.startswith(prefix) and value is not None:
            return type(value)
    return value


class Table(Target):
    """A table, in which an id stands once."""

    def __init__(self, database: Database, strategy: str) -> None:
        upsert: dict[str, Any] = {"key_columns": ["id"], "version_column": "version"} if strategy == "upsert" else {}
        server: Any = database.server
        self.database = database
        self.tries_rows = strategy == "xa"
        self.sink = MySqlSink(table="orders", conn_id="shop", strategy=strategy, **upsert)
        self.connection = ConnectionInfo(
            "shop", "mysql", server.host, server.port, server.user, server.password, database.name
        )
        extra = ", version BIGINT NOT NULL" if upsert else ""
        database.sql(
            "CREATE TABLE orders (id BIGINT PRIMARY KEY, text VARCHAR(20) NOT NULL CHECK (text <> 'refused')"
            f"{extra}) ENGINE=InnoDB"
        )
        if strategy == "local":
            self.refused, self.taken = pa.table({"id": [1, 2, 2, 3], "text": ["a", "b", "again", "c"]}), (1, 2, 3)
        else:
            self.refused, self.taken = pa.table({"id": [1, 2, 3], "text": ["a", "refused", "c"]}), (1, 3)

    def request_length(self, sent: bytes) -> int:
        """Return the length of a TLS record or a MySQL packet: the client sends several without waiting."""
        if len(sent) < 4:  # as short as the empty packet that ends LOAD DATA
            return 4
        if sent[0] in range(0x14, 0x18) and sent[1] == 3 and sent[2] in (1, 3):
            return 5 + int.from_bytes(sent[3:5], "big") if len(sent) > 4 else 5
        return 4 + int.from_bytes(sent[:3], "little")

    def fresh(self) -> Target:
        if self.sink.version_column is not None:  # as the error `versions_ahead` demands
            self.database.sql("UPDATE orders SET version = 0")
        return self

    def ids(self) -> list[int]:
        return [row[0] for row in self.database.sql("SELECT id FROM orders ORDER BY id")]

    def plant(self, what: str, id: int) -> bool:
        if what == "double":
            if self.sink.strategy == "upsert":
                return False  # a key stands there once
            self.database.sql("ALTER TABLE orders DROP PRIMARY KEY")
        self.database.sql(PLANTED[what].format(id=id))
        return True

    def drop(self) -> bool:
        self.database.sql("DROP TABLE orders")
        return True

    def bag(self) -> Bag | None:
        if self.sink.strategy == "upsert":
            return None  # a key stands there once
        self.database.sql("CREATE TABLE bag (id BIGINT, text TEXT, note TEXT) ENGINE=InnoDB")
        return Bag(replace(self.sink, table="bag"), lambda: self.database.sql("SELECT id, text, note FROM bag"))

    def upserts(self) -> Upserts | None:
        if self.sink.strategy != "upsert":
            return None
        self.database.sql(
            "CREATE TABLE keyed (id BIGINT PRIMARY KEY, text VARCHAR(20), version BIGINT NOT NULL) ENGINE=InnoDB"
        )
        return Upserts(
            replace(self.sink, table="keyed", change_column="op"),
            lambda: dict(self.database.sql("SELECT id, text FROM keyed")),
            lambda id, text, number: self.database.sql(f"REPLACE INTO keyed VALUES ({id}, '{text}', {number})"),
        )

    def pairs(self) -> Pairs | None:
        if self.sink.strategy != "upsert":
            return None
        self.database.sql(
            "CREATE TABLE pairs (id BIGINT, part VARCHAR(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,"
            " text VARCHAR(40), version BIGINT NOT NULL, PRIMARY KEY (id, part)) ENGINE=InnoDB"
        )
        return Pairs(
            replace(self.sink, table="pairs", key_columns=["id", "part"]),
            lambda: {(id, part): text for id, part, text in self.database.sql("SELECT id, part, text FROM pairs")},
        )

    def mistaken(self) -> dict[str, tuple[SinkSpec, ConnectionInfo]]:
        missing = replace(self.sink, table="no_orders")
        return {**super().mistaken(), "no such table": (missing, self.connection)}

    def values(self) -> Values:
        kind = "mariadb" if isinstance(self.database.server, MariaDb) else "mysql"
        cases = {name: case for name, case in CASES.items() if case.only in ("", kind)}
        values = {name: [each for each in case.values if not is_less_zero(each)] for name, case in cases.items()}
        columns = {name: pa.array(values[name], case.kind) for name, case in cases.items()}
        version = ", version BIGINT NOT NULL" if self.sink.strategy == "upsert" else ""
        made = ", ".join(f"`{name}` {case.column}" for name, case in cases.items())
        self.database.sql(
            f"CREATE TABLE kinds (id BIGINT PRIMARY KEY, {made}{version}) ENGINE=InnoDB CHARACTER SET utf8mb4"
        )
        asked = ", ".join(case.read.format(f"`{name}`") for name, case in cases.items())

        def read() -> list[dict[str, Any]]:
            rows = self.database.sql(f"SELECT id, {asked} FROM kinds")
            return [dict(zip(("id", *cases), row, strict=True)) for row in rows]

        shown = {
            name: [as_stored(case.column, each) for each in case.expected or values[name]]
            for name, case in cases.items()
        }
        seen = {name: by_place(columns[name], shown[name]) for name in cases}
        return Values(replace(self.sink, table="kinds"), columns, read, seen, REFUSED)


@pytest.mark.parametrize(
    ("sent", "length"),
    [
        (b"\0\0\0\5", 4),  # the empty packet
        (b"\1\0\0\0\x0e", 5),
        (b"\1\0\0\0\x0e\0\0", 5),
        (b"\x16\3\1\2", 5),  # the beginning of a record of TLS
        (b"\x16\3\1\0\2ab", 7),
        (b"\0", 4),
    ],
)
def test_a_request_is_a_packet_or_a_record_of_tls(sent: bytes, length: int) -> None:
    assert Table.request_length(Table.__new__(Table), sent) == length


@pytest.mark.parametrize("strategy", ["local", "upsert", "xa"])
class TestMySql(ParticipantConformance):
    @pytest.fixture
    def target(self, any_mysql_database: Database, strategy: str) -> Iterator[Target]:
        yield Table(any_mysql_database, strategy)
        server: Any = any_mysql_database.server
        server.end_prepared()
