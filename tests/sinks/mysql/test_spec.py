from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from airflow_ft.core.errors import ConfigurationError
from airflow_ft.core.model import ParticipantPlan, Promise
from airflow_ft.core.ports import ConnectionInfo, SinkSpec
from airflow_ft.sinks.mysql.naming import TableName, quote
from airflow_ft.sinks.mysql.participant import open_participant
from airflow_ft.sinks.mysql.spec import MySqlSink
from airflow_ft.wal import open_wal


def test_a_sink_says_what_a_plan_has_to_hold() -> None:
    sink = MySqlSink(table="shop.orders", columns={"id": "order_id"})
    spec: SinkSpec = sink
    assert (spec.kind, spec.conn_id, spec.strategy, spec.promise) == ("mysql", "mysql_default", "local", Promise.ATOMIC)
    settings = json.loads(json.dumps(sink.settings()))
    assert MySqlSink.from_settings("mysql_default", "local", settings) == sink


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"table": "orders", "strategy": "once"}, "available: local, parallel"),
        ({"table": "orders", "branches": 2}, "means nothing to strategy 'local'"),
        ({"table": "orders", "strategy": "xa", "branches": 33}, "from 1 to 32"),
        ({"table": "orders", "strategy": "parallel", "branches": True}, "from 1 to 32"),
        ({"table": "orders", "strategy": "xa", "branches": -1}, "from 1 to 32"),
        ({"table": "orders", "key_columns": ["id"]}, "key_columns means nothing to strategy 'local'"),
        ({"table": "orders", "strategy": "upsert", "version_column": "v"}, "needs key_columns"),
        ({"table": "orders", "strategy": "upsert", "key_columns": "id", "version_column": "v"}, "list of column names"),
        ({"table": "orders", "strategy": "upsert", "key_columns": ["v"], "version_column": "V"}, "filled by the sink"),
        ({"table": ""}, "does not name a table"),
        ({"table": "a.b.c"}, "does not name a table"),
        ({"table": "`open"}, "does not name a table"),
        ({"table": "x" * 65}, "cannot be the name of a table"),
        ({"table": "blank "}, "last one not a blank"),
        ({"table": "orders", "conn_id": ""}, "not a connection id"),
        ({"table": "orders", "columns": {}}, "columns is"),
        ({"table": "orders", "columns": {"a": "X", "b": "x"}}, "both go into"),
        ({"table": "orders", "columns": {"a": ""}}, "name of a column"),
        ({"table": "orders", "ledger_schema": ""}, "name of a schema"),
        ({"table": "orders", "allow_unsafe_durability": "yes"}, "allow_unsafe_durability"),
    ],
)
def test_what_cannot_work_is_refused_at_construction(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        MySqlSink(**arguments)


def test_jinja_is_accepted_and_must_be_rendered_before_the_plan() -> None:
    sink = MySqlSink(table="{{ params.schema }}.orders")
    with pytest.raises(ConfigurationError, match="still contains Jinja"):
        sink.settings()


def test_a_plan_of_a_newer_release_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="slices"):
        MySqlSink.from_settings("c", "local", {"table": "t", "slices": 4})


def test_sinks_of_one_participant_share_their_ledger() -> None:
    sinks = {
        "a": dict(MySqlSink(table="a", ledger_schema="one").settings()),
        "b": dict(MySqlSink(table="b").settings()),
    }
    plan = ParticipantPlan("shop", "mysql", "local", Promise.ATOMIC, 0, sinks)
    with pytest.raises(ConfigurationError, match="different ledger schemas"):
        open_participant(plan, ConnectionInfo("shop", "mysql"), open_wal())


@pytest.mark.parametrize(
    ("text", "schema", "name", "sql"),
    [
        ("orders", "", "orders", "`orders`"),
        ("shop.orders", "shop", "orders", "`shop`.`orders`"),
        ("`a.b`.`c``d`", "a.b", "c`d", "`a.b`.`c``d`"),
        ("my-db.Größe %s", "my-db", "Größe %s", "`my-db`.`Größe %s`"),
    ],
)
def test_tables_are_named_with_or_without_backticks(text: str, schema: str, name: str, sql: str) -> None:
    table = TableName.parse(text)
    assert (table.schema, table.name, table.sql) == (schema, name, sql)
    assert TableName("", "t").within("s") == TableName("s", "t")


def test_identifiers_cannot_leave_their_quotes() -> None:
    assert quote("a`; DROP TABLE b; --") == "`a``; DROP TABLE b; --`"


def test_the_spec_imports_neither_pyarrow_nor_a_driver() -> None:
    code = (
        "import sys, airflow_ft.sinks.mysql.spec;"
        "print([m for m in ('pyarrow', 'pymysql', 'airflow', 'pyspark', 'numpy') if m in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"
