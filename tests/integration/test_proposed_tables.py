"""`airflow ft setup --tables`: a table that is proposed for columns takes them, on each real server."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import airflow_ft
from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import UnfitTargetError
from airflow_ft.protocol.model import ParticipantPlan
from airflow_ft.protocol.verify import Delivered
from airflow_ft.sinks.mysql import proposal as mysql_proposal
from airflow_ft.sinks.mysql import requirements as of_mysql
from airflow_ft.sinks.mysql.spec import MySqlSink
from airflow_ft.sinks.mysql.verify import verify
from airflow_ft.sinks.postgres import proposal as postgres_proposal
from airflow_ft.sinks.postgres import requirements as of_postgres
from airflow_ft.sinks.postgres.spec import PostgresSink
from airflow_ft.wal import open_wal
from tests.raising import raises
from tests.sinks.mysql.world import make_world
from tools.servers import Database

pytestmark = pytest.mark.server

PLAIN = pa.schema(
    [
        ("flag", pa.bool_()),
        ("tiny", pa.int8()),
        ("small", pa.int16()),
        ("number", pa.int32()),
        ("large", pa.int64()),
        ("real", pa.float32()),
        ("double", pa.float64()),
        ("price", pa.decimal128(12, 2)),
        ("whole", pa.decimal128(38, 0)),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("local at", pa.timestamp("us")),
        ("name", pa.string()),
        ("raw", pa.binary()),
        ("tags", pa.list_(pa.string())),
    ]
)
NESTED = pa.schema([("id", pa.int64()), ("place", pa.struct([("x", pa.float64())]))])
CHANGES = pa.schema([("op", pa.string()), ("id", pa.int64()), ("part", pa.string()), ("name", pa.string())])
KEYS = {"key_columns": ["id", "part"], "version_column": "version", "change_column": "op"}


def connection(database: Database, kind: str) -> ConnectionInfo:
    server: Any = database.server
    return ConnectionInfo("shop", kind, server.host, server.port, server.user, server.password, database.name)


def plan_of(sink: Any) -> ParticipantPlan:
    return ParticipantPlan("shop", sink.kind, sink.strategy, sink.promise, 0, {"rows": dict(sink.settings())})


def proposed(module: Any, requirements: Any, sink: Any, database: Database, columns: pa.Schema) -> str:
    """The statement, which was executed twice, and makes a table that takes the columns."""
    plan, where = plan_of(sink), connection(database, sink.kind)
    schemas = {"rows": columns}
    assert requirements.schema_problems(plan, where, schemas)  # there is no table
    [statement] = module.propose(plan, where, schemas)
    for _ in range(2):
        database.sql(statement)
    fit = pa.schema([column for column in columns if f"-- {column.name!r}: no column takes" not in statement])
    assert [str(problem) for problem in requirements.schema_problems(plan, where, {"rows": fit})] == []
    return str(statement)


def test_mysql_and_mariadb(any_mysql_database: Database) -> None:
    database = any_mysql_database
    text = proposed(mysql_proposal, of_mysql, MySqlSink(table="plain", conn_id="shop"), database, PLAIN)
    assert "`price` DECIMAL(12,2)" in text and "`tags` JSON" in text
    assert "`place` JSON" in proposed(
        mysql_proposal, of_mysql, MySqlSink(table="nested", conn_id="shop"), database, NESTED
    )
    upsert = MySqlSink(table="changes", conn_id="shop", strategy="upsert", **KEYS)
    text = proposed(mysql_proposal, of_mysql, upsert, database, CHANGES)
    assert "PRIMARY KEY (`id`, `part`)" in text and "`op`" not in text


@pytest.mark.parametrize(
    "kinds",
    [[pa.string()] * 4, [pa.string()] * 3 + [pa.decimal128(38)], [pa.binary()] * 15 + [pa.string()]],
    ids=["texts", "texts and a number", "many"],
)
def test_a_proposed_key_of_many_columns_has_room(any_mysql_database: Database, kinds: list[pa.DataType]) -> None:
    columns = pa.schema([(f"key {number}", kind) for number, kind in enumerate(kinds)])
    keys = {"key_columns": columns.names, "version_column": "version"}
    proposed(
        mysql_proposal,
        of_mysql,
        MySqlSink(table="keyed", conn_id="shop", strategy="upsert", **keys),
        any_mysql_database,
        columns,
    )


def test_a_proposed_key_distinguishes_texts_as_spark_does(any_mysql_database: Database, tmp_path: Path) -> None:
    world = make_world(any_mysql_database, tmp_path, orders="id INT")
    world.sql("DROP TABLE orders")
    world.use("upsert", key_columns=("id",), version_column="version", change_column="op")
    ids = ["a", "a ", "A", "á", "a\u0301", "", " ", "gone ", "gone"]
    rows = pa.table({"op": ["u"] * len(ids), "id": ids, "name": ids})
    plan = world.plan(orders=pa.concat_tables([rows, pa.table({"op": ["d"], "id": ["gone"], "name": [""]})]))
    [statement] = mysql_proposal.propose(plan.participants[0], world.connection(), {"orders": rows.schema})
    world.sql(statement)
    world.deliver(plan)
    found = {(bytes(id).decode(), name) for id, name in world.sql("SELECT id, name FROM orders")}
    assert found == {(id, id) for id in ids[:-1]}
    [report] = verify([Delivered(plan, None, None)], plan.participants[0], world.connection(), open_wal())
    assert report.is_complete and report.expected == len(ids)


def test_postgres(postgres_database: Database) -> None:
    database = postgres_database
    text = proposed(postgres_proposal, of_postgres, PostgresSink(table="plain", conn_id="shop"), database, PLAIN)
    assert '"tags" text[]' in text and '"local at" timestamp' in text
    nested = PostgresSink(table="nested", conn_id="shop")
    text = proposed(postgres_proposal, of_postgres, nested, database, NESTED)
    assert "-- 'place': no column takes struct<x: double>" in text and '"place"' not in text
    upsert = PostgresSink(table="changes", conn_id="shop", strategy="upsert", **KEYS)
    text = proposed(postgres_proposal, of_postgres, upsert, database, CHANGES)
    assert 'PRIMARY KEY ("id", "part")' in text and '"op"' not in text


def test_the_error_of_a_script_has_a_statement_that_suffices(
    postgres_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = asdict(connection(postgres_database, "postgres"))
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", json.dumps({key: where[key] for key in where if key != "conn_id"}))

    def deliver() -> None:
        airflow_ft.deliver(
            pa.table({"id": [1], "name": ["a"]}),
            pipeline="sales",
            position=1,
            sinks={"rows": PostgresSink(table="sales.sold", conn_id="shop")},
            store=f"sqlite:///{tmp_path}/ft.db",
            wal_root=str(tmp_path / "wal"),
        )

    with raises(UnfitTargetError, "table_missing") as refused:
        deliver()
    assert refused.error is not None
    postgres_database.sql(refused.error.remedy.partition("\n")[2])
    deliver()
    assert [tuple(row) for row in postgres_database.sql("SELECT id, name FROM sales.sold")] == [(1, "a")]


def test_key_columns_match_by_the_case_rules_of_the_database() -> None:
    columns = pa.schema([("ID", pa.string()), ("id", pa.string())])
    sink = PostgresSink(table="t", conn_id="shop", strategy="upsert", key_columns=["ID"], version_column="v")
    [text] = postgres_proposal.propose(plan_of(sink), ConnectionInfo("shop", "postgres"), {"rows": columns})
    assert '"ID" text NOT NULL' in text and '"id" text,' in text
    upsert = MySqlSink(table="s.t", conn_id="shop", strategy="upsert", key_columns=["ID"], version_column="v")
    mysql = ConnectionInfo("shop", "mysql")
    [text] = mysql_proposal.propose(plan_of(upsert), mysql, {"rows": pa.schema([("id", pa.int64())])})
    assert "`id` BIGINT NOT NULL" in text


def test_a_proposal_reports_columns_that_it_cannot_define() -> None:
    sink = MySqlSink(table="shop.t", conn_id="shop")
    columns = pa.schema([("id", pa.int64()), ("for_long", pa.duration("us"))])
    [text] = mysql_proposal.propose(plan_of(sink), ConnectionInfo("shop", "mysql"), {"rows": columns})
    assert text.splitlines()[0] == (
        "-- 'for_long': no column takes duration[us]. Write to_json or CAST(... AS STRING) in the job."
    )
    assert "CREATE TABLE IF NOT EXISTS `shop`.`t` (\n  `id` BIGINT\n) ENGINE=InnoDB" in text
