"""The strategy `parallel` against real servers: a marker and a transaction a branch, and only what is missing again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pymysql
import pytest

from airflow_ft.protocol.errors import DeclinedError, FencedError, SinkUnavailableError, StoreBehindSinkError
from airflow_ft.protocol.model import Outcome
from airflow_ft.sinks.mysql import slices
from airflow_ft.sinks.mysql.session import Session
from tests.integration.proxy import Proxy
from tests.raising import raises
from tests.sinks.mysql.world import THE_ROWS, MySqlWorld, make_world, orders
from tools.servers import Database


@pytest.fixture(autouse=True)
def small_branches(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that few rows are divided too."""
    monkeypatch.setattr(slices, "MIN_ROWS", 2)


@pytest.fixture
def world(any_mysql_database: Database, tmp_path: Path) -> MySqlWorld:
    return make_world(any_mysql_database, tmp_path).use("parallel", branches=3)


def ids(world: MySqlWorld) -> list[int]:
    return [row[0] for row in world.sql("SELECT id FROM orders ORDER BY id")]


def branches(world: MySqlWorld) -> list[tuple[Any, ...]]:
    return world.sql("SELECT branch, kind, attempt, `rows` FROM airflow_ft_ledger WHERE number = 1 ORDER BY branch")


def refuse(monkeypatch: pytest.MonkeyPatch, branch: str, times: int = 1) -> None:
    """The server ends the connection of one branch at its COMMIT."""
    left, fill = [times], Session.run

    def run(session: Session, sql: str, args: Any = None) -> Any:
        if left[0] and args and "INSERT INTO" in sql and branch in args:
            left[0] -= 1
            raise pymysql.err.OperationalError(1317, "Query execution was interrupted")
        return fill(session, sql, args)

    monkeypatch.setattr(Session, "run", run)


def test_all_branches_and_the_whole_are_marked(world: MySqlWorld) -> None:
    plan = world.plan(orders=orders(1, 10))
    notes = world.participant(plan).prepare(plan, world.fence())
    assert notes["branches"] == {"0001": {"orders": 3}, "0002": {"orders": 3}, "0003": {"orders": 4}}
    assert world.count() == 0 and world.markers() == []

    proof = world.participant(plan).commit(plan, world.fence(1, 2))
    assert (proof.outcome, proof.counts, proof.digest) == (Outcome.COMMITTED, {"orders": 10}, plan.digest)
    assert world.participant(plan).proof(plan) == proof == world.participant(plan).commit(plan, world.fence(1, 3))
    assert ids(world) == list(range(1, 11))
    assert branches(world) == [
        ("", "committed", 2, 10),
        ("0001", "committed", 2, 3),
        ("0002", "committed", 2, 3),
        ("0003", "committed", 2, 4),
    ]
    assert world.sql("SELECT last_delivered FROM airflow_ft_head") == [(1,)]


def test_a_redo_delivers_the_missing_branch_alone(world: MySqlWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = world.plan(orders=orders(1, 10))
    world.participant(plan).prepare(plan, world.fence())
    world.limits = replace(world.limits, tries=1)
    with monkeypatch.context() as patched:
        refuse(patched, "0002")
        with pytest.raises(SinkUnavailableError):
            world.participant(plan).commit(plan, world.fence(1, 2))
    assert [row[0] for row in branches(world)] == ["0001", "0003"]
    assert world.participant(plan).proof(plan) is None  # I6: a part is no proof
    assert world.sql("SELECT last_delivered FROM airflow_ft_head") == [(0,)]

    proof = world.participant(plan).commit(plan, world.fence(1, 3))
    assert proof.counts == {"orders": 10} and ids(world) == list(range(1, 11))
    assert [row[2] for row in branches(world)] == [3, 2, 3, 2]


def test_the_next_number_waits_until_the_whole_is_there(world: MySqlWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = world.plan(orders=orders(1, 10))
    world.limits = replace(world.limits, tries=1)
    world.participant(plan).prepare(plan, world.fence())
    with monkeypatch.context() as patched:
        refuse(patched, "0003")
        with pytest.raises(SinkUnavailableError):
            world.participant(plan).commit(plan, world.fence(1, 2))
    world.predecessor = 1
    second = world.plan(orders=orders(11, 10))
    with pytest.raises(StoreBehindSinkError):
        world.participant(second).commit(second, world.fence(1, 3))
    assert max(ids(world)) <= 10


def test_an_older_attempt_changes_nothing(world: MySqlWorld) -> None:
    plan = world.plan(orders=orders(1, 10))
    world.participant(plan).prepare(plan, world.fence(2, 4))
    with pytest.raises(FencedError):
        world.participant(plan).commit(plan, world.fence(2, 3))
    assert world.count() == 0 and world.markers() == []


def test_tombstones_cover_every_branch(world: MySqlWorld) -> None:
    plan = world.plan(orders=orders(1, 10))
    world.participant(plan).prepare(plan, world.fence())
    proof = world.participant(plan).abort(plan, world.fence(1, 2), {"reason": "USER"})
    assert [row[:2] for row in branches(world)] == [(b, "aborted") for b in ("", "0001", "0002", "0003")]
    assert world.participant(plan).commit(plan, world.fence(1, 3)) == proof
    assert world.count() == 0


def test_refused_rows_name_their_row_and_the_branches_that_stand_stay_proven(
    any_mysql_database: Database, tmp_path: Path
) -> None:
    world = make_world(any_mysql_database, tmp_path, orders="id BIGINT PRIMARY KEY, name TEXT")
    world.use("parallel", branches=2).limits = replace(world.limits, tries=1)
    world.sql("INSERT INTO orders VALUES (9, 'theirs')")
    plan = world.plan(orders=orders(1, 10))
    world.participant(plan).prepare(plan, world.fence())
    with raises(DeclinedError, "row_refused", errno=1062, sink="orders") as declined:
        world.participant(plan).commit(plan, world.fence(1, 2))
    assert declined.error and "'9'" in declined.error.headline
    assert ids(world) == [1, 2, 3, 4, 5, 9]
    world.sql("DELETE FROM orders WHERE id = 9")
    world.participant(plan).commit(plan, world.fence(1, 3))
    assert ids(world) == list(range(1, 11))


@pytest.mark.parametrize("kind", ["lost request", "lost reply"])
@pytest.mark.parametrize("statement", [b"GET_LOCK", b"LOCK IN SHARE MODE", b"INSERT INTO", THE_ROWS, b"\x03COMMIT"])
def test_a_lost_request_or_reply_is_settled_by_the_markers(world: MySqlWorld, kind: str, statement: bytes) -> None:
    plan = world.plan(orders=orders(1, 10))
    world.participant(plan).prepare(plan, world.fence())
    with Proxy(world.server.port) as proxy:
        world.port, world.extra = proxy.port, {"ssl_disabled": True}
        proxy.cut(kind, world.request(statement))
        proof = world.participant(plan).commit(plan, world.fence(1, 2))
        assert proxy.cuts == 1
    assert proof.counts == {"orders": 10} and ids(world) == list(range(1, 11))
