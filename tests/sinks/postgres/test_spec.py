"""What a DAG author writes for PostgreSQL is judged when the DAG is parsed."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_ft import PostgresSink
from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.protocol.model import Fence, Promise
from airflow_ft.protocol.planning import plan_delivery
from airflow_ft.protocol.sink_spec import SinkSpec
from airflow_ft.sinks.base.slices import label
from airflow_ft.sinks.postgres.gid import label_of, new_gid
from airflow_ft.sinks.postgres.naming import TableName
from airflow_ft.sinks.postgres.participant import open_participant
from airflow_ft.testing.world import OURS
from airflow_ft.wal import open_wal
from tests.raising import raises


def test_a_table_is_enough() -> None:
    sink: SinkSpec = PostgresSink(table="orders")
    assert (sink.kind, sink.conn_id, sink.strategy, sink.promise, sink.at_least_once()) == (
        "postgres", "postgres_default", "local", Promise.ATOMIC, Promise.ATOMIC
    )  # fmt: skip
    assert sink.settings() == {"table": "orders", "ledger_schema": None, "allow_unsafe_durability": False}
    prepared = PostgresSink(table="orders", strategy="prepared")
    assert prepared.promise is Promise.TWO_PHASE and prepared.settings()["branches"] == 1


UPSERT = {"table": "orders", "strategy": "upsert", "key_columns": ["id"], "version_column": "version"}


@pytest.mark.parametrize(
    ("settings", "value"),
    [
        ({"table": "x" * 64}, "x" * 64),
        ({"table": "ä" * 32}, "ä" * 32),
        ({"table": "shop.airflow_ft_head"}, "shop.airflow_ft_head"),
        ({"table": "orders", "ledger_schema": " shop"}, " shop"),
    ],
)
def test_a_name_that_the_server_cannot_have_is_refused(settings: Any, value: str) -> None:
    with raises(ConfigurationError, "name_invalid", value=value):
        PostgresSink(**settings)


def test_a_column_that_is_named_twice_is_refused() -> None:
    with raises(ConfigurationError, "arguments_conflict") as caught:
        PostgresSink(**{**UPSERT, "version_column": "id"})  # type: ignore[arg-type]
    assert caught.error is not None and "id" in caught.error.headline.rpartition(":")[2]


@pytest.mark.parametrize(
    ("settings", "code", "fields"),
    [
        ({"table": ""}, "name_invalid", {"value": ""}),
        ({"table": "a.b.c"}, "name_invalid", {"value": "a.b.c"}),
        ({"table": 'a"b'}, "name_invalid", {"value": 'a"b'}),
        ({"table": "orders", "conn_id": " "}, "argument_invalid", {"argument": "conn_id"}),
        ({"table": "orders", "strategy": "xa"}, "argument_invalid", {"argument": "strategy", "value": "xa"}),
        ({"table": "orders", "key_columns": ["id"]}, "arguments_conflict", {"arguments": ["strategy", "key_columns"]}),
        ({"table": "orders", "branches": 2}, "arguments_conflict", {"arguments": ["strategy", "branches"]}),
        ({"table": "orders", "strategy": "prepared", "branches": 33}, "argument_invalid", {"argument": "branches"}),
        ({"table": "orders", "strategy": "prepared", "branches": True}, "argument_invalid", {"argument": "branches"}),
        ({"table": "orders", "strategy": "upsert"}, "argument_missing", {"argument": "key_columns"}),
        ({**UPSERT, "change_column": ""}, "argument_invalid", {"argument": "change_column"}),
        ({"table": "orders", "ledger_schema": ""}, "argument_invalid", {"argument": "ledger_schema"}),
        ({**UPSERT, "shared": True}, "arguments_conflict", {"arguments": ["strategy", "shared"]}),
        (
            {"table": "orders", "strategy": "upsert", "key_columns": "id"},
            "argument_invalid",
            {"argument": "key_columns"},
        ),
    ],
)
def test_what_cannot_work_is_refused_when_the_dag_is_parsed(settings: Any, code: str, fields: dict[str, Any]) -> None:
    with raises(ConfigurationError, code, **fields) as caught:
        PostgresSink(**settings)
    assert caught.error is not None and caught.error.remedy


@pytest.mark.parametrize("settings", [{"table": 7}, {"table": "orders", "allow_unsafe_durability": "yes"}])
def test_an_argument_of_another_type_is_refused(settings: Any) -> None:
    with pytest.raises(ConfigurationError) as caught:
        PostgresSink(**settings)
    assert list(settings)[-1] in caught.value.headline


@pytest.mark.parametrize(
    ("text", "schema", "name", "sql"),
    [
        ("orders", "", "orders", '"orders"'),
        ("shop.Orders", "shop", "Orders", '"shop"."Orders"'),
        ('"my.schema"."my""table"', "my.schema", 'my"table', '"my.schema"."my""table"'),
    ],
)
def test_names_count_letter_by_letter(text: str, schema: str, name: str, sql: str) -> None:
    found = TableName.parse(text)
    assert (found.schema, found.name, found.sql) == (schema, name, sql)


def test_jinja_is_rendered_before_the_plan() -> None:
    for given in ({"table": "orders_{{ ds }}"}, {"table": "orders", "ledger_schema": "{{ var.value.schema }}"}):
        sink = PostgresSink(**given)
        with raises(ConfigurationError, "template_not_rendered"):
            sink.settings()


def test_nothing_is_prepared_where_nothing_waits_for_a_decision() -> None:
    sink = PostgresSink(table="orders", strategy="prepared")
    with raises(ConfigurationError, "arguments_conflict", arguments=["strategy", "mode"]) as caught:
        sink.at_least_once()
    assert caught.error is not None and "'local'" in caught.error.remedy


def test_a_plan_of_a_newer_release_is_refused_by_name() -> None:
    sink = PostgresSink(table="shop.orders", conn_id="shop", strategy="prepared", ledger_schema="audit")
    assert PostgresSink.from_settings("shop", "prepared", sink.settings()) == sink
    with raises(ConfigurationError, "newer_release", settings=["upsert"]):
        PostgresSink.from_settings("shop", "local", {**sink.settings(), "upsert": True})


def test_sinks_of_one_connection_share_a_ledger() -> None:
    sinks: dict[str, SinkSpec] = {
        name: PostgresSink(table=name, conn_id="shop", ledger_schema=name) for name in ("orders", "lines")
    }
    [plan] = plan_delivery(sinks).participants
    with raises(ConfigurationError, "arguments_conflict", arguments=["ledger_schema"], participant="shop"):
        open_participant(plan, ConnectionInfo("shop", "postgres"), open_wal())


def test_names_of_transactions_and_sessions_are_never_too_long() -> None:
    fence = Fence("p" * 63, OURS, 2**40, 2**40)
    assert len(new_gid(fence, "c" * 250, 2**63 - 1, label(32)).sql) <= 200
    assert len(label_of(fence, "c" * 250, label(32))) <= 63
