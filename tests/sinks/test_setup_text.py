"""`airflow ft setup --print` quotes each name, so that no name adds a statement for the administrator to run."""

from __future__ import annotations

import re
import shlex
from typing import Any

import pyarrow as pa
import pytest

from airflow_ft import (
    CassandraSink,
    HBaseSink,
    KafkaSink,
    KafkaSource,
    MySqlSink,
    PostgresSink,
    RedisSink,
    SqliteSink,
)
from airflow_ft.clients.kafka.grants import create_topic
from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.planning import plan_delivery
from airflow_ft.sinks.cassandra import proposal
from airflow_ft.sinks.cassandra import setup as cassandra
from airflow_ft.sinks.hbase import setup as hbase
from airflow_ft.sinks.kafka import setup as kafka
from airflow_ft.sinks.mysql import setup as mysql
from airflow_ft.sinks.postgres import setup as postgres
from airflow_ft.sinks.redis import setup as redis
from airflow_ft.sinks.sqlite import proposal as sqlite
from airflow_ft.sources import setup as sources


def printed(system: Any, sink: Any, conn_type: str, **connection: Any) -> list[str]:
    [plan] = plan_delivery({"rows": sink}).participants
    return list(system.describe("orders", plan, ConnectionInfo(sink.conn_id, conn_type, **connection)))


@pytest.mark.parametrize(
    ("system", "sink"),
    [(postgres, PostgresSink), (mysql, MySqlSink), (cassandra, CassandraSink)],
    ids=["postgres", "mysql", "cassandra"],
)
def test_setup_asks_for_tables_before_it_grants_on_them(system: Any, sink: Any) -> None:
    lines = printed(system, sink(table="orders"), "any", schema="shop")
    first = next(number for number, line in enumerate(lines) if line.startswith("GRANT"))
    [asked] = [line for line in lines[:first] if "Create the tables of the sinks" in line]
    assert asked.startswith("-- ") and "--tables" in asked and "script" in asked


def test_a_family_ends_no_text_of_the_hbase_shell() -> None:
    sink = HBaseSink(table="orders", row_key="{id}", family="f'}; `id`; {'\\")
    text = "\n".join(printed(hbase, sink, "hbase", schema="shop'"))
    assert r"NAME => 'f\'}; `id`; {\'\\'" in text
    assert r"create_namespace 'shop\''" in text and r"create 'shop\':airflow_ft'" in text


def test_namespaces_of_tables_and_keyspaces_are_created() -> None:
    text = printed(hbase, HBaseSink(table="sales:orders", row_key="{id}", family="f"), "hbase", schema="shop")
    made = [line.partition("  #")[0] for line in text if line.startswith("create_namespace")]
    assert made == ["create_namespace 'sales'", "create_namespace 'shop'"]
    made = printed(cassandra, CassandraSink(table="sales.orders"), "cassandra", schema="shop")
    order = [" ".join(line.split()[:6]) for line in made if line.startswith("CREATE")]
    assert [each.startswith("CREATE KEYSPACE") for each in order] == [True, True, False]
    assert '"sales"' in order[0] and '"shop"' in order[1]


def test_a_proposal_of_cassandra_guesses_a_key() -> None:
    sink = CassandraSink(table="sales.orders", change_column="op")
    [plan] = plan_delivery({"rows": sink}).participants
    kinds = {"op": pa.string(), "price": pa.decimal128(9, 2), "id": pa.int64(), "at": pa.timestamp("us", "UTC")}
    columns = {"rows": pa.schema([*kinds.items(), ("tags", pa.list_(pa.string()))])}
    [statement] = proposal.propose(plan, ConnectionInfo("c", "cassandra"), columns)
    comments = [line for line in statement.splitlines() if line.startswith("--")]
    assert len(comments) == 2 and "tags" in comments[1]
    lines = [line.strip().rstrip(",") for line in statement.splitlines() if line not in comments]
    assert lines == [
        'CREATE TABLE IF NOT EXISTS "sales"."orders" (',
        '"price" decimal',
        '"id" bigint',
        '"at" timestamp',
        'PRIMARY KEY ("id")',
        ");",
    ]


def test_a_proposal_of_sqlite_leaves_out_what_it_refuses() -> None:
    [plan] = plan_delivery({"rows": SqliteSink(table="orders")}).participants
    kinds = {"id": pa.int64(), "tags": pa.list_(pa.string()), "took": pa.duration("s")}
    word = pa.dictionary(pa.int32(), pa.string())
    columns = {"rows": pa.schema([*kinds.items(), ("word", word)])}
    [text] = sqlite.propose(plan, ConnectionInfo("shop", "sqlite"), columns)
    *comments, statement = text.splitlines()
    assert [line.partition(":")[0] for line in comments] == ["-- 'tags'", "-- 'took'"]
    assert statement == 'CREATE TABLE IF NOT EXISTS "orders" ("id" INTEGER, "word" TEXT);'


def test_a_table_ends_no_do_block() -> None:
    table = "x$ft$; DROP  SCHEMA s; --$ft1$"
    [block] = [line for line in printed(postgres, PostgresSink(table=table), "postgres") if line.startswith("DO ")]
    [mark] = re.findall(r"^DO (\S+) ", block)
    assert mark not in table and block.count(mark) == 2 and block.endswith(f"{mark};")
    assert table in block


@pytest.mark.parametrize("user", ["$ConnectionString", "CN=a, OU=b", "a;id"])
def test_names_are_single_words_of_a_shell(user: str) -> None:
    extra = {"bootstrap.servers": "h:1", "sasl.username": user, "airflow_ft_token_topic": "t;id"}
    lines = printed(kafka, KafkaSink(topic="orders"), "kafka", extra=extra)
    source = KafkaSource(topics=["orders;id"])
    lines += [*sources.describe(source, lambda name: ConnectionInfo(name, "kafka", extra=extra)), create_topic("a;id")]
    words = [shlex.split(line.partition("#")[0]) for line in lines]
    assert {each[each.index("--topic") + 1] for each in words if "--topic" in each} == {
        "t;id", "orders", "orders;id", "a;id",
    }  # fmt: skip
    assert {each[each.index("--allow-principal") + 1] for each in words if "--allow-principal" in each} == {
        f"User:{user}"
    }


def test_a_role_ends_no_name_of_cassandra() -> None:
    text = "\n".join(printed(cassandra, CassandraSink(table="orders"), "cassandra", login='a" b', schema='s"'))
    assert 'TO "a"" b";' in text and '"s"""."orders"' in text and 'EXISTS "s"""."' in text


def test_a_key_adds_no_rule_of_an_acl() -> None:
    [line] = [
        each
        for each in printed(redis, RedisSink(key='x allkeys ~y*"é\u3000[{id}'), "redis", login="loader")
        if each.startswith("ACL SETUSER")
    ]
    assert line.split()[3:5] == ["~airflow_ft:*", "~x?allkeys?~y??é????*"]


@pytest.mark.parametrize("login", ["x on nopass +@all ~*", "x\u3000y", "x\nFLUSHALL", "x'", 'x"'])
def test_a_login_adds_no_rule_of_an_acl(login: str) -> None:
    text = "\n".join(printed(redis, RedisSink(key="x:{id}"), "redis", login=login))
    assert "ACL SETUSER <user> ~airflow_ft:*" in text and login not in text


def test_a_user_that_may_do_everything_gets_no_rules() -> None:
    """Redis refuses a pattern after `~*`: Adding a pattern after the * pattern is not valid."""
    lines = [*printed(redis, RedisSink(key="x:{id}"), "redis")]
    assert not any(each.startswith("ACL") for each in lines)
    assert any(each.startswith("# ACL SETUSER <user> ~airflow_ft:*") for each in lines)


def test_a_login_ends_no_comment() -> None:
    user = "x\nDROP TABLE orders; --"
    lines = printed(postgres, PostgresSink(table="orders"), "postgres", login=user)
    assert not any("\n" in line for line in lines if line.startswith("--"))
    extra = {"bootstrap.servers": "h:1", "sasl.username": user}
    lines = printed(kafka, KafkaSink(topic="orders"), "kafka", extra=extra)
    assert not any("\n" in line for line in lines if line.startswith("#"))
