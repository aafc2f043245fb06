"""What a DAG author writes for PostgreSQL is judged when the DAG is parsed."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_ft import PostgresSink
from airflow_ft.core.errors import ConfigurationError
from airflow_ft.core.model import Fence, Promise
from airflow_ft.core.planning import plan_delivery
from airflow_ft.core.ports import ConnectionInfo, SinkSpec
from airflow_ft.sinks.postgres.gid import label_of, new_gid
from airflow_ft.sinks.postgres.naming import TableName
from airflow_ft.sinks.postgres.participant import open_participant
from airflow_ft.testing.world import OURS
from airflow_ft.wal import open_wal


def test_a_table_is_enough() -> None:
    sink: SinkSpec = PostgresSink(table="orders")
    assert (sink.kind, sink.conn_id, sink.strategy, sink.promise, sink.at_least_once()) == (
        "postgres", "postgres_default", "local", Promise.ATOMIC, Promise.ATOMIC
    )  # fmt: skip
    assert sink.settings() == {"table": "orders", "ledger_schema": None, "allow_unsafe_durability": False}
    assert PostgresSink(table="orders", strategy="prepared").promise is Promise.TWO_PHASE


UPSERT = {"table": "orders", "strategy": "upsert", "key_columns": ["id"], "version_column": "version"}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"table": ""}, "does not name a table"),
        ({"table": 7}, "table is 7"),
        ({"table": "a.b.c"}, "does not name a table"),
        ({"table": 'a"b'}, "does not name a table"),
        ({"table": "x" * 64}, "cannot be the name of a table"),
        ({"table": "ä" * 32}, "1 to 63 bytes"),
        ({"table": "shop.airflow_ft_head"}, "no name for a table of rows"),
        ({"table": "orders", "conn_id": " "}, "not a connection id"),
        ({"table": "orders", "strategy": "xa"}, "available: local, prepared, upsert"),
        ({"table": "orders", "key_columns": ["id"]}, "key_columns means nothing to strategy 'local'"),
        ({"table": "orders", "strategy": "upsert"}, "needs key_columns and version_column"),
        ({"table": "orders", "strategy": "upsert", "key_columns": "id"}, "give a list"),
        ({**UPSERT, "version_column": "id"}, "name a column twice"),
        ({**UPSERT, "change_column": ""}, "cannot be the name of a column"),
        ({"table": "orders", "ledger_schema": ""}, "cannot be the name of a schema"),
        ({"table": "orders", "allow_unsafe_durability": "yes"}, "give True or False"),
    ],
)
def test_what_cannot_work_is_refused_when_the_dag_is_parsed(settings: Any, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        PostgresSink(**settings)


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
        with pytest.raises(ConfigurationError, match="still contains Jinja"):
            PostgresSink(**given).settings()


def test_nothing_is_prepared_where_nothing_waits_for_a_decision() -> None:
    with pytest.raises(ConfigurationError, match="there is none"):
        PostgresSink(table="orders", strategy="prepared").at_least_once()


def test_a_plan_of_a_newer_release_is_refused_by_name() -> None:
    sink = PostgresSink(table="shop.orders", conn_id="shop", strategy="prepared", ledger_schema="audit")
    assert PostgresSink.from_settings("shop", "prepared", sink.settings()) == sink
    with pytest.raises(ConfigurationError, match="settings that this release does not know: upsert"):
        PostgresSink.from_settings("shop", "local", {**sink.settings(), "upsert": True})


def test_sinks_of_one_connection_share_a_ledger() -> None:
    sinks: dict[str, SinkSpec] = {
        name: PostgresSink(table=name, conn_id="shop", ledger_schema=name) for name in ("orders", "lines")
    }
    [plan] = plan_delivery(sinks).participants
    with pytest.raises(ConfigurationError, match="different ledger schemas"):
        open_participant(plan, ConnectionInfo("shop", "postgres"), open_wal())


def test_names_of_transactions_and_sessions_are_never_too_long() -> None:
    fence = Fence("p" * 63, OURS, 2**40, 2**40)
    assert len(new_gid(fence, "c" * 250, 2**63 - 1).sql) <= 200
    assert len(label_of(fence, "c" * 250)) <= 63
