"""PostgreSQL does what the protocol demands, by every strategy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from airflow_ft.core.ports import ConnectionInfo, SinkSpec
from airflow_ft.sinks.postgres.spec import PostgresSink
from airflow_ft.testing import ParticipantConformance, Target
from tools.servers import Database, Postgres

pytestmark = [pytest.mark.server, pytest.mark.rotating]
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
        database.sql(f"CREATE TABLE orders (id bigint PRIMARY KEY, text text NOT NULL{version})")
        if not upsert:
            self.refused, self.taken = pa.table({"id": [1, 2, 2, 3], "text": ["a", "b", "again", "c"]}), (1, 2, 3)

    def ids(self) -> list[int]:
        return [row[0] for row in self.database.sql("SELECT id FROM orders ORDER BY id")]

    def plant(self, what: str, id: int) -> bool:
        if what == "double":
            if self.sink.strategy == "upsert":
                return False  # a key stands there once
            self.database.sql("ALTER TABLE orders DROP CONSTRAINT orders_pkey")
        self.database.sql(PLANTED[what].format(id=id))
        return True

    def mistaken(self) -> dict[str, tuple[SinkSpec, ConnectionInfo]]:
        missing = replace(self.sink, table="no_orders")
        return {**super().mistaken(), "no such table": (missing, self.connection)}


@pytest.mark.parametrize("strategy", ["local", "prepared", "upsert"])
class TestPostgres(ParticipantConformance):
    @pytest.fixture
    def target(self, postgres_database: Database, strategy: str) -> Iterator[Target]:
        yield Table(postgres_database, strategy)
