"""Kills, zombies, lost replies and restarts of the server while rows are in several branches (I2, I3, I5, I6, I7)."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from airflow_ft.protocol.errors import SinkUnavailableError
from airflow_ft.protocol.model import Plan
from airflow_ft.protocol.votes import Outcome
from airflow_ft.sinks.base import slices
from airflow_ft.sinks.mysql.fencing import await_end, hold_lock, kill, lock_name, new_nonce
from airflow_ft.sinks.mysql.ledger import Ledger
from airflow_ft.sinks.mysql.parameters import insert_statement
from airflow_ft.sinks.mysql.session import Session
from tests.integration.proxy import Proxy
from tests.integration.test_mysql_xa import prepared
from tests.sinks.mysql.committer import Committer
from tests.sinks.mysql.world import THE_ROWS, MySqlWorld, make_world, vote_for
from tools.servers import Database, MariaDb, MySql

pytestmark = pytest.mark.sampled

ROWS = 150_000  # more than one batch in a branch, so that a process can stop between two
LEDGER = "INSERT INTO .*airflow_ft_ledger.* VALUES .%s, %s, %s, %s, %s, %s"  # a marker, not the preflight's row
OF_ROWS = "'aft.[0-9a-f]+.1'"  # a branch of checkpoint 1, not the preflight's
IN_PREPARE = (
    "after XA PREPARE",  # in the preflight
    f"before XA START {OF_ROWS}", f"before {LEDGER}", f"after {LEDGER}", "loading", f"before XA END {OF_ROWS}",
    f"before XA PREPARE {OF_ROWS}", f"after XA PREPARE {OF_ROWS}",
)  # fmt: skip
IN_COMMIT = ("announced", "before XA COMMIT", "after XA COMMIT", "before commit", "after commit")
IN_ABORT = ("before XA ROLLBACK", "after XA ROLLBACK", "announced", f"after {LEDGER}", "before commit", "after commit")


@pytest.fixture(autouse=True)
def small_branches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "MIN_ROWS", 2)


@pytest.fixture
def world(any_mysql_database: Database, tmp_path: Path) -> Iterator[MySqlWorld]:
    world = make_world(any_mysql_database, tmp_path).use("xa", branches=2)  # no unique key: only the markers help
    yield world
    world.server.end_prepared()


def many(first: int, count: int) -> pa.Table:
    ids = np.arange(first, first + count)
    return pa.table({"id": ids, "name": pa.array(ids).cast(pa.string())})


def process(world: MySqlWorld, plan: Plan, attempt: int, stop: str, **arguments: Any) -> Committer:
    return Committer(plan, world.connection(), world.fence(1, attempt), world.limits, stop=stop, **arguments)


def prepare(world: MySqlWorld, plan: Plan, attempt: int) -> Mapping[str, Any]:
    return world.participant(plan).prepare(plan, world.fence(1, attempt))


def commit(world: MySqlWorld, plan: Plan, attempt: int, notes: Mapping[str, Any], voted: int) -> Any:
    return world.participant(plan).commit(plan, world.fence(1, attempt), vote_for(notes, voted))


def is_exact(world: MySqlWorld, rows: int) -> bool:
    return world.sql("SELECT COUNT(*), COUNT(DISTINCT id) FROM orders") == [(rows, rows)]


# --- xa --------------------------------------------------------------------------------------------------------------


@pytest.mark.chaos
@pytest.mark.parametrize("end", ["killed", "woken"])
@pytest.mark.parametrize("stop", IN_PREPARE)
def test_the_next_attempt_repeats_a_prepare_stopped_anywhere(world: MySqlWorld, stop: str, end: str) -> None:
    plan = world.plan(orders=many(1, ROWS))
    prepare(world, plan, 1)  # makes the tables, so that the stop is met in the branches; rolled back by the next
    with process(world, plan, 2, stop, action="prepare") as other:
        other.wait_until_stopped()
        if end == "killed":
            other.kill()
        notes = prepare(world, plan, 3)
        assert len(prepared(world)) == 2 and world.count() == 0
        if end == "woken":
            other.wake()
            answer = other.answer()
            assert answer["error"] == "FencedError", answer["message"]
        proof = commit(world, plan, 4, notes, 3)
    assert "redelivered" not in proof.detail
    assert is_exact(world, ROWS) and prepared(world) == []


@pytest.mark.chaos
@pytest.mark.parametrize("stop", IN_PREPARE)
def test_a_prepare_that_wakes_after_an_abort_leaves_nothing(world: MySqlWorld, stop: str) -> None:
    plan = world.plan(orders=many(1, ROWS))
    prepare(world, plan, 1)
    with process(world, plan, 2, stop, action="prepare") as zombie:
        zombie.wait_until_stopped()
        assert world.participant(plan).abort(plan, world.fence(1, 3), {}).outcome is Outcome.ABORTED
        assert prepared(world) == []
        zombie.wake()
        assert "error" in zombie.answer()
    assert prepared(world) == [] and world.count() == 0
    following = world.plan_of(2, *plan.segments, world.segment(2, {"orders": many(ROWS + 1, 10)}))
    commit(world, following, 5, prepare(world, following, 4), 4)
    assert is_exact(world, ROWS + 10)


@pytest.mark.chaos
@pytest.mark.parametrize("end", ["killed", "woken"])
@pytest.mark.parametrize("stop", IN_COMMIT)
def test_the_next_attempt_finishes_a_commit_stopped_anywhere(world: MySqlWorld, stop: str, end: str) -> None:
    plan = world.plan(orders=many(1, 1000))
    notes = prepare(world, plan, 1)
    with process(world, plan, 2, stop, notes=notes, voted=1) as other:
        other.wait_until_stopped()
        if end == "killed":
            other.kill()
        proof = commit(world, plan, 3, notes, 1)
        assert proof.outcome is Outcome.COMMITTED and "redelivered" not in proof.detail
        if end == "woken":
            other.wake()
            answer = other.answer()
            assert answer.get("error") == "FencedError" or answer["outcome"] == "committed"
    assert is_exact(world, 1000) and prepared(world) == []
    assert world.participant(plan).proof(plan) == proof


@pytest.mark.chaos
@pytest.mark.parametrize("stop", IN_ABORT)
def test_the_next_attempt_finishes_an_abort_killed_anywhere(world: MySqlWorld, stop: str) -> None:
    plan = world.plan(orders=many(1, 1000))
    prepare(world, plan, 1)
    with process(world, plan, 2, stop, action="abort") as other:
        other.wait_until_stopped()
        other.kill()
        assert world.participant(plan).abort(plan, world.fence(1, 3), {}).outcome is Outcome.ABORTED
    assert prepared(world) == [] and world.count() == 0
    assert {row[1] for row in world.markers()} == {"aborted"}


@pytest.mark.chaos
@pytest.mark.parametrize("kind", ["lost request", "lost reply"])
@pytest.mark.parametrize("statement", [b"XA START", b"airflow_ft_ledger", THE_ROWS, b"XA END", b"XA PREPARE"])
def test_a_lost_request_or_reply_in_prepare_is_repeated(world: MySqlWorld, kind: str, statement: bytes) -> None:
    plan = world.plan(orders=many(1, 1000))
    prepare(world, plan, 1)
    with Proxy(world.server.port) as proxy:
        world.port, world.extra = proxy.port, {"ssl_mode": "DISABLED"}
        proxy.cut(kind, world.request(statement))
        notes = prepare(world, plan, 2)
        assert proxy.cuts == 1 and len(prepared(world)) == 2
    world.port = None
    assert "redelivered" not in commit(world, plan, 3, notes, 2).detail
    assert is_exact(world, 1000)


@pytest.mark.chaos
@pytest.mark.parametrize("kind", ["lost request", "lost reply"])
@pytest.mark.parametrize("statement", ["XA RECOVER", "XA COMMIT", "branch <>", "\x03COMMIT"])
def test_markers_settle_a_lost_request_or_reply_in_a_commit(world: MySqlWorld, kind: str, statement: str) -> None:
    plan = world.plan(orders=many(1, 1000))
    notes = prepare(world, plan, 1)
    with Proxy(world.server.port) as proxy:
        world.port, world.extra = proxy.port, {"ssl_mode": "DISABLED"}
        proxy.cut(kind, statement.encode())
        proof = commit(world, plan, 2, notes, 1)
        assert proxy.cuts == 1
    assert "redelivered" not in proof.detail
    assert is_exact(world, 1000) and prepared(world) == []


@pytest.mark.release
@pytest.mark.chaos
def test_a_branch_of_a_closing_connection_stays_rolled_back(own_server: Callable[..., Any], tmp_path: Path) -> None:
    """MariaDB lists a branch as free before InnoDB has let go of it: ended then, it would stay, listed by a restart.

    Without the wait for the connection's end some of a thousand stay.
    """
    with Database.fresh(own_server(MariaDb)) as database:
        world = make_world(database, tmp_path).use("xa", branches=2)
        ledger = Ledger(world.database, world.pipeline, "shop")
        with closing(Session(world.connection(), world.limits)) as session:
            for number in range(1000):
                fence, nonce, xid = world.fence(1, number), new_nonce(), f"'leaving','{number}',7"
                with closing(Session(world.connection(), world.limits)) as leaving:
                    hold_lock(leaving, ledger, fence, nonce)
                    leaving.run(f"XA START {xid}")
                    leaving.run(f"INSERT INTO orders VALUES ({number}, 'x')")
                    leaving.run(f"XA END {xid}")
                    leaving.run(f"XA PREPARE {xid}")
                await_end(session, lock_name(ledger, fence.installation, fence.rank, nonce), fence.rank, 20)
                session.run(f"XA ROLLBACK {xid}")
        world.server.restart()
        assert world.server.sql("XA RECOVER") == []


@pytest.mark.release
@pytest.mark.chaos
def test_a_branch_of_a_killed_connection_stays_rolled_back(own_server: Callable[..., Any], tmp_path: Path) -> None:
    """Its lock is free before InnoDB has let go, the longer the more statements it has prepared.

    Without the wait for its departure three of a hundred stay.
    """
    with Database.fresh(own_server(MariaDb)) as database:
        world = make_world(database, tmp_path)
        with closing(Session(world.connection(), world.limits)) as session:
            for number in range(150):
                xid = f"'killed','{number}',7"
                with closing(Session(world.connection(), world.limits)) as victim:
                    for rows in (4096, 1024, 256):
                        victim._connection.prepare(insert_statement("orders", ("id", "name"), rows))
                    victim.run(f"XA START {xid}")
                    victim.run(f"INSERT INTO orders VALUES ({number}, 'x')")
                    victim.run(f"XA END {xid}")
                    victim.run(f"XA PREPARE {xid}")
                    assert kill(session, victim.id, (1, number))
                    session.run(f"XA ROLLBACK {xid}")
        world.server.restart()
        assert world.server.sql("XA RECOVER") == []


@pytest.mark.release
@pytest.mark.chaos
@pytest.mark.slow
@pytest.mark.parametrize(("kind", "options"), [(MariaDb, {}), (MariaDb, {"log_bin": "binlog"}), (MySql, {})])
def test_prepared_branches_outlive_kills_of_the_server(
    own_server: Callable[..., Any], tmp_path: Path, kind: type[Any], options: dict[str, str]
) -> None:
    """Killed while prepared, while committing and right after the proof: it is there, once, and stays."""
    moments = random.Random(11)
    with Database.fresh(own_server(kind, **options)) as database:
        world = make_world(database, tmp_path).use("xa", branches=4)
        for round_ in range(1, 6):
            plan = world.plan(orders=many(round_ * 1_000_000, 20_000))
            notes = prepare(world, plan, 10 * round_)
            world.server.kill()
            world.server.start()
            assert len(prepared(world)) == 4

            def deliver(plan: Plan = plan, notes: Any = notes, round_: int = round_) -> None:
                with suppress(SinkUnavailableError):
                    commit(world, plan, 10 * round_ + 1, notes, 10 * round_)

            thread = threading.Thread(target=deliver)
            thread.start()
            time.sleep(moments.uniform(0, 0.1))  # not a wait: the moment of the kill
            world.server.kill()
            thread.join()
            world.server.start()
            proof = commit(world, plan, 10 * round_ + 2, notes, 10 * round_)
            world.server.kill()  # the proof was read: nothing of this number may come back
            world.server.start()
            assert world.participant(plan).proof(plan) == proof and "redelivered" not in proof.detail
            assert is_exact(world, 20_000 * round_) and prepared(world) == []
            world.predecessor = plan.number


@pytest.mark.chaos
def test_a_zombie_that_wakes_when_all_was_pruned_halts_nothing(world: MySqlWorld) -> None:
    """It had announced itself, and not yet looked: what it finds then is newer, not contradictory."""
    plan = world.plan(orders=many(1, 100))
    notes = prepare(world, plan, 1)
    stop = "after UPDATE .*airflow_ft_head.* SET epoch"
    with process(world, plan, 2, stop, notes=notes, voted=1) as zombie:
        zombie.wait_until_stopped()
        commit(world, plan, 3, notes, 1)
        world.predecessor = 1
        world.deliver(world.plan(orders=many(101, 100)), 1, 4)
        world.participant(plan).forget(world.fence(1, 0), 1)
        zombie.wake()
        assert zombie.answer()["error"] == "FencedError"
    assert is_exact(world, 200)


# --- lost branches ---------------------------------------------------------------------------------------------------


@pytest.mark.chaos
@pytest.mark.parametrize("end", ["killed", "woken"])
@pytest.mark.parametrize("stop", ["announced", f"after {LEDGER}", "loading", "before commit", "after commit"])
def test_the_next_attempt_finishes_a_redelivery_stopped_anywhere(world: MySqlWorld, stop: str, end: str) -> None:
    plan = world.plan(orders=many(1, ROWS))
    notes = prepare(world, plan, 1)
    world.server.end_prepared()
    with process(world, plan, 2, stop, notes=notes, voted=1) as other:
        other.wait_until_stopped()
        if end == "killed":
            other.kill()
        proof = commit(world, plan, 3, notes, 1)
        assert proof.counts == {"orders": ROWS} and is_exact(world, ROWS)
        if end == "woken":
            other.wake()
            assert other.answer()["error"] == "FencedError"
    assert is_exact(world, ROWS) and world.participant(plan).proof(plan) == proof
