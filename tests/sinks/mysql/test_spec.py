from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.protocol.model import ParticipantPlan, Promise
from airflow_ft.protocol.sink_spec import SinkSpec
from airflow_ft.sinks.mysql.naming import TableName, quote
from airflow_ft.sinks.mysql.participant import open_participant
from airflow_ft.sinks.mysql.spec import MySqlSink
from airflow_ft.wal import open_wal
from tests.raising import raises

UPSERT = {"table": "orders", "strategy": "upsert"}


def test_a_sink_says_what_a_plan_has_to_hold() -> None:
    sink = MySqlSink(table="shop.orders", ledger_schema="ledger")
    spec: SinkSpec = sink
    assert (spec.kind, spec.conn_id, spec.strategy, spec.promise) == ("mysql", "mysql_default", "local", Promise.ATOMIC)
    settings = json.loads(json.dumps(sink.settings()))
    assert MySqlSink.from_settings("mysql_default", "local", settings) == sink


@pytest.mark.parametrize(
    ("arguments", "code", "fields"),
    [
        ({"table": "orders", "strategy": "once"}, "argument_invalid", {"argument": "strategy", "value": "once"}),
        ({"table": "orders", "branches": 2}, "arguments_conflict", {"arguments": ["strategy", "branches"]}),
        ({"table": "orders", "strategy": "xa", "branches": 33}, "argument_invalid", {"argument": "branches"}),
        ({"table": "orders", "strategy": "xa", "branches": True}, "argument_invalid", {"argument": "branches"}),
        ({"table": "orders", "strategy": "xa", "branches": -1}, "argument_invalid", {"argument": "branches"}),
        ({"table": "orders", "key_columns": ["id"]}, "arguments_conflict", {"arguments": ["strategy", "key_columns"]}),
        ({**UPSERT, "version_column": "v"}, "argument_missing", {"argument": "key_columns"}),
        ({**UPSERT, "version_column": "v", "key_columns": ["id", "ID"]}, "arguments_conflict", {}),
        ({**UPSERT, "version_column": "v", "key_columns": ["op"], "change_column": "op"}, "arguments_conflict", {}),
        (
            {**UPSERT, "version_column": "v", "key_columns": ["id"], "change_column": ""},
            "argument_invalid",
            {"argument": "change_column", "of": "MySqlSink"},
        ),
        (
            {"table": "orders", "version_column": ""},
            "argument_invalid",
            {"argument": "version_column", "of": "MySqlSink"},
        ),
        ({**UPSERT, "key_columns": "id", "version_column": "v"}, "argument_invalid", {"argument": "key_columns"}),
        ({**UPSERT, "key_columns": ["v"], "version_column": "V"}, "column_reserved", {"column": "V"}),
        (
            {**UPSERT, "key_columns": ["k"], "version_column": "v", "shared": True},
            "arguments_conflict",
            {"arguments": ["strategy", "shared"]},
        ),
        ({"table": ""}, "name_invalid", {"value": ""}),
        ({"table": "a.b.c"}, "name_invalid", {"value": "a.b.c"}),
        ({"table": "`open"}, "name_invalid", {"value": "`open"}),
        ({"table": "x" * 65}, "name_invalid", {"value": "x" * 65, "subject": "table"}),
        ({"table": "blank "}, "name_invalid", {"value": "blank "}),
        ({"table": "shop.AIRFLOW_FT_head"}, "name_invalid", {"value": "shop.AIRFLOW_FT_head"}),
        ({"table": "orders", "conn_id": ""}, "argument_invalid", {"argument": "conn_id"}),
        ({"table": "orders", "conn_id": "shop "}, "argument_invalid", {"argument": "conn_id", "value": "shop "}),
        ({"table": "orders", "ledger_schema": ""}, "argument_invalid", {"argument": "ledger_schema"}),
        ({"table": "orders", "ledger_schema": "blank "}, "name_invalid", {"subject": "schema (ledger_schema)"}),
    ],
)
def test_what_cannot_work_is_refused_at_construction(
    arguments: dict[str, Any], code: str, fields: dict[str, Any]
) -> None:
    with raises(ConfigurationError, code, **fields):
        MySqlSink(**arguments)


def test_a_text_is_no_truth() -> None:
    given: Any = "yes"
    with pytest.raises(ConfigurationError) as raised:
        MySqlSink(table="orders", allow_unsafe_durability=given)
    assert "allow_unsafe_durability" in raised.value.headline


def test_jinja_is_accepted_and_must_be_rendered_before_the_plan() -> None:
    sink = MySqlSink(table="{{ params.schema }}.orders")
    with raises(ConfigurationError, "template_not_rendered", value=sink.table):
        sink.settings()


def test_a_plan_of_a_newer_release_is_refused() -> None:
    with raises(ConfigurationError, "newer_release", settings=["slices"]):
        MySqlSink.from_settings("c", "local", {"table": "t", "slices": 4})


def test_sinks_of_one_participant_share_their_ledger() -> None:
    sinks = {
        "a": dict(MySqlSink(table="a", ledger_schema="one").settings()),
        "b": dict(MySqlSink(table="b").settings()),
    }
    plan = ParticipantPlan("shop", "mysql", "local", Promise.ATOMIC, 0, sinks)
    with raises(ConfigurationError, "arguments_conflict", arguments=["ledger_schema"]):
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
