"""What a DAG author writes for Cassandra, and which rows and columns it refuses."""

from __future__ import annotations

import logging
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from cassandra.cluster import NoHostAvailable

from airflow_ft import CassandraSink
from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import ConfigurationError, SinkAccessError, SinkUnavailableError, StoreBehindSinkError
from airflow_ft.protocol.model import Former, Plan, Segment
from airflow_ft.protocol.planning import plan_delivery
from airflow_ft.sinks.base.document import DocumentLedger
from airflow_ft.sinks.base.keyed import Chunk
from airflow_ft.sinks.cassandra import lineage, server
from airflow_ft.sinks.cassandra import table as tables
from airflow_ft.sinks.cassandra.participant import CassandraParticipant, given
from airflow_ft.sinks.cassandra.replicas import _error, needed
from airflow_ft.sinks.cassandra.rows import deletes, inserts, unfit
from airflow_ft.sinks.cassandra.server import opened
from airflow_ft.sinks.cassandra.table import Table, schema_problems
from tests.raising import raises

TYPES = {
    "id": "bigint", "at": "timestamp", "text": "ascii", "shared": "int", "tags": "list<int>", "small": "smallint",
    "ratio": "double",
}  # fmt: skip
KINDS = {**dict.fromkeys(TYPES, "regular"), "id": "partition_key", "at": "clustering", "shared": "static"}
TABLE = Table("shop", "orders", TYPES, KINDS, ["id"], ["at"], 0, 60)
INSTANT = pa.timestamp("us", "UTC")
SINK = CassandraSink(table="shop.orders", change_column="op")


@pytest.mark.parametrize(
    "given",
    [
        {"table": "a.b.c"},
        {"table": ""},
        {"table": 'or"ders'},
        {"table": "shop.airflow_ft"},
        {"consistency": "ONE"},
        {"consistency": "ANY"},
        {"strategy": "append"},
        {"ttl_seconds": -1},
        {"conn_id": " "},
    ],
    ids=str,
)
def test_what_cannot_work_is_refused_at_once(given: dict[str, Any]) -> None:
    with raises(ConfigurationError, "argument_invalid", argument=next(iter(given))):
        CassandraSink(**{"table": "orders", **given})


def test_a_plan_keeps_its_settings() -> None:
    sink = CassandraSink(table="shop.o", conn_id="ring", consistency="ALL", ttl_seconds=60, shared=True)
    assert CassandraSink.from_settings("ring", "upsert", sink.settings()) == sink
    with raises(ConfigurationError, "template_not_rendered"):
        CassandraSink(table="o_{{ ds }}").settings()


def test_a_connection_needs_a_keyspace_and_tls_files() -> None:
    for field, connection in {
        "schema": ConnectionInfo("ring", "cassandra"),
        "ssl_options": ConnectionInfo("ring", "cassandra", schema="s", extra={"ssl_options": {"ca_certs": "/none"}}),
    }.items():
        with raises(SinkAccessError, "connection_invalid", fields=[field]), opened(connection):
            pass


def test_a_misspelled_tls_option_is_refused() -> None:
    connection = ConnectionInfo("ring", "cassandra", schema="s", extra={"ssl_options": {"ca_cert": "/none"}})
    with raises(SinkAccessError, "connection_invalid", fields=["ssl_options"]) as caught, opened(connection):
        pass
    assert caught.error and "ca_cert." in caught.error.what and "ca_certs" in caught.error.remedy


def test_a_missing_keyspace_is_reported_before_an_old_node() -> None:
    """Tables in a missing keyspace are not checked, so the check of the nodes has to report it."""
    session: Any = SimpleNamespace(
        execute=lambda *_, **__: SimpleNamespace(one=lambda: None),
        cluster=SimpleNamespace(
            metadata=SimpleNamespace(all_hosts=lambda: [SimpleNamespace(release_version="3.11", address="old")]),
            profile_manager=SimpleNamespace(profiles=["all nodes"]),
        ),
    )
    with raises(SinkAccessError, "database_missing", keyspaces=["nowhere"]):
        server.check_nodes(session, "ring", ["nowhere"], unsafe=False)


def test_ciphers_and_the_name_in_the_certificate_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    used: dict[str, Any] = {}

    def cluster(*_: Any, **settings: Any) -> None:
        used.update(settings)
        raise NoHostAvailable("no node answers", {})

    monkeypatch.setattr(server, "Cluster", cluster)
    options = {"ciphers": "ECDHE-RSA-AES256-GCM-SHA384", "server_hostname": "ring.example.com"}
    connection = ConnectionInfo("ring", "cassandra", schema="s", extra={"ssl_options": options})
    with raises(SinkUnavailableError, "server_unreachable"), opened(connection):
        pass
    assert used["ssl_options"] == {"server_hostname": "ring.example.com"}
    chosen = [each["name"] for each in used["ssl_context"].get_ciphers() if each["protocol"] == "TLSv1.2"]
    assert chosen == [options["ciphers"]]


def test_a_table_has_one_lineage_name_and_a_place_on_each_node() -> None:
    connection = ConnectionInfo("ring", "cassandra", "One, two", schema="shop")
    found = lineage.dataset({"table": "orders"}, connection)
    assert (found.namespace, found.name) == ("cassandra://One:9042", "shop.orders")
    places = ["cassandra://one:9042/shop/orders", "cassandra://two:9042/shop/orders"]
    assert lineage.places({"table": "shop.orders"}, connection) == places


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"nothing": pa.string()}, "column_missing"),
        ({"shared": pa.int32()}, "table_unsupported"),
        ({"tags": pa.list_(pa.int32())}, "type_unsupported"),
        ({"small": pa.int32()}, "column_unfit"),
        ({"ratio": pa.decimal128(9, 2)}, "column_unfit"),
        ({"at": pa.timestamp("us")}, "column_unfit"),
    ],
    ids=str,
)
def test_columns_that_do_not_fit_are_named(more: dict[str, pa.DataType], code: str) -> None:
    schema = pa.schema({"op": pa.string(), "id": pa.int64(), "at": INSTANT, **more})
    [problem] = schema_problems(SINK, TABLE, schema, "rows")
    assert problem.code == code and problem.sink == "rows" and problem.remedy


def test_rows_need_the_whole_key_and_the_kind_of_change() -> None:
    problems = schema_problems(SINK, TABLE, pa.schema({"id": pa.int64()}), "rows")
    assert [each.code for each in problems] == ["job_column_missing", "column_required"]
    numbered = Table("shop", "t", {"id": "decimal"}, {"id": "partition_key"}, ["id"], [], 0, 0)
    [problem] = schema_problems(CassandraSink(table="t"), numbered, pa.schema({"id": pa.decimal128(9, 2)}), "rows")
    assert problem.code == "key_unfit"


def test_a_low_gc_grace_is_warned_of() -> None:
    assert list(tables.warnings(TABLE)) and not list(tables.warnings(replace(TABLE, gc_grace=3_600)))


def test_rows_do_not_expire_after_2038(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = pa.schema({"op": pa.string(), "id": pa.int64(), "at": INSTANT})
    monkeypatch.setattr(tables, "time", SimpleNamespace(time=lambda: 2_147_483_645.0 - 1_000))
    for seconds, codes in {0: [], 1_000: [], 1_001: ["limit_reached"]}.items():
        sink, table = replace(SINK, ttl_seconds=seconds), replace(TABLE, ttl=seconds)
        assert [each.code for each in schema_problems(sink, TABLE, schema, "rows")] == codes
        assert [each.code for each in schema_problems(SINK, table, schema, "rows")] == codes


def test_each_change_has_its_own_time_and_null_is_written() -> None:
    rows = pa.record_batch(
        {
            "op": ["insert", "delete", "insert", "insert"],
            "id": pa.array([1, 1, 2, 3], pa.int64()),
            "at": pa.array([0, 1000, 1_500_000, 1], pa.int64()).cast(pa.timestamp("us")).cast(INSTANT),
            "text": ["a", "\N{SNOWMAN}", None, "\N{SNOWMAN}"],
        }
    )
    deleted = np.array([False, True, False, False])
    refused = unfit(SINK, TABLE, rows, deleted)
    assert list(refused) == [3]
    chunk = Chunk(10, "rows", rows, deleted, refused)
    names, found = inserts(SINK, TABLE, chunk, 1_000, 0)
    assert names == ["id", "at", "text"]
    assert found == [(1, 0, "a", 1_010), (2, 1_500, None, 1_012)]
    assert inserts(SINK, TABLE, chunk, 1_000, 60)[1][0] == (1, 0, "a", 1_010, 60)
    assert deletes(TABLE, chunk, 1_000) == [(1_011, 1, 1)]


def test_the_stamp_of_another_plan_is_not_used() -> None:
    plan = Plan("orders", "here", 2, (Segment(2, "digest", "file:///log/2", {"rows": 1}, 1),), (), None)
    assert given(DocumentLedger(None, "here", plan=plan.digest, stamp=7), plan) == 7
    with raises(StoreBehindSinkError, "ledger_lost", number=2):
        given(DocumentLedger(None, "here", plan="another", stamp=7), plan)


def test_an_empty_partition_key_is_refused() -> None:
    table = Table("shop", "t", {"id": "text"}, {"id": "partition_key"}, ["id"], [], 0, 0)
    rows = pa.record_batch({"id": ["", "a", None, "x" * 70_000]})
    assert set(unfit(CassandraSink(table="t"), table, rows, np.zeros(4, np.bool_))) == {0, 3}


@pytest.mark.parametrize(
    ("partition", "clustering", "longest"),
    [
        (["a"], [], 65_535),
        (["id", "a"], ["day"], 65_535 - 16 - 2 * 3),
        (["a", "b"], [], 65_535 - 100 - 2 * 3),
        (["day"], ["a"], 65_535),
        (["day"], ["a", "id", "b"], 65_535 - 16 - 100),
    ],
    ids=str,
)
def test_the_columns_of_a_key_are_limited_together(partition: list[str], clustering: list[str], longest: int) -> None:
    """As the server limits them, but a UUID of 36 letters has 16 bytes."""
    types = {"a": "text", "b": "blob", "id": "uuid", "day": "date"}
    kinds = {**dict.fromkeys(partition, "partition_key"), **dict.fromkeys(clustering, "clustering")}
    table = Table("shop", "t", types, kinds, partition, clustering, 0, 0)
    rows = pa.record_batch(
        {
            "a": ["x" * longest, "x" * (longest + 1)],
            "b": pa.array([b"x" * 100] * 2),
            "id": ["00000000-0000-0000-0000-000000000000"] * 2,
            "day": pa.array([0, 0], pa.date32()),
        }
    )
    for deleted in (False, True):
        assert list(unfit(CassandraSink(table="t"), table, rows, np.full(2, deleted))) == [1]


def test_a_renamed_pipeline_writes_later_timestamps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else rows of the old name would hide newer ones, when the next node's clock is behind."""
    [planned] = plan_delivery({"rows": SINK}).participants
    connection, wal, session = ConnectionInfo("cassandra_default", "cassandra", schema="shop"), Any, Any
    one = CassandraParticipant.of(planned, connection, wal)
    one._session = session
    ledgers = {name: DocumentLedger(None, name, plan="", stamp=0, free=0) for name in ("orders", "shop-orders")}
    documents = SimpleNamespace(read=lambda name: (ledgers[name], 1))

    def stamp(pipeline: str, number: int, former: Former | None, now: int) -> Any:
        monkeypatch.setattr("airflow_ft.sinks.cassandra.participant.time_of", lambda _: now)
        segment = Segment(number, f"digest {number}", "location", {"rows": 10}, 0)
        plan = Plan(pipeline, "here", number, (segment,), (replace(planned, former=former),), None)
        changes: Any = SimpleNamespace(ledger=ledgers[pipeline], documents=documents)
        return one._before_rows(changes, plan)["stamp"]

    old = stamp("orders", 7, None, 40_000_000)
    assert stamp("shop-orders", 8, Former("orders", 7, 8), 10_000_000) == old + 10
    with raises(SinkUnavailableError, "clock_behind"):
        stamp("shop-orders", 9, Former("orders", 7, 8), -30_000_000)


@pytest.mark.parametrize("level", ["INFO", "DEBUG"])
def test_the_driver_logs_a_failed_connect_in_one_line(caplog: pytest.LogCaptureFixture, level: str) -> None:
    nowhere = ConnectionInfo("ring", "cassandra", host="127.0.0.1", port=1, schema="shop")
    with (
        caplog.at_level(level, "cassandra"),
        raises(SinkUnavailableError, "server_unreachable"),
        opened(nowhere),
    ):
        pass
    found = [record for record in caplog.records if record.levelno >= logging.WARNING]
    if level == "DEBUG":
        assert len(found) == 2 and all(record.exc_info for record in found)
    else:
        [one] = found
        assert not one.exc_info and "127.0.0.1:1: " in one.getMessage() and "refused" in one.getMessage()


@pytest.mark.parametrize(
    ("replication", "level", "expected"),
    [
        ({"class": "org.apache.cassandra.locator.SimpleStrategy", "replication_factor": "3"}, "QUORUM", 0),
        ({"class": "SimpleStrategy", "replication_factor": "8"}, "QUORUM", 5),
        ({"class": "SimpleStrategy", "replication_factor": "5"}, "ALL", 5),
        ({"class": "NetworkTopologyStrategy", "a": "3", "b": "3"}, "QUORUM", 0),
        ({"class": "NetworkTopologyStrategy", "a": "3", "b": "3"}, "EACH_QUORUM", 2),
        ({"class": "NetworkTopologyStrategy", "a": "3", "b": "3"}, "LOCAL_QUORUM", 0),
        ({"class": "NetworkTopologyStrategy", "b": "1"}, "LOCAL_QUORUM", 1),
        ({"class": "NetworkTopologyStrategy", "a": "3", "b": "0"}, "EACH_QUORUM", 0),
        ({"class": "NetworkTopologyStrategy", "c": "3"}, "QUORUM", 2),
        ({"class": "NetworkTopologyStrategy", "c": "3/1"}, "QUORUM", 0),
        ({"class": "EverywhereStrategy"}, "ALL", 0),
    ],
    ids=str,
)
def test_replicas_that_must_acknowledge_are_counted(replication: dict[str, str], level: str, expected: int) -> None:
    nodes = {"a": 3, "b": 1}
    assert needed(replication, nodes, level, "a") == expected
    assert needed(replication, {**nodes, "": 1}, level, "a") == 0


def test_a_proposed_replication_shrinks_no_healthy_datacenter() -> None:
    replication = {"class": "org.apache.cassandra.locator.NetworkTopologyStrategy", "a": "5", "b": "3"}
    found = _error("h:9042", "shop", replication, {"a": 5, "b": 1}, "EACH_QUORUM", "a", 2)
    assert "{'class': 'NetworkTopologyStrategy', 'a': 5, 'b': 1}" in found.remedy
