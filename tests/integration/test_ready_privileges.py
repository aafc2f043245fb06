"""Before Spark starts: the privileges that a delivery needs, and the owner of the ledger. What works is not refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from airflow_ft.pipeline import ready
from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import ForeignOwnerError, SinkAccessError
from airflow_ft.protocol.planning import plan_delivery
from airflow_ft.sinks.base.requirements import lacks
from airflow_ft.sinks.mysql import requirements as of_mysql
from airflow_ft.sinks.mysql.spec import MySqlSink
from airflow_ft.sinks.postgres import requirements as of_postgres
from airflow_ft.sinks.postgres.spec import PostgresSink
from airflow_ft.store import open_store
from tests.integration.real_world import make_world
from tests.integration.test_preflight import declared
from tests.raising import raises
from tools.servers import Database, Kafka

UPSERT: dict[str, Any] = {"strategy": "upsert", "key_columns": ["id"], "version_column": "v", "change_column": "op"}
COLUMNS = "id BIGINT PRIMARY KEY, name TEXT, v BIGINT NOT NULL DEFAULT 0"


class Account:
    """A user of one database, with no privilege yet."""

    def __init__(self, database: Database, conn_type: str) -> None:
        self.database, self.name, self.conn_type = database, f"u{database.name}"[:30], conn_type
        self.who = f"'{self.name}'@'%'" if conn_type == "mysql" else f'"{self.name}"'
        database.sql(f"CREATE USER {self.who} {'IDENTIFIED BY' if conn_type == 'mysql' else 'PASSWORD'} 'secret'")
        database.sql(f"CREATE TABLE orders ({COLUMNS})")

    def run(self, *statements: str) -> None:
        for statement in statements:
            self.database.sql(statement.format(who=self.who, db=self.database.name))

    def lacks(self, **settings: Any) -> list[tuple[str, str]]:
        server: Any = self.database.server
        is_mysql = self.conn_type == "mysql"
        sink: Any = (MySqlSink if is_mysql else PostgresSink)(table="orders", conn_id="shop", **settings)
        where = ConnectionInfo(
            "shop", self.conn_type, server.host, server.port, self.name, "secret", self.database.name
        )
        [plan] = plan_delivery({"orders": sink}).participants
        found = lacks((of_mysql if is_mysql else of_postgres).required("orders", plan, where))
        assert all(error.remedy for error in found)
        return [(error.code, error.sink) for error in found]


@pytest.fixture
def mysql_account(any_mysql_database: Database) -> Iterator[Account]:
    account = Account(any_mysql_database, "mysql")
    yield account
    account.run("DROP USER {who}")


@pytest.fixture
def postgres_account(postgres_database: Database) -> Iterator[Account]:
    account = Account(postgres_database, "postgres")
    yield account
    account.run("DROP OWNED BY {who}", "DROP USER {who}")


def test_mysql_tells_what_is_not_granted(mysql_account: Account) -> None:
    mysql_account.run("GRANT SELECT ON `{db}`.* TO {who}")
    assert mysql_account.lacks() == [("ledger_not_created", ""), ("privilege_missing", "orders")]
    mysql_account.run("GRANT CREATE ON `{db}`.* TO {who}", "GRANT INSERT (name) ON `{db}`.orders TO {who}")
    assert mysql_account.lacks() == [], "rows may have no other column"
    mysql_account.run("GRANT INSERT, UPDATE ON `{db}`.orders TO {who}")
    assert mysql_account.lacks(**UPSERT) == [("privilege_missing", "orders")]
    mysql_account.run("GRANT DELETE ON `{db}`.orders TO {who}")
    assert mysql_account.lacks(**UPSERT) == []
    assert mysql_account.database.sql("SHOW TABLES") == [("orders",)]


def test_mysql_does_not_refuse_what_a_role_grants(mysql_account: Account) -> None:
    role = f"r{mysql_account.name}"[:30]
    mysql_account.run(f"CREATE ROLE {role}", f"GRANT ALL ON `{{db}}`.* TO {role}", f"GRANT {role} TO {{who}}")
    try:
        server: Any = mysql_account.database.server
        to = "FOR" if server.name == "mariadb" else "TO"
        mysql_account.run(f"SET DEFAULT ROLE {role} {to} {{who}}")
        assert mysql_account.lacks() == [] == mysql_account.lacks(**UPSERT)
    finally:
        mysql_account.run(f"DROP ROLE {role}")


def test_postgres_tells_what_is_not_granted(postgres_account: Account) -> None:
    postgres_account.run("REVOKE CREATE ON SCHEMA public FROM PUBLIC", "GRANT SELECT ON orders TO {who}")
    assert postgres_account.lacks() == [("ledger_not_created", ""), ("privilege_missing", "orders")]
    assert postgres_account.lacks(ledger_schema="nowhere")[0] == ("ledger_not_created", "")
    postgres_account.run("GRANT CREATE ON SCHEMA public TO {who}", "GRANT INSERT (name) ON orders TO {who}")
    assert postgres_account.lacks() == []
    assert postgres_account.lacks(**UPSERT) == [("privilege_missing", "orders")]
    role = f"r{postgres_account.name}"
    postgres_account.run(f'CREATE ROLE "{role}"', f'GRANT ALL ON orders TO "{role}"', f'GRANT "{role}" TO {{who}}')
    try:
        assert postgres_account.lacks(**UPSERT) == [], "it inherits"
    finally:
        postgres_account.run(f'DROP OWNED BY "{role}"', f'DROP ROLE "{role}"')
    assert postgres_account.database.sql("SELECT to_regclass('airflow_ft_head')") == [(None,)]


def test_a_ledger_of_another_decision_log(tmp_path: Path, mariadb_database: Database, kafka: Kafka, topic: str) -> None:
    (root := tmp_path / "wal").mkdir()
    with (
        closing(open_store(f"sqlite:///{tmp_path}/ft.db")) as own,
        closing(open_store(f"sqlite:///{tmp_path}/other.db")) as other,
    ):
        world = make_world(own, root, mariadb_database, kafka, topic)
        world.stage(1)
        world.deliver()
        plans, opener = declared(world).delivery.participants, world.participants
        ready.require_ready(world.pipeline, plans, world.connections, None, opener, own.installation)
        codes = ["foreign_owner"] * 2
        with raises(ForeignOwnerError, "foreign_owner", codes=codes, pipeline=world.pipeline):
            ready.require_ready(world.pipeline, plans, world.connections, None, opener, other.installation)


def test_a_revoked_insert_stops_a_stage(tmp_path: Path, mariadb_database: Database) -> None:
    (root := tmp_path / "wal").mkdir()
    with closing(open_store(f"sqlite:///{tmp_path}/ft.db")) as store:
        world = make_world(store, root, mariadb_database)
        world.stage(1)
        world.deliver()
        user = f"u{mariadb_database.name}"[:30]
        mariadb_database.sql(f"CREATE USER '{user}'@'%' IDENTIFIED BY 'secret'")
        try:
            for table in ("airflow_ft_head", "airflow_ft_ledger"):
                mariadb_database.sql(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {table} TO '{user}'@'%'")
            mariadb_database.sql(f"GRANT SELECT ON orders TO '{user}'@'%'")
            world.overrides = {"shop": {"login": user, "password": "secret"}}
            with raises(SinkAccessError, "privilege_missing", sink="rows", participant="shop"):
                plans = declared(world).delivery.participants
                ready.require_ready(
                    world.pipeline, plans, world.connections, None, world.participants, world.store.installation
                )
        finally:
            mariadb_database.sql(f"DROP USER '{user}'@'%'")
