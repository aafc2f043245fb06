"""PostgreSQL does what the protocol demands, by every strategy."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.sink_spec import SinkSpec
from airflow_ft.sinks.postgres.spec import PostgresSink
from airflow_ft.testing import Bag, Pairs, ParticipantConformance, Target, Upserts, Values
from tests.conformance.values import EARLY, by_place
from tests.sinks.postgres.servers.test_types import EXTENSIONS, MADE, VALUES
from tools.servers import Database, Postgres

pytestmark = [pytest.mark.server, pytest.mark.sampled]
_AS_TEXT = re.compile(r"uuid|interval|inet|cidr|macaddr|bit|xml|ts|citext|hstore|ltree|range|positive|\[\]")
REFUSED = {
    "out of range": ("smallint", pa.array([-(2**15) - 1, 2**15], pa.int64())),
    "out of the largest range": ("unsigned", pa.array([2**63], pa.uint64())),
    "too many digits": (
        "numeric with digits",
        pa.array([Decimal("100000000"), Decimal("1.001")], pa.decimal128(38, 10)),
    ),
    "too long": ("varchar", pa.array(["abcd", "abc "])),
    "blanks at the end": ("char", pa.array(["a "])),
    "NUL": ("text", pa.array(["a\0b"])),
    "before the year 1": ("date", EARLY),
    "no such label": ("enum", pa.array(["sad"])),
    "no document": ("json", pa.array(["{"])),
    "no uuid": ("uuid", pa.array(["1-2"])),
}
PLANTED = {
    "loss": "DELETE FROM orders WHERE id = {id}",
    "double": "INSERT INTO orders SELECT * FROM orders WHERE id = {id}",
    "change": "UPDATE orders SET text = 'changed' WHERE id = {id}",
}


class Table(Target):
    """A table, in which an id stands once."""

    def __init__(self, database: Database, strategy: str) -> None:
        server = database.server
        assert isinstance(server, Postgres)
        self.database = database
        upsert: dict[str, Any] = {"key_columns": ["id"], "version_column": "version"} if strategy == "upsert" else {}
        self.sink = PostgresSink(table="orders", conn_id="shop", strategy=strategy, **upsert)
        self.connection = ConnectionInfo(
            "shop", "postgres", server.host, server.port, server.user, server.password, database.name
        )
        version = ", version bigint NOT NULL" if upsert else ""
        database.sql(f"CREATE TABLE orders (id bigint PRIMARY KEY, text varchar(40) NOT NULL{version})")
        if upsert:  # by a type: what a key refuses is declined as a whole
            self.refused, self.taken = pa.table({"id": [1, 2, 3], "text": ["a", "b" * 41, "c"]}), (1, 3)
        else:
            self.refused, self.taken = pa.table({"id": [1, 2, 2, 3], "text": ["a", "b", "again", "c"]}), (1, 2, 3)

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
            self.database.sql("ALTER TABLE orders DROP CONSTRAINT orders_pkey")
        self.database.sql(PLANTED[what].format(id=id))
        return True

    def drop(self) -> bool:
        self.database.sql("DROP TABLE orders")
        return True

    def bag(self) -> Bag | None:
        if self.sink.strategy == "upsert":
            return None  # a key stands there once
        self.database.sql("CREATE TABLE bag (id bigint, text text, note text)")
        return Bag(replace(self.sink, table="bag"), lambda: self.database.sql("SELECT id, text, note FROM bag"))

    def upserts(self) -> Upserts | None:
        if self.sink.strategy != "upsert":
            return None
        self.database.sql("CREATE TABLE keyed (id bigint PRIMARY KEY, text text, version bigint NOT NULL)")
        return Upserts(
            replace(self.sink, table="keyed", change_column="op"),
            lambda: dict(self.database.sql("SELECT id, text FROM keyed")),
            lambda id, text, number: self.database.sql(
                f"INSERT INTO keyed VALUES ({id}, '{text}', {number}) ON CONFLICT (id)"
                " DO UPDATE SET text = excluded.text, version = excluded.version"
            ),
        )

    def pairs(self) -> Pairs | None:
        if self.sink.strategy != "upsert":
            return None
        self.database.sql(
            "CREATE TABLE pairs (id bigint, part text, text text, version bigint NOT NULL, PRIMARY KEY (id, part))"
        )
        return Pairs(
            replace(self.sink, table="pairs", key_columns=["id", "part"]),
            lambda: {(id, part): text for id, part, text in self.database.sql("SELECT id, part, text FROM pairs")},
        )

    def mistaken(self) -> dict[str, tuple[SinkSpec, ConnectionInfo]]:
        missing = replace(self.sink, table="no_orders")
        return {**super().mistaken(), "no such table": (missing, self.connection)}

    def values(self) -> Values:
        """Of all types, which go as CSV; by the strategy `prepared` those that go in COPY's binary form."""
        strategy = self.sink.strategy
        names = [name for name in VALUES if strategy != "prepared" or not _AS_TEXT.search(VALUES[name][0])]
        columns, seen = {}, {}
        for name in names:
            _, type, values, texts = VALUES[name]
            array = pa.array([*values, None], pa.int32() if name == "late date" else type).cast(type)
            columns[name], seen[name] = array, by_place(array, [*texts, None])
        made = ", ".join(f'"{name}" {VALUES[name][0]}' for name in names)
        version = ", version bigint NOT NULL" if strategy == "upsert" else ""
        self.database.sql(f"{EXTENSIONS} {MADE} CREATE TABLE kinds (id bigint PRIMARY KEY, {made}{version})")
        texts = ", ".join(f'rtrim("{name}"::text)' if name == "char" else f'"{name}"::text' for name in names)

        def read() -> list[dict[str, Any]]:
            rows = self.database.sql(f"SET timezone = 'UTC'; SELECT id, {texts} FROM kinds")
            return [dict(zip(("id", *names), row, strict=True)) for row in rows]

        refused = {name: given for name, given in REFUSED.items() if given[0] in names}
        return Values(replace(self.sink, table="kinds"), columns, read, seen, refused)


@pytest.mark.parametrize("strategy", ["local", "prepared", "upsert"])
class TestPostgres(ParticipantConformance):
    @pytest.fixture
    def target(self, postgres_database: Database, strategy: str) -> Iterator[Target]:
        yield Table(postgres_database, strategy)
