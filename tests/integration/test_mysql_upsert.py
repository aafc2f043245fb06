"""The strategy `upsert` against real servers: last change wins, deletes, and no older checkpoint undoes a newer one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_ft.core.doctor import Verdict
from airflow_ft.core.errors import DeclinedError, FencedError, SinkAccessError, StoreBehindSinkError
from airflow_ft.core.model import Outcome
from airflow_ft.sinks.mysql.examination import examine
from airflow_ft.wal import open_wal
from tests.integration.proxy import Proxy
from tests.sinks.mysql.committer import Committer
from tests.sinks.mysql.world import MySqlWorld, make_world
from tools.servers import Database

TABLE = "id BIGINT PRIMARY KEY, name VARCHAR(100) NOT NULL, version BIGINT NOT NULL DEFAULT 0"
KEYS: dict[str, Any] = {"key_columns": ("id",), "version_column": "version", "change_column": "op"}


@pytest.fixture
def world(any_mysql_database: Database, tmp_path: Path) -> MySqlWorld:
    return make_world(any_mysql_database, tmp_path, orders=TABLE).use("upsert", **KEYS)


def changes(*rows: tuple[str, int, str | None]) -> pa.Table:
    """(kind, id, name)."""
    kinds, ids, names = zip(*rows, strict=True) if rows else ((), (), ())
    return pa.table(
        {"op": pa.array(kinds, pa.string()), "id": pa.array(ids, pa.int64()), "name": pa.array(names, pa.string())}
    )


def state(world: MySqlWorld) -> list[tuple[Any, ...]]:
    return world.sql("SELECT id, name, version FROM orders ORDER BY id")


def test_inserts_updates_and_deletes_by_key(world: MySqlWorld) -> None:
    world.deliver(world.plan(orders=changes(("c", 1, "a"), ("c", 2, "b"), ("c", 3, "c"))), 1, 1)
    assert state(world) == [(1, "a", 1), (2, "b", 1), (3, "c", 1)]
    plan = world.plan(orders=changes(("u", 1, "A"), ("d", 2, None), ("r", 4, "d")))
    world.deliver(plan, 1, 2)
    assert state(world) == [(1, "A", 2), (3, "c", 1), (4, "d", 2)]
    proof = world.participant(plan).proof(plan)
    assert proof is not None and proof.counts == {"orders": 3} and proof.outcome is Outcome.COMMITTED


def test_the_last_change_of_a_key_wins_within_a_checkpoint(world: MySqlWorld) -> None:
    rows = [("c", 1, "first"), ("d", 1, None), ("c", 1, "second"), ("u", 1, "third"), ("c", 2, "x"), ("d", 2, None)]
    first = world.segment(1, {"orders": changes(*rows)})  # type: ignore[arg-type]
    second = world.segment(2, {"orders": changes(("c", 2, "again"), ("d", 3, None), ("c", 3, "there"))})
    plan = world.plan_of(2, first, second)
    world.deliver(plan, 1, 1)
    assert state(world) == [(1, "third", 2), (2, "again", 2), (3, "there", 2)]


def test_keys_are_those_of_the_table_not_of_the_bytes(any_mysql_database: Database, tmp_path: Path) -> None:
    """In a collation without case 'a' and 'A' are one key; their order must be kept all the same."""
    columns = "id VARCHAR(20) COLLATE utf8mb4_unicode_ci PRIMARY KEY, version BIGINT NOT NULL DEFAULT 0"
    world = make_world(any_mysql_database, tmp_path, orders=columns).use("upsert", **KEYS)
    world.deliver(world.plan(orders=pa.table({"op": ["c", "d", "c", "d"], "id": ["a", "A", "b'\\", "C"]})), 1, 1)
    assert world.sql("SELECT id FROM orders") == [("b'\\",)]


def test_keys_of_several_columns_and_a_repeated_delivery(any_mysql_database: Database, tmp_path: Path) -> None:
    columns = "shop VARBINARY(8), at DATETIME(6), v INT, version BIGINT, PRIMARY KEY (shop, at)"
    world = make_world(any_mysql_database, tmp_path, orders=columns)
    world.use("upsert", **{**KEYS, "key_columns": ("shop", "at")})
    at = pa.array([1, 2, 1], pa.timestamp("us"))
    rows = pa.table({"op": ["c", "c", "d"], "shop": [b"\x00a", b"b", b"\x00a"], "at": at, "v": [1, 2, None]})
    plan = world.plan(orders=rows)
    world.deliver(plan, 1, 1)
    proof = world.participant(plan).commit(plan, world.fence(1, 2))
    assert proof.counts == {"orders": 3}
    assert world.sql("SELECT shop, v, version FROM orders") == [(b"b", 2, 1)]


@pytest.mark.parametrize("local_infile", [True, False])
def test_many_rows_go_in_several_statements(world: MySqlWorld, local_infile: bool) -> None:
    world.limits, world.extra = replace(world.limits, insert_bytes=2000), {"local_infile": local_infile}
    world.deliver(world.plan(orders=changes(*(("c", i, f"name {i}") for i in range(3000)))), 1, 1)
    world.deliver(world.plan(orders=changes(*(("d" if i % 3 else "u", i, "new") for i in range(3000)))), 1, 2)
    assert state(world) == [(i, "new", 2) for i in range(0, 3000, 3)]


def test_an_older_checkpoint_neither_overwrites_nor_revives(world: MySqlWorld) -> None:
    first = world.plan(orders=changes(("c", 1, "old"), ("c", 2, "old")))
    world.participant(first).prepare(first, world.fence(1, 1))
    second = world.plan_of(2, world.segment(2, {"orders": changes(("c", 1, "new"), ("d", 2, None))}))
    world.deliver(second, 1, 2)
    with pytest.raises(StoreBehindSinkError):
        world.participant(first).commit(first, replace(world.fence(1, 3)))
    with pytest.raises(FencedError):
        world.participant(first).commit(first, world.fence(1, 1))
    assert state(world) == [(1, "new", 2)]


def test_rows_of_a_higher_version_are_left_alone_even_when_the_head_was_put_back(world: MySqlWorld) -> None:
    world.sql("INSERT INTO orders VALUES (1, 'newer', 7), (2, 'older', 0), (3, 'newer', 7)")
    plan = world.plan(orders=changes(("u", 1, "x"), ("u", 2, "x"), ("d", 3, None)))
    world.deliver(plan, 1, 1)
    assert state(world) == [(1, "newer", 7), (2, "x", 1), (3, "newer", 7)]


def test_a_tombstone_is_met_by_a_late_delivery(world: MySqlWorld) -> None:
    plan = world.plan(orders=changes(("c", 1, "a")))
    world.participant(plan).prepare(plan, world.fence())
    world.participant(plan).abort(plan, world.fence(1, 2), {"reason": "USER"})
    assert world.participant(plan).commit(plan, world.fence(1, 3)).outcome is Outcome.ABORTED
    assert state(world) == []


@pytest.mark.rotating
@pytest.mark.parametrize("kind", ["lost request", "lost reply"])
@pytest.mark.parametrize("statement", [b"ON DUPLICATE KEY UPDATE `name`", b"DELETE FROM", b"\x03COMMIT"])
def test_a_lost_request_or_reply_is_settled_by_the_marker(world: MySqlWorld, kind: str, statement: bytes) -> None:
    world.sql("INSERT INTO orders VALUES (2, 'b', 0)")
    plan = world.plan(orders=changes(("c", 1, "a"), ("d", 2, None)))
    world.participant(plan).prepare(plan, world.fence())
    with Proxy(world.server.port) as proxy:
        world.port, world.extra = proxy.port, {"ssl_disabled": True}
        proxy.cut(kind, statement)
        world.participant(plan).commit(plan, world.fence(1, 2))
        assert proxy.cuts == 1
    assert state(world) == [(1, "a", 1)]


@pytest.mark.rotating
@pytest.mark.chaos
@pytest.mark.parametrize("end", ["killed", "woken"])
@pytest.mark.parametrize("stop", ["announced", "before commit", "after commit"])
def test_a_delivery_that_stopped_is_finished_by_the_next_attempt(world: MySqlWorld, stop: str, end: str) -> None:
    plan = world.plan(orders=changes(("c", 1, "a"), ("c", 2, "b"), ("d", 2, None)))
    world.participant(plan).prepare(plan, world.fence())
    with Committer(plan, world.connection(), world.fence(1, 2), world.limits, stop=stop) as other:
        other.wait_until_stopped()
        if end == "killed":
            other.kill()
        proof = world.participant(plan).commit(plan, world.fence(1, 3))
        if end == "woken":
            other.wake()
            answer = other.answer()
            assert answer.get("error") == "FencedError" or answer["outcome"] == "committed"
    assert state(world) == [(1, "a", 1)] and world.participant(plan).proof(plan) == proof


@pytest.mark.parametrize(
    ("table", "settings", "message"),
    [
        ("id BIGINT, name TEXT, version BIGINT", {}, "no unique key"),
        ("id BIGINT, name TEXT, version BIGINT, UNIQUE (id)", {}, "without NULL"),
        ("id BIGINT PRIMARY KEY, name VARCHAR(9) UNIQUE, version BIGINT", {}, "other unique keys: name"),
        ("id BIGINT PRIMARY KEY, name TEXT, version INT", {}, "no BIGINT column 'version'"),
        ("id BIGINT PRIMARY KEY, name TEXT", {}, "ADD COLUMN `version` BIGINT"),
    ],
)
def test_tables_that_do_not_fit_are_refused(
    any_mysql_database: Database, tmp_path: Path, table: str, settings: dict[str, Any], message: str
) -> None:
    world = make_world(any_mysql_database, tmp_path, orders=table).use("upsert", **{**KEYS, **settings})
    plan = world.plan(orders=changes(("c", 1, "a")))
    with pytest.raises(SinkAccessError, match=message):
        world.participant(plan).prepare(plan, world.fence())


@pytest.mark.parametrize(("table", "fits"), [(TABLE, True), ("id BIGINT, name TEXT, version BIGINT", False)])
def test_the_doctor_looks_at_keys_and_rows(
    any_mysql_database: Database, tmp_path: Path, table: str, fits: bool
) -> None:
    world = make_world(any_mysql_database, tmp_path, orders=table).use("upsert", **KEYS)
    plan = world.plan(orders=changes(("c", 1, "a"), ("d", 2, None)))
    checks = examine("orders", plan.participants[0], world.connection(), [open_wal().open(plan.segments[0])])
    problems = [check.text for check in checks if check.verdict is not Verdict.OK]
    assert problems == [] if fits else "no unique key" in problems[0]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (changes(("moved", 1, "a")), "'moved' is not known"),
        (pa.table({"id": [1], "name": ["a"]}), "no column 'op'"),
        (pa.table({"op": ["c"], "name": ["a"]}), "no column for id"),
        (pa.table({"op": ["c"], "id": [1], "name": ["a"], "version": [9]}), "filled by the sink itself"),
        (pa.table({"op": ["c", "d"], "id": [1, 2], "name": [None, "a"]}), "NULL"),
    ],
)
def test_rows_that_do_not_fit_are_declined_before_the_decision(world: MySqlWorld, rows: pa.Table, message: str) -> None:
    plan = world.plan(orders=rows)
    with pytest.raises(DeclinedError, match=message):
        world.participant(plan).prepare(plan, world.fence())
