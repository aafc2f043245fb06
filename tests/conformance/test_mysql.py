"""MySQL and MariaDB do what the protocol demands, by every strategy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from airflow_ft.core.ports import ConnectionInfo, SinkSpec
from airflow_ft.sinks.mysql.spec import MySqlSink
from airflow_ft.testing import ParticipantConformance, Target
from tools.servers import Database

pytestmark = [pytest.mark.server, pytest.mark.rotating]
PLANTED = {
    "loss": "DELETE FROM orders WHERE id = {id}",
    "double": "INSERT INTO orders SELECT * FROM orders WHERE id = {id}",
    "change": "UPDATE orders SET text = 'changed' WHERE id = {id}",
}


class Table(Target):
    """A table, in which an id stands once."""

    def __init__(self, database: Database, strategy: str) -> None:
        upsert: dict[str, Any] = {"key_columns": ["id"], "version_column": "version"} if strategy == "upsert" else {}
        server: Any = database.server
        self.database = database
        self.sink = MySqlSink(table="orders", conn_id="shop", strategy=strategy, **upsert)
        self.connection = ConnectionInfo(
            "shop", "mysql", server.host, server.port, server.user, server.password, database.name
        )
        extra = ", version BIGINT NOT NULL" if upsert else ""
        database.sql(f"CREATE TABLE orders (id BIGINT PRIMARY KEY, text VARCHAR(20) NOT NULL{extra}) ENGINE=InnoDB")
        if strategy == "local":
            self.refused, self.taken = pa.table({"id": [1, 2, 2, 3], "text": ["a", "b", "again", "c"]}), (1, 2, 3)

    def ids(self) -> list[int]:
        return [row[0] for row in self.database.sql("SELECT id FROM orders ORDER BY id")]

    def plant(self, what: str, id: int) -> bool:
        if what == "double":
            if self.sink.strategy == "upsert":
                return False  # a key stands there once
            self.database.sql("ALTER TABLE orders DROP PRIMARY KEY")
        self.database.sql(PLANTED[what].format(id=id))
        return True

    def mistaken(self) -> dict[str, tuple[SinkSpec, ConnectionInfo]]:
        missing = replace(self.sink, table="no_orders")
        return {**super().mistaken(), "no such table": (missing, self.connection)}


@pytest.mark.parametrize("strategy", ["local", "upsert", "parallel", "xa"])
class TestMySql(ParticipantConformance):
    @pytest.fixture
    def target(self, any_mysql_database: Database, strategy: str) -> Iterator[Target]:
        yield Table(any_mysql_database, strategy)
        server: Any = any_mysql_database.server
        server.end_prepared()
