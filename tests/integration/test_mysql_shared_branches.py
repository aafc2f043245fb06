"""Branches that other processes load: kills, sleepers and lost replies, on real servers (I2, I3, I5, I7)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from airflow_ft.protocol.errors import DeclinedError
from airflow_ft.protocol.model import Plan
from airflow_ft.protocol.participant import Branching
from airflow_ft.protocol.votes import Outcome
from airflow_ft.sinks.base import slices
from airflow_ft.sinks.mysql.shared_branches import SESSION
from tests.integration.proxy import Proxy
from tests.integration.test_mysql_branches_chaos import LEDGER, OF_ROWS, commit, is_exact, many, prepare, process
from tests.integration.test_mysql_xa import prepared
from tests.sinks.mysql.world import THE_ROWS, MySqlWorld, make_world
from tools.servers import Database

pytestmark = pytest.mark.sampled

ROWS = 150_000  # more than one batch in a branch, so that a process can stop between two
IN_LOAD = (
    f"before XA START {OF_ROWS}", f"after XA START {OF_ROWS}", f"after {LEDGER}",
    "loading", f"before XA END {OF_ROWS}", f"before XA PREPARE {OF_ROWS}", f"after XA PREPARE {OF_ROWS}",
)  # fmt: skip
IN_ANNOUNCE = ("after XA PREPARE", "before UPDATE .*airflow_ft_head", "after UPDATE .*airflow_ft_head.* SET epoch")


@pytest.fixture(autouse=True)
def small_branches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "MIN_ROWS", 2)


@pytest.fixture
def world(any_mysql_database: Database, tmp_path: Path) -> Iterator[MySqlWorld]:
    world = make_world(any_mysql_database, tmp_path).use("xa", branches=3)  # no unique key: only the markers help
    yield world
    world.server.end_prepared()


def sink(world: MySqlWorld, plan: Plan) -> Branching:
    participant = world.participant(plan)
    assert isinstance(participant, Branching)
    return participant


def announce(world: MySqlWorld, plan: Plan, attempt: int) -> Mapping[str, Any]:
    return sink(world, plan).announce(plan, world.fence(1, attempt))


def load(world: MySqlWorld, plan: Plan, attempt: int, notes: Mapping[str, Any], *branches: str) -> None:
    for branch in branches or sink(world, plan).branches(plan):
        assert sink(world, plan).load(plan, world.fence(1, attempt), notes, branch)


def conclude(world: MySqlWorld, plan: Plan, attempt: int, notes: Mapping[str, Any]) -> Mapping[str, Any]:
    voted = sink(world, plan).conclude(plan, world.fence(1, attempt), notes)
    assert voted is not None and SESSION not in voted
    return voted


def test_branches_of_several_processes_become_visible_together(world: MySqlWorld) -> None:
    plan = world.plan(orders=many(1, 999))
    notes = announce(world, plan, 1)
    assert sink(world, plan).branches(plan) == ["0001", "0002", "0003"]
    assert prepared(world) == [] and world.count() == 0
    load(world, plan, 1, notes)
    assert len(prepared(world)) == 3 and world.count() == 0
    load(world, plan, 1, notes)  # again: they are found
    voted = conclude(world, plan, 1, notes)
    assert voted["branches"] == {label: {"orders": 333} for label in ("0001", "0002", "0003")}
    proof = commit(world, plan, 2, voted, 1)
    assert proof.outcome is Outcome.COMMITTED and "redelivered" not in proof.detail
    assert is_exact(world, 999) and prepared(world) == []


def test_prepare_loads_what_no_task_has_loaded(world: MySqlWorld) -> None:
    plan = world.plan(orders=many(1, 999))
    notes = announce(world, plan, 1)
    load(world, plan, 1, notes, "0002")
    commit(world, plan, 2, conclude(world, plan, 1, notes), 1)
    assert is_exact(world, 999)


def test_an_announcement_of_an_older_attempt_does_nothing(world: MySqlWorld) -> None:
    plan = world.plan(orders=many(1, 999))
    notes = announce(world, plan, 1)
    newer = announce(world, plan, 2)
    assert sink(world, plan).load(plan, world.fence(1, 1), notes, "0001") is False
    assert sink(world, plan).conclude(plan, world.fence(1, 1), notes) is None
    # The head names the attempt, and another session of it: a late request of the announcement.
    assert sink(world, plan).load(plan, world.fence(1, 2), notes, "0001") is False
    assert sink(world, plan).conclude(plan, world.fence(1, 2), notes) is None
    assert prepared(world) == []
    commit(world, plan, 3, conclude(world, plan, 2, newer), 2)
    assert is_exact(world, 999)


def test_a_refused_row_fails_its_branch_and_leaves_the_others(world: MySqlWorld) -> None:
    plan = world.plan(orders=many(1, 999))
    world.sql("ALTER TABLE orders ADD CHECK (id <> 500)")
    notes = announce(world, plan, 1)
    load(world, plan, 1, notes, "0001", "0003")
    for step in (
        lambda: sink(world, plan).load(plan, world.fence(1, 1), notes, "0002"),
        lambda: sink(world, plan).conclude(plan, world.fence(1, 1), notes),
    ):
        with pytest.raises(DeclinedError):
            step()
        assert len(prepared(world)) == 2
    world.participant(plan).abort(plan, world.fence(1, 2), {})
    assert prepared(world) == [] and world.count() == 0


@pytest.mark.chaos
@pytest.mark.parametrize("end", ["killed", "stopped"])
@pytest.mark.parametrize("stop", IN_LOAD)
def test_the_next_try_finishes_a_load_stopped_anywhere(world: MySqlWorld, stop: str, end: str) -> None:
    """A stopped one wakes up when a later checkpoint is there, too."""
    plan = world.plan(orders=many(1, ROWS))
    notes = announce(world, plan, 1)
    with process(world, plan, 1, stop, action="load", notes=notes, branch="0002") as other:
        other.wait_until_stopped()
        if end == "killed":
            other.kill()
        load(world, plan, 1, notes)
        voted = conclude(world, plan, 1, notes)
        assert len(prepared(world)) == 3 and world.count() == 0
        proof = commit(world, plan, 2, voted, 1)
        assert "redelivered" not in proof.detail
        world.predecessor = 1
        world.deliver(world.plan(orders=many(ROWS + 1, 100)), 1, 4)
        if end == "stopped":
            other.wake()
            answer = other.answer()
            assert "loaded" in answer or answer["error"] == "FencedError", answer
    assert is_exact(world, ROWS + 100) and prepared(world) == []
    assert world.participant(plan).proof(plan) == proof


@pytest.mark.chaos
@pytest.mark.parametrize("stop", IN_LOAD)
def test_a_load_that_wakes_beside_its_next_try_changes_nothing(world: MySqlWorld, stop: str) -> None:
    """It wakes before the vote: the attempt is still its own."""
    plan = world.plan(orders=many(1, ROWS))
    notes = announce(world, plan, 1)
    with process(world, plan, 1, stop, action="load", notes=notes, branch="0002") as other:
        other.wait_until_stopped()
        load(world, plan, 1, notes)
        other.wake()
        assert other.answer().get("loaded") is True
    assert len(prepared(world)) == 3
    proof = commit(world, plan, 2, conclude(world, plan, 1, notes), 1)
    assert "redelivered" not in proof.detail and is_exact(world, ROWS)


@pytest.mark.chaos
@pytest.mark.parametrize("stop", IN_LOAD)
def test_a_load_that_wakes_after_an_abort_leaves_nothing(world: MySqlWorld, stop: str) -> None:
    plan = world.plan(orders=many(1, ROWS))
    notes = announce(world, plan, 1)
    with process(world, plan, 1, stop, action="load", notes=notes, branch="0002") as other:
        other.wait_until_stopped()
        assert world.participant(plan).abort(plan, world.fence(1, 2), {}).outcome is Outcome.ABORTED
        other.wake()
        answer = other.answer()
        assert "loaded" in answer or "error" in answer
    assert prepared(world) == [] and world.count() == 0
    following = world.plan_of(2, *plan.segments, world.segment(2, {"orders": many(ROWS + 1, 10)}))
    commit(world, following, 4, prepare(world, following, 3), 3)
    assert is_exact(world, ROWS + 10)


@pytest.mark.chaos
@pytest.mark.parametrize("end", ["killed", "woken"])
@pytest.mark.parametrize("stop", IN_ANNOUNCE)
def test_the_next_try_finishes_an_announce_stopped_anywhere(world: MySqlWorld, stop: str, end: str) -> None:
    plan = world.plan(orders=many(1, 999))
    prepare(world, plan, 1)  # makes the tables
    with process(world, plan, 2, stop, action="announce") as other:
        other.wait_until_stopped()
        if end == "killed":
            other.kill()
        notes = announce(world, plan, 3)
        load(world, plan, 3, notes)
        if end == "woken":
            other.wake()
            assert other.answer()["error"] == "FencedError"
    commit(world, plan, 4, conclude(world, plan, 3, notes), 3)
    assert is_exact(world, 999) and prepared(world) == []


@pytest.mark.chaos
@pytest.mark.parametrize("end", ["killed", "woken"])
@pytest.mark.parametrize("stop", IN_LOAD)
def test_the_next_try_finishes_a_prepare_stopped_anywhere(world: MySqlWorld, stop: str, end: str) -> None:
    plan = world.plan(orders=many(1, ROWS))
    notes = announce(world, plan, 1)
    load(world, plan, 1, notes, "0001")
    with process(world, plan, 1, stop, action="conclude", notes=notes) as other:
        other.wait_until_stopped()
        if end == "killed":
            other.kill()
        voted = conclude(world, plan, 1, notes)
        proof = commit(world, plan, 2, voted, 1)
        assert "redelivered" not in proof.detail
        if end == "woken":
            other.wake()
            answer = other.answer()
            # It had read all before: the decision log then finds the vote of the same attempt.
            assert answer.get("error") == "FencedError" or answer["notes"] in (None, voted)
    assert is_exact(world, ROWS) and prepared(world) == []


@pytest.mark.chaos
@pytest.mark.parametrize("kind", ["lost request", "lost reply"])
@pytest.mark.parametrize("statement", [b"XA START", b"airflow_ft_ledger", THE_ROWS, b"XA END", b"XA PREPARE"])
def test_a_lost_request_or_reply_in_a_load_is_repeated(world: MySqlWorld, kind: str, statement: bytes) -> None:
    plan = world.plan(orders=many(1, 1000))
    notes = announce(world, plan, 1)
    with Proxy(world.server.port) as proxy:
        world.port, world.extra = proxy.port, {"ssl_mode": "DISABLED"}
        proxy.cut(kind, world.request(statement))
        load(world, plan, 1, notes, "0002")
        assert proxy.cuts == 1 and len(prepared(world)) == 1
    world.port = None
    assert "redelivered" not in commit(world, plan, 2, conclude(world, plan, 1, notes), 1).detail
    assert is_exact(world, 1000)
