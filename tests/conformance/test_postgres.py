"""PostgreSQL does what the protocol demands, by every strategy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from airflow_ft.core.ports import ConnectionInfo
from airflow_ft.sinks.postgres.spec import PostgresSink
from airflow_ft.testing import ParticipantConformance, Target
from tools.servers import Database, Postgres

pytestmark = [pytest.mark.server, pytest.mark.rotating]


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


@pytest.mark.parametrize("strategy", ["local", "prepared", "upsert"])
class TestPostgres(ParticipantConformance):
    @pytest.fixture
    def target(self, postgres_database: Database, strategy: str) -> Iterator[Target]:
        yield Table(postgres_database, strategy)
