"""Kills, cut connections and zombies against real servers: exactly once, whatever happens (I2, I5, I6, I7)."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from airflow_ft.protocol.errors import FencedError, SinkUnavailableError
from airflow_ft.protocol.model import Plan, Segment
from airflow_ft.protocol.votes import Outcome
from airflow_ft.protocol.write_ahead_log import WalFile
from airflow_ft.sinks.mysql.load import Loader
from airflow_ft.sinks.mysql.participant import open_participant
from airflow_ft.wal import open_wal
from tests.integration.proxy import Proxy
from tests.raising import raises
from tests.sinks.mysql.committer import Committer, StoppingSegment
from tests.sinks.mysql.world import THE_ROWS, MySqlWorld, each_way, make_world, orders
from tools.servers import Database, MariaDb, MySql

pytestmark = pytest.mark.sampled

ROWS = 150_000  # more than one batch, so that a process can stop between two


@pytest.fixture
def world(any_mysql_database: Database, tmp_path: Path) -> MySqlWorld:
    return make_world(any_mysql_database, tmp_path)  # the table has no unique key: nothing but the marker helps


def many(first: int, count: int) -> pa.Table:
    ids = np.arange(first, first + count)
    return pa.table({"id": ids, "name": pa.array(ids).cast(pa.string())})


def prepared(world: MySqlWorld, table: pa.Table, attempt: int = 1) -> Plan:
    plan = world.plan(orders=table)
    world.participant(plan).prepare(plan, world.fence(1, attempt))
    return plan


def committer(world: MySqlWorld, plan: Plan, attempt: int, **arguments: Any) -> Committer:
    return Committer(plan, world.connection(), world.fence(1, attempt), world.limits, **arguments)


def is_exact(world: MySqlWorld, rows: int) -> bool:
    return world.sql("SELECT COUNT(*), COUNT(DISTINCT id) FROM orders") == [(rows, rows)]


@pytest.mark.chaos
@pytest.mark.slow
def test_a_process_killed_during_a_commit_delivers_exactly_once(world: MySqlWorld) -> None:
    moments = random.Random(20261120)
    duration, sides, rounds = 0.0, set[str](), 0
    while rounds < 12 or (len(sides) < 2 and rounds < 50):
        rounds += 1
        plan = prepared(world, many(rounds * 1_000_000, 30_000), 10 * rounds)
        with committer(world, plan, 10 * rounds + 1) as process:
            if rounds == 1:  # how long it takes when nobody disturbs it
                began = time.monotonic()
                process.answer()
                duration = time.monotonic() - began
            else:
                time.sleep(moments.uniform(0, 1.2 * duration))  # not a wait: the moment of the kill
                process.kill()
        proof = world.participant(plan).commit(plan, world.fence(1, 10 * rounds + 2))
        assert proof.counts == {"orders": 30_000}
        if rounds > 1:
            sides.add("before COMMIT" if proof.detail["attempt"] == 10 * rounds + 2 else "after COMMIT")
        assert is_exact(world, 30_000 * rounds)
        world.predecessor = plan.number
    assert len(sides) == 2, f"all kills came {sides}"


@pytest.mark.chaos
@pytest.mark.slow
@pytest.mark.parametrize("kind", [MariaDb, MySql])
def test_a_server_killed_at_any_moment_delivers_exactly_once(
    own_server: Callable[..., Any], tmp_path: Path, kind: type[Any]
) -> None:
    moments = random.Random(7)
    with Database.fresh(own_server(kind)) as database:
        world = make_world(database, tmp_path)
        for round_ in range(1, 6):
            plan = prepared(world, many(round_ * 1_000_000, ROWS), 10 * round_)

            def commit(plan: Plan = plan, attempt: int = 10 * round_ + 1) -> None:
                with suppress(SinkUnavailableError):
                    world.participant(plan).commit(plan, world.fence(1, attempt))

            thread = threading.Thread(target=commit)
            thread.start()
            time.sleep(moments.uniform(0.05, 1.2))  # not a wait: the moment of the kill
            world.server.kill()
            thread.join()
            world.server.start()
            proof = world.participant(plan).commit(plan, world.fence(1, 10 * round_ + 2))
            assert proof.counts == {"orders": ROWS}
            assert is_exact(world, ROWS * round_)
            world.predecessor = plan.number


@pytest.mark.parametrize("kind", ["lost request", "lost reply"])
@pytest.mark.parametrize("statement", [b"\x03COMMIT", b"airflow_ft_head` SET last_delivered", THE_ROWS, b"GET_LOCK"])
def test_the_marker_settles_a_connection_cut_at_any_statement(world: MySqlWorld, kind: str, statement: bytes) -> None:
    plan = prepared(world, orders(1, 1000))
    with Proxy(world.server.port) as proxy:
        world.port, world.extra = proxy.port, {"ssl_mode": "DISABLED"}
        proxy.cut(kind, world.request(statement))
        proof = world.participant(plan).commit(plan, world.fence(1, 2))
        assert proxy.cuts == 1
    assert (proof.outcome, proof.counts) == (Outcome.COMMITTED, {"orders": 1000})
    assert proof.detail["tries"] == (1 if (kind, statement) == ("lost reply", b"\x03COMMIT") else 2)
    assert is_exact(world, 1000)


def test_a_transaction_that_ends_unnoticed_leaves_no_marker(world: MySqlWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy continues with another connection: the rows are gone, and no error shows it."""
    plan = prepared(world, orders(1, 100))
    send = Loader.send

    def and_lose(self: Loader, *args: Any) -> int:
        sent = send(self, *args)
        self._session.run("ROLLBACK")
        self._session.run("SET autocommit = 1")  # as in connections of a pool
        return sent

    with monkeypatch.context() as patched:
        patched.setattr(Loader, "send", and_lose)
        with raises(SinkUnavailableError, "server_unsupported"):
            world.participant(plan).commit(plan, world.fence(1, 2))
    assert (world.markers(), world.count()) == ([], 0)
    assert world.participant(plan).commit(plan, world.fence(1, 3)).counts == {"orders": 100}


@pytest.mark.parametrize("kind", ["lost request", "lost reply"])
def test_a_statement_cut_off_while_preparing_is_prepared_again(
    mariadb_database: Database, tmp_path: Path, kind: str
) -> None:
    world = make_world(mariadb_database, tmp_path)
    plan = prepared(world, orders(1, 1000))
    with Proxy(world.server.port) as proxy:
        world.port, world.extra = proxy.port, {"ssl_mode": "DISABLED"}
        proxy.cut(kind, b"\x16INSERT INTO")
        proof = world.participant(plan).commit(plan, world.fence(1, 2))
        assert proxy.cuts == 1
    assert (proof.detail["tries"], proof.detail["path"]) == (2, "insert") and is_exact(world, 1000)


@pytest.mark.parametrize("kind", ["lost request", "lost reply"])
def test_an_unanswered_abort_is_settled_by_its_abort_marker(world: MySqlWorld, kind: str) -> None:
    plan = prepared(world, orders(1, 10))
    with Proxy(world.server.port) as proxy:
        world.port, world.extra = proxy.port, {"ssl_mode": "DISABLED"}
        proxy.cut(kind, b"\x03COMMIT")
        assert world.participant(plan).abort(plan, world.fence(1, 2), {"why": "x"}).outcome is Outcome.ABORTED
        assert proxy.cuts == 1
        assert world.participant(plan).commit(plan, world.fence(1, 3)).outcome is Outcome.ABORTED
    assert world.count() == 0


def test_an_outcome_that_cannot_be_read_stays_in_doubt(world: MySqlWorld) -> None:
    plan = prepared(world, orders(1, 10))
    with Proxy(world.server.port) as proxy:
        world.port, world.extra = proxy.port, {"ssl_mode": "DISABLED"}
        world.limits = replace(world.limits, tries=2)
        proxy.cut("lost reply", b"\x03COMMIT")
        proxy.cut("lost request", b"GET_LOCK")  # of the first session: nothing was begun
        proxy.cut("lost request", b"GET_LOCK")
        with pytest.raises(SinkUnavailableError):
            world.participant(plan).commit(plan, world.fence(1, 2))
        proof = world.participant(plan).commit(plan, world.fence(1, 2))
    assert proof.outcome is Outcome.COMMITTED and is_exact(world, 10)


@pytest.mark.chaos
@pytest.mark.parametrize("action", ["commit", "abort"])
@pytest.mark.parametrize("stop", ["announced", "loading", "before commit"])
def test_a_stopped_zombie_is_ended_and_its_late_commit_fails(world: MySqlWorld, stop: str, action: str) -> None:
    plan = prepared(world, many(1, ROWS))
    with committer(world, plan, 2, stop=stop) as zombie:
        zombie.wait_until_stopped()
        participant, fence = world.participant(plan), world.fence(1, 3)
        if action == "commit":
            proof = participant.commit(plan, fence)
            assert len(proof.detail.get("killed", [])) == (0 if stop == "announced" else 1)
        else:
            proof = participant.abort(plan, fence, {"why": "x"})
        expected = ROWS if action == "commit" else 0
        assert is_exact(world, expected)

        zombie.wake()
        assert zombie.answer()["error"] == "FencedError"
    assert is_exact(world, expected)
    assert world.participant(plan).proof(plan) == proof
    assert [row[:4] for row in world.markers()] == [(1, proof.outcome.value, 1, 3)]


@pytest.mark.chaos
def test_a_vote_fences_the_zombies_open_transaction(world: MySqlWorld) -> None:
    plan = prepared(world, many(1, ROWS))
    with committer(world, plan, 2, stop="before commit") as zombie:
        zombie.wait_until_stopped()
        notes = world.participant(plan).prepare(plan, world.fence(2, 3))
        assert len(notes["killed"]) == 1
        zombie.wake()
        assert zombie.answer()["error"] == "FencedError"
    assert world.count() == 0 and world.markers() == []


@pytest.mark.chaos
def test_a_zombie_and_its_successor_return_the_same_proof(world: MySqlWorld) -> None:
    plan = prepared(world, many(1, ROWS))
    with committer(world, plan, 2, stop="after commit") as zombie:
        zombie.wait_until_stopped()
        proof = world.participant(plan).commit(plan, world.fence(1, 3))
        assert proof.detail["attempt"] == 2
        zombie.wake()
        assert zombie.answer()["outcome"] == "committed"
    assert is_exact(world, ROWS)


@pytest.mark.chaos
@pytest.mark.parametrize("rank", [(1, 1), (0, 99)])
def test_a_newer_session_is_never_killed(world: MySqlWorld, rank: tuple[int, int]) -> None:
    plan = prepared(world, many(1, ROWS))
    with committer(world, plan, 2, stop="before commit") as newer:
        newer.wait_until_stopped()
        with pytest.raises(FencedError):
            world.participant(plan).commit(plan, world.fence(*rank))
        newer.wake()
        assert newer.answer()["outcome"] == "committed"
    assert is_exact(world, ROWS)


@pytest.mark.chaos
def test_a_commit_waits_for_another_process_of_the_same_attempt(world: MySqlWorld) -> None:
    plan = prepared(world, many(1, ROWS))
    patient = world.limits
    world.limits = replace(patient, idle=10)  # the twin stands still for less than that when the first one comes
    with committer(world, plan, 2, stop="before commit") as twin:
        twin.wait_until_stopped()
        world.limits = replace(patient, head_wait=0.1)
        with raises(SinkUnavailableError, "lock_timeout", seconds=0.1):
            world.participant(plan).commit(plan, world.fence(1, 2))
        world.limits = patient
        proof = world.participant(plan).commit(plan, world.fence(1, 2))
        assert "killed" not in proof.detail
        twin.wake()
        assert twin.answer()["detail"]["connection"] == proof.detail["connection"]
    assert is_exact(world, ROWS)


@pytest.mark.chaos
def test_two_processes_of_one_attempt_at_once_deliver_once(world: MySqlWorld) -> None:
    for round_ in range(1, 6):
        plan = prepared(world, many(round_ * 1_000_000, 20_000), round_ * 10)
        found: list[object] = []

        def commit(plan: Plan = plan, attempt: int = round_ * 10 + 1, found: list[object] = found) -> None:
            try:
                found.append(world.participant(plan).commit(plan, world.fence(1, attempt)).outcome)
            except FencedError as error:
                found.append(error)

        threads = [threading.Thread(target=commit) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert Outcome.COMMITTED in found and len(found) == 3
        assert is_exact(world, 20_000 * round_)
        world.predecessor = plan.number


class SlowWal:
    """Checks a file for longer than the server waits for an idle session."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def open(self, segment: Segment) -> Any:
        outer = self

        class Slow(StoppingSegment):
            def batches(self, sink: str, file: WalFile) -> Iterator[pa.RecordBatch]:
                threading.Event().wait(outer._seconds)
                yield from self._reader.batches(sink, file)

        return Slow(open_wal().open(segment), lambda: None)


@each_way
def test_a_log_that_is_slow_to_read_does_not_cost_the_connection(world: MySqlWorld, way: str) -> None:
    world.use_way(way)
    plan = prepared(world, orders(1, 100))
    limits = replace(world.limits, idle=4)
    participant = open_participant(plan.participants[0], world.connection(), SlowWal(9), limits)
    proof = participant.commit(plan, world.fence(1, 2))
    assert proof.detail["tries"] == 1 and is_exact(world, 100)


@pytest.mark.release
@pytest.mark.slow
def test_memory_is_bounded_for_a_large_segment(mariadb_database: Database, tmp_path: Path) -> None:
    world = make_world(mariadb_database, tmp_path, orders="id BIGINT, name VARCHAR(100), amount DECIMAL(18,2)")
    ids = np.arange(10_000_000)
    amounts = pa.array(ids % 100_000).cast(pa.decimal128(22, 2)).cast(pa.decimal128(18, 2))
    names = pa.array(ids).cast(pa.string())
    plan = world.plan(orders=pa.table({"id": ids, "name": names, "amount": amounts}))
    world.participant(plan).prepare(plan, world.fence())
    began = time.monotonic()
    with committer(world, plan, 2) as process:
        answer = process.answer(seconds=580)
    seconds = time.monotonic() - began
    print(f"10,000,000 rows: peak {answer['peak_mib']} MiB, {10_000_000 / seconds:,.0f} rows/s with start and commit")
    assert answer["outcome"] == "committed" and world.count() == 10_000_000
    assert answer["peak_mib"] < 700
