"""`prepared`: who prepares late, what is ended by hand, what former owners have left, and deaths at any statement."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg2
import pyarrow as pa
import pytest

from airflow_ft.protocol.errors import (
    AbortedHeuristicCommitError,
    DeclinedError,
    FencedError,
    ForeignOwnerError,
    SinkUnavailableError,
    StateConflictError,
    StoreBehindSinkError,
    TerminalError,
    TransientError,
)
from airflow_ft.protocol.model import Plan
from airflow_ft.protocol.orphans import OrphanKind, PreparedEnding
from airflow_ft.protocol.votes import Outcome, SinkHead, Vote
from airflow_ft.sinks.base.prepared import owner_of
from airflow_ft.sinks.postgres import load
from airflow_ft.sinks.postgres.gid import Gid
from airflow_ft.sinks.postgres.prepared import PreparedParticipant
from airflow_ft.sinks.postgres.session import Session
from airflow_ft.testing.world import OURS, SINK, THEIRS, World
from tests.density import stride
from tests.raising import raises
from tests.sinks.postgres.conftest import Make
from tests.sinks.postgres.deaths import AtStatement, Death
from tests.sinks.postgres.world import Table, quick, table_of
from tools.servers import Database, Postgres

pytestmark = [pytest.mark.server, pytest.mark.sampled]

ORDERS = "CREATE TABLE orders (id bigint PRIMARY KEY, text text)"
PREPARED = {"strategy": "prepared"}


def hand(world: World, verb: str) -> None:
    """Somebody ends what is prepared."""
    [gid] = table_of(world).prepared(world)
    table_of(world).sql(f"{verb} PREPARED {gid.sql}")


def delete_in(text: str) -> str:
    """The statement that a person is to run."""
    return "DELETE FROM" + text.partition("DELETE FROM")[2].partition(";")[0]


def prepare(world: World, plan: Plan, attempt: int) -> Vote:
    notes = quick(world, plan.participants[0]).prepare(plan, world.fence(1, attempt))
    return Vote("shop", attempt, attempt, None, dict(notes))


def test_a_vote_survives_a_crash_of_the_server(make: Make) -> None:
    world = make(ORDERS, **PREPARED)
    plan = world.plan()
    vote = world.prepare(plan)
    server = table_of(world).database.server
    assert isinstance(server, Postgres)
    server.kill()
    server.start()
    assert [gid.number for gid in table_of(world).prepared(world)] == [1] and world.target.ids() == []
    proof = world.commit(plan, vote)
    assert world.target.ids() == world.ids_of(1) and proof.detail["prepared"] == [1, vote.prepared]
    assert table_of(world).prepared(world) == []


def test_prepared_rows_lock_keys_and_table_until_the_decision(make: Make) -> None:
    world = make(ORDERS, **PREPARED)
    plan = world.plan()
    vote = world.prepare(plan)
    for statement in ("INSERT INTO orders VALUES (40, 'of somebody else')", "TRUNCATE orders", "DROP TABLE orders"):
        with pytest.raises(psycopg2.errors.LockNotAvailable):
            table_of(world).sql(f"SET lock_timeout = 100; {statement}")
    table_of(world).sql("INSERT INTO orders VALUES (7, 'of somebody else')")
    world.commit(plan, vote)
    assert world.target.ids() == [7, *world.ids_of(1)]


def test_nothing_is_held_behind_an_undelivered_number(make: Make) -> None:
    world = make(ORDERS, **PREPARED)
    plans = []
    for _ in range(3):
        plans.append(world.plan())
        world.predecessor = plans[-1].number
    votes = [world.prepare(plan) for plan in plans]
    assert [gid.number for gid in table_of(world).prepared(world)] == [1]
    deferred = [vote.notes.get("deferred", "") for vote in votes]
    assert not deferred[0] and all(f"checkpoint {before}" in deferred[before] for before in (1, 2))
    with raises(StoreBehindSinkError, "store_behind_sink", found=0, expected=1):
        world.commit(plans[1], votes[1])
    assert world.target.ids() == []
    for plan, vote in zip(plans, votes, strict=True):
        assert world.commit(plan, vote).detail.get("deferred", False) is (plan.number > 1)
        assert world.commit(plan, vote).outcome is Outcome.COMMITTED
    assert world.target.ids() == world.ids_of(1, 2, 3)
    assert table_of(world).sql("SELECT number, kind FROM airflow_ft_ledger WHERE branch = '' ORDER BY number") == [
        (each, "committed") for each in (1, 2, 3)
    ]


def test_a_number_that_waits_is_tried_and_aborted(make: Make) -> None:
    world = make(ORDERS, **PREPARED)
    first = world.plan()
    vote = world.prepare(first)
    world.predecessor = 1
    with raises(DeclinedError, "row_refused", row_number=3, sqlstate="23505"):
        world.prepare(world.plan(pa.table({"id": [1, 2, 2], "text": ["a", "b", "c"]})))
    same = world.plan_of(3, world.segment(3, world.table(world.ids_of(1)[0], 1)))
    started = time.monotonic()
    notes = quick(world).prepare(same, world.fence(1, world.attempt()))
    assert "deferred" in notes and time.monotonic() - started < 3
    assert world.participant(same).abort(same, world.fence(1, world.attempt()), {}).outcome is Outcome.ABORTED
    world.commit(first, vote)
    assert world.target.ids() == world.ids_of(1)


@pytest.mark.parametrize("late", [False, True], ids=["before", "meanwhile"])
def test_pipelines_hold_no_more_than_half_of_the_servers_places(
    make: Make, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    limit = int(table_of(make()).sql("SHOW max_prepared_transactions")[0][0])
    world = make(ORDERS, **PREPARED)
    others = [Gid(owner_of(OURS, f"other-{each}", "shop"), 1, 1, 1, "0001", "0" * 8) for each in range(limit // 2)]
    table = table_of(world)

    def fill() -> Any:
        for gid in others:
            table.sql(f"BEGIN; SELECT txid_current(); PREPARE TRANSACTION {gid.sql}")

    try:
        plan = world.plan()
        if late:
            copy = Session.copy
            monkeypatch.setattr(Session, "copy", lambda *args: (fill(), copy(*args))[1])
        else:
            fill()
        vote = world.prepare(plan)
        monkeypatch.undo()
        assert f"{limit // 2} of the server's {limit} " in vote.notes["deferred"]
        assert table.prepared(world) == []
        assert world.commit(plan, vote).detail["deferred"] and world.target.ids() == world.ids_of(1)
    finally:
        for gid in others:
            table.sql(f"ROLLBACK PREPARED {gid.sql}")


def test_a_refused_row_leaves_nothing_prepared(make: Make) -> None:
    world = make(ORDERS, **PREPARED)
    plan = world.plan(pa.table({"id": [1, 2, 2], "text": ["a", "b", "c"]}))
    with raises(DeclinedError, "row_refused", row_number=3, sqlstate="23505"):
        world.prepare(plan)
    assert table_of(world).prepared(world) == []
    late = world.plan(pa.table({"id": [1], "text": ["a"]}))
    table_of(world).sql("ALTER TABLE orders ADD CHECK (id > 1) NOT VALID")
    with raises(DeclinedError, "row_refused", sqlstate="23514"):
        world.prepare(late)
    assert world.participant(late).abort(late, world.fence(1, world.attempt()), {}).outcome is Outcome.ABORTED


def test_a_commit_needs_the_vote(make: Make) -> None:
    world = make(ORDERS, **PREPARED)
    plan = world.plan()
    world.prepare(plan)
    with raises(TerminalError, "vote_missing"):
        world.commit(plan, None)


@pytest.mark.parametrize("late", [False, True], ids=["before", "meanwhile"])
def test_rows_are_sent_after_the_decision_if_no_place_is_free(
    own_server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    server = own_server(Postgres, max_prepared_transactions=1)
    with Database.fresh(server) as database:
        world = World(Table(database, ORDERS, **PREPARED), tmp_path)

        def fill() -> None:
            database.sql("BEGIN; SELECT txid_current(); PREPARE TRANSACTION 'of somebody else'")

        plan = world.plan()
        if late:
            copy = Session.copy
            monkeypatch.setattr(Session, "copy", lambda *args: (fill(), copy(*args))[1])
        else:
            fill()
        vote = world.prepare(plan)
        monkeypatch.undo()
        assert "all 1 " in vote.notes["deferred"]
        assert world.commit(plan, vote).detail["deferred"] and world.target.ids() == world.ids_of(1)
        database.sql("ROLLBACK PREPARED 'of somebody else'")
        world.predecessor = plan.number
        assert "deferred" not in world.prepare(world.plan()).notes


# --- by hand -------------------------------------------------------------------------------------------------------


def test_rows_rolled_back_by_hand_are_delivered_from_the_log(make: Make) -> None:
    world = make(ORDERS, **PREPARED)
    plan = world.plan()
    vote = world.prepare(plan)
    hand(world, "ROLLBACK")
    proof = world.commit(plan, vote)
    assert proof.detail["redelivered"] and world.target.ids() == world.ids_of(1)
    again = world.commit(plan, vote)
    assert again.detail["redelivered"] and world.target.ids() == world.ids_of(1)


def test_what_is_delivered_from_the_log_may_be_set_aside(make: Make) -> None:
    world = make(ORDERS, **PREPARED)
    plan = world.plan()
    vote = world.prepare(plan)
    hand(world, "ROLLBACK")
    table_of(world).sql("INSERT INTO orders VALUES (50, 'of somebody else')")
    with raises(DeclinedError, "row_refused", row_number=11, sqlstate="23505"):
        world.commit(plan, vote)
    proof = world.commit(plan, vote, set_aside=True)
    assert proof.counts[SINK] == 39 and world.target.ids() == world.ids_of(1)


def test_rows_committed_by_hand_are_reported_and_not_sent_again(make: Make) -> None:
    world = make(ORDERS, **PREPARED)
    plan = world.plan()
    participant = world.participant(plan)
    assert participant.heuristic(plan) == "", "it has no ledger yet"
    world.prepare(plan)
    assert participant.heuristic(plan) == ""
    hand(world, "COMMIT")
    heuristic = participant.heuristic(plan)
    assert "COMMIT PREPARED" in heuristic and "40 rows are visible in orders" in heuristic
    shown = heuristic.partition("run: ")[2].partition(";")[0]
    assert [row[:2] for row in table_of(world).sql(shown)] == [("0001", "committed")]
    vote = world.prepare(plan)  # nothing is prepared a second time
    assert table_of(world).prepared(world) == []
    assert world.commit(plan, vote).outcome is Outcome.COMMITTED
    assert world.target.ids() == world.ids_of(1)


def test_rows_committed_by_hand_halt_an_abort_until_deleted(make: Make) -> None:
    world = make(ORDERS, **PREPARED)
    plan = world.plan()
    world.prepare(plan)
    hand(world, "COMMIT")
    for _ in range(2):
        with raises(AbortedHeuristicCommitError, "heuristic_commit_aborted") as raised:
            world.participant(plan).abort(plan, world.fence(1, world.attempt()), {})
    delete = delete_in(str(raised.error))
    table_of(world).sql(f"BEGIN; DELETE FROM orders; {delete}; COMMIT")
    assert world.participant(plan).abort(plan, world.fence(1, world.attempt()), {}).outcome is Outcome.ABORTED
    world.deliver(world.plan())
    assert world.target.ids() == world.ids_of(2)


def test_what_is_committed_by_hand_out_of_its_turn_waits_for_it(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    world = make(ORDERS, **PREPARED)
    first, votes = world.plan(), []
    votes.append(world.prepare(first))
    world.predecessor = 1
    second = world.plan()
    monkeypatch.setattr(PreparedParticipant, "_waits", lambda *_: "")  # prepared although the first one waits
    votes.append(world.prepare(second))
    table_of(world).sql(f"COMMIT PREPARED {table_of(world).prepared(world)[1].sql}")
    with raises(StoreBehindSinkError, "store_behind_sink"):  # visible, but nothing proves it before its turn (I4)
        world.commit(second, votes[1])
    assert world.participant(second).proof(second) is None
    world.commit(first, votes[0])
    assert "redelivered" not in world.commit(second, votes[1]).detail
    assert world.target.ids() == world.ids_of(1, 2)


@pytest.mark.parametrize("key", ["PRIMARY KEY", ""], ids=["keyed", "without a key"])
def test_a_branch_committed_during_its_redelivery_is_read(
    make: Make, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    world = make(f"CREATE TABLE orders (id bigint {key}, text text)", **PREPARED)
    plan = world.plan()
    vote = world.prepare(plan)
    seen = PreparedParticipant._visible

    def early(self: Any, *args: Any) -> Any:
        """A first look, and then the commit."""
        monkeypatch.setattr(PreparedParticipant, "_visible", seen)
        found = seen(self, *args)
        hand(world, "COMMIT")
        return found

    monkeypatch.setattr(PreparedParticipant, "_end_branch", lambda *_: None)  # as if rolled back
    monkeypatch.setattr(PreparedParticipant, "_visible", early)
    with raises(SinkUnavailableError, "marker_taken", branch="0001"):
        world.commit(plan, vote)
    assert "redelivered" not in world.commit(plan, vote).detail
    assert sorted(world.target.ids()) == world.ids_of(1)


# --- zombies and deaths ----------------------------------------------------------------------------------------------


def settle(world: World, plan: Plan, action: str) -> None:
    """What a successor does while another attempt stands still, or has died."""
    if action == "abort":
        for _ in range(2):
            fence = world.fence(1, world.attempt())
            proof = quick(world, plan.participants[0]).abort(plan, fence, {"message": "a test"})
            assert proof.outcome is Outcome.ABORTED
    else:
        vote = prepare(world, plan, world.attempt())
        fence = world.fence(1, world.attempt())
        quick(world, plan.participants[0]).commit(plan, fence, vote)


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("action", ["deliver", "abort"])
def test_a_zombie_that_prepares_late_leaves_nothing_prepared(
    make: Make, monkeypatch: pytest.MonkeyPatch, action: str, before: bool
) -> None:
    """It stands still at each of its statements, before and after which its successor settles the number."""
    world = make(ORDERS, **PREPARED)
    expected: list[int] = []
    at, struck = 1, 0
    while True:
        plan = world.plan()
        old = world.attempt()
        statement = AtStatement(at, before, lambda plan=plan: settle(world, plan, action))  # type: ignore[misc]
        with monkeypatch.context() as patch, suppress(TransientError):
            statement.install(patch)
            prepare(world, plan, old)
        if action == "deliver" and statement.struck:
            world.predecessor, expected = plan.number, sorted([*expected, *world.ids_of(plan.number)])
        assert world.target.ids() == expected, statement.struck
        if not statement.struck:
            break
        with suppress(FencedError):  # the zombie tries on
            prepare(world, plan, old)
        settle(world, plan, "abort") if action == "abort" else None
        assert table_of(world).prepared(world) == [], statement.struck
        assert world.target.ids() == expected, statement.struck
        struck, at = struck + 1, at + stride(4)
    assert struck > 5


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("action", ["deliver", "abort", "commit"])
def test_a_death_at_any_statement_is_repaired_by_a_successor(
    make: Make, monkeypatch: pytest.MonkeyPatch, action: str, before: bool
) -> None:
    world = make(ORDERS, **PREPARED)
    expected: list[int] = []
    at, died = 1, 0
    while True:
        plan = world.plan()
        attempt = world.attempt()
        vote = prepare(world, plan, attempt) if action == "commit" else None
        statement = AtStatement(at, before)
        with monkeypatch.context() as patch, suppress(Death):
            statement.install(patch)
            if action == "commit":
                quick(world, plan.participants[0]).commit(plan, world.fence(1, world.attempt()), vote)
            else:
                prepare(world, plan, attempt)
        both = sorted([*expected, *world.ids_of(plan.number)])
        assert world.target.ids() in ((expected, both) if action == "commit" else (expected,)), statement.struck
        if action == "commit":
            quick(world, plan.participants[0]).commit(plan, world.fence(1, world.attempt()), vote)
        else:
            settle(world, plan, action)
        if action != "abort":
            world.predecessor, expected = plan.number, both
        assert world.target.ids() == expected and table_of(world).prepared(world) == [], statement.struck
        if not statement.struck:
            break
        died, at = died + 1, at + stride(4)
    assert died > 2


def test_an_older_attempt_rolls_back_nothing_of_a_newer_one(make: Make) -> None:
    world = make(ORDERS, **PREPARED)
    plan = world.plan()
    vote = prepare(world, plan, 5)
    for old in (world.fence(1, 4), world.fence(0, 9)):
        for action in ("prepare", "abort"):
            with pytest.raises(FencedError):
                participant = quick(world)
                participant.prepare(plan, old) if action == "prepare" else participant.abort(plan, old, {})
    assert [gid.rank for gid in table_of(world).prepared(world)] == [(1, 5)]
    quick(world).commit(plan, world.fence(1, 6), vote)
    assert world.target.ids() == world.ids_of(1)


@pytest.mark.parametrize("lost", ["PREPARE TRANSACTION", "COMMIT PREPARED"])
def test_an_answer_that_is_lost_ends_in_one_delivery(make: Make, monkeypatch: pytest.MonkeyPatch, lost: str) -> None:
    world = make(ORDERS, **PREPARED)
    plan = world.plan()
    run, seen = Session.run, []

    def lose(session: Session, sql: str, args: Any = None) -> Any:
        found = run(session, sql, args)
        if sql.startswith(lost) and not seen:
            seen.append(sql)
            session.close()
            return run(session, "SELECT 1")
        return found

    monkeypatch.setattr(Session, "run", lose)
    vote = prepare(world, plan, 1)
    assert len(table_of(world).prepared(world)) == 1
    quick(world).commit(plan, world.fence(1, 2), vote)
    assert seen and world.target.ids() == world.ids_of(1) and table_of(world).prepared(world) == []


def test_a_zombie_that_prepares_a_pruned_number_leaves_nothing(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The place of its marker is free again then: only the head tells."""
    world = make(ORDERS, **PREPARED)
    at, struck = 1, 0
    while True:
        plan = world.plan()
        old = world.attempt()

        def settle_and_prune(plan: Plan = plan) -> None:
            settle(world, plan, "deliver")
            quick(world, plan.participants[0]).forget(world.fence(1, 0), plan.number)

        statement = AtStatement(at, True, settle_and_prune)
        with monkeypatch.context() as patch, suppress(TransientError):
            statement.install(patch)
            prepare(world, plan, old)
        if not statement.struck:
            break
        assert table_of(world).prepared(world) == [], statement.struck
        world.predecessor = plan.number
        assert world.target.ids() == world.ids_of(*range(1, plan.number + 1)), statement.struck
        struck, at = struck + 1, at + stride(2)
    assert struck > 10


@pytest.mark.slow
def test_a_zombie_rolls_back_nothing_that_its_successor_prepared(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """It stands still between any two of its statements while the successor votes."""
    world = make(ORDERS, **PREPARED)
    at, struck = 1, 0
    while True:
        plan = world.plan()
        old, votes = world.attempt(), list[Vote]()

        def vote(plan: Plan = plan, votes: list[Vote] = votes) -> None:
            votes.append(prepare(world, plan, world.attempt()))

        statement = AtStatement(at, True, vote)
        with monkeypatch.context() as patch, suppress(TransientError):
            statement.install(patch)
            prepare(world, plan, old)
        if not statement.struck:
            break
        [gid] = table_of(world).prepared(world)
        assert gid.attempt == votes[0].prepared, statement.struck
        proof = quick(world, plan.participants[0]).commit(plan, world.fence(1, world.attempt()), votes[0])
        assert "redelivered" not in proof.detail, statement.struck
        world.predecessor = plan.number
        struck, at = struck + 1, at + 1
    assert struck > 20 and world.target.ids() == world.ids_of(*range(1, struck + 1))


def test_the_number_delivered_last_outlives_its_marker(make: Make) -> None:
    world = make(ORDERS, **PREPARED)
    for _ in range(2):
        world.deliver(world.plan())
    participant = quick(world)
    participant.forget(world.fence(1, 0), 2)
    assert table_of(world).sql("SELECT count(*) FROM airflow_ft_ledger") == [(0,)]
    head = participant.head(world.pipeline)
    assert head is not None and head.number == 2
    world.deliver(world.plan())
    assert world.target.ids() == world.ids_of(1, 2, 3)


# --- former owners ---------------------------------------------------------------------------------------------------


def left_prepared(world: World) -> Plan:
    """Number 1 is delivered, and number 2 prepared, by a decision log that is lost."""
    world.deliver(world.plan())
    plan = world.plan()
    world.prepare(plan)
    return plan


@pytest.mark.parametrize("ending", PreparedEnding)
def test_a_former_owners_branches_end_as_a_person_decides(make: Make, ending: PreparedEnding) -> None:
    world = make(ORDERS, **PREPARED)
    plan = left_prepared(world)
    participant = world.participant(plan)
    assert participant.orphans(world.pipeline, OURS) == []
    [orphan] = participant.orphans(world.pipeline, THEIRS)
    assert (orphan.number, orphan.kind, orphan.installation) == (2, OrphanKind.PREPARED, OURS)
    with raises(StateConflictError, "prepared_undecided", found=1):
        participant.end_orphans(world.fence(5, 1, THEIRS), None)
    for attempt in (2, 3):
        participant.end_orphans(world.fence(5, attempt, THEIRS), ending)
    assert table_of(world).prepared(world) == []
    delivered = (1, 2) if ending is PreparedEnding.COMMIT else (1,)
    assert world.target.ids() == world.ids_of(*delivered)
    head = participant.head(world.pipeline)
    assert head is not None and (head.installation, head.number) == (OURS, 1)
    left = [(each.number, each.branch, each.kind, each.of) for each in participant.orphans(world.pipeline, THEIRS)]
    assert left == ([(2, "0001", OrphanKind.COMMITTED, 1)] if ending is PreparedEnding.COMMIT else [])
    participant.adopt(world.fence(5, 4, THEIRS), 2)
    world.predecessor = 2
    following = world.plan_of(3, world.segment(3, world.table(3 * 40)), installation=THEIRS)
    world.commit(following, world.prepare(following, epoch=5), epoch=5)
    assert world.target.ids() == world.ids_of(*delivered, 3)


@pytest.mark.parametrize("ending", PreparedEnding)
def test_a_lost_head_is_read_from_the_markers(make: Make, ending: PreparedEnding) -> None:
    world = make(ORDERS, **PREPARED)
    plan = left_prepared(world)
    table_of(world).sql("DELETE FROM airflow_ft_head")
    participant = world.participant(plan)
    assert participant.head(world.pipeline) == SinkHead(OURS, 1, 1, lost=True)
    [orphan] = participant.orphans(world.pipeline, THEIRS)
    assert (orphan.number, orphan.kind) == (2, OrphanKind.PREPARED), "and number 1 is no orphan"
    participant.end_orphans(world.fence(5, 1, THEIRS), ending)
    participant.adopt(world.fence(5, 2, THEIRS), 2)
    assert participant.head(world.pipeline) == SinkHead(THEIRS, 5, 2)
    delivered = (1, 2) if ending is PreparedEnding.COMMIT else (1,)
    assert world.target.ids() == world.ids_of(*delivered) and table_of(world).prepared(world) == []


def test_a_settled_branch_is_not_committed_without_a_head(make: Make) -> None:
    world = make(ORDERS, **PREPARED)
    plan = left_prepared(world)
    table = table_of(world)
    table.sql("UPDATE airflow_ft_ledger SET number = 3 WHERE branch = ''")  # as if 2 was pruned, and came back
    table.sql("DELETE FROM airflow_ft_head")
    participant = world.participant(plan)
    assert participant.orphans(world.pipeline, THEIRS) == []
    participant.end_orphans(world.fence(5, 1, THEIRS), PreparedEnding.COMMIT)
    assert table.prepared(world) == [] and world.target.ids() == world.ids_of(1)


def test_the_statements_that_are_told_end_it(make: Make) -> None:
    world = make(ORDERS, **PREPARED)
    plan = left_prepared(world)
    [orphan] = world.participant(plan).orphans(world.pipeline, THEIRS)
    table_of(world).sql(orphan.roll_back)
    assert world.participant(plan).orphans(world.pipeline, THEIRS) == []
    assert orphan.commit.startswith("COMMIT PREPARED")


def test_a_delivery_blocked_by_a_former_owners_rows_stops(make: Make) -> None:
    world = make(ORDERS, **PREPARED)
    left_prepared(world)
    world.participant(world.plan_of(3)).adopt(world.fence(5, 1, THEIRS), 1)
    world.predecessor = 1
    same = world.plan_of(2, world.segment(2, world.table(2 * 40)), installation=THEIRS)
    with raises(ForeignOwnerError, "prepared_foreign", installation=OURS, checkpoints=[2]) as raised:
        quick(world, same.participants[0]).prepare(same, world.fence(5, 2, THEIRS))
    assert raised.error is not None and "airflow ft adopt" in raised.error.remedy
    assert len(table_of(world).prepared(world)) == 1, "nobody but a person ends it"
    participant = world.participant(same)
    with raises(FencedError, "fenced", head_epoch=5):  # another adoption has gone further
        participant.end_orphans(world.fence(4, 9, THEIRS), PreparedEnding.COMMIT, make_way=True)
    assert len(table_of(world).prepared(world)) == 1
    participant.end_orphans(world.fence(5, 3, THEIRS), PreparedEnding.ROLLBACK, make_way=True)
    world.commit(same, world.prepare(same, 4, epoch=5), 5, epoch=5)
    assert world.target.ids() == world.ids_of(1, 2)


def test_a_forgotten_number_leaves_nothing_prepared(make: Make) -> None:
    """The server was restored as it was before it committed 2, and a person has adopted it; 3 waits for its turn."""
    world = make(ORDERS, **PREPARED)
    left_prepared(world)
    world.predecessor = 2
    plan = world.plan_of(3, world.segment(3, world.table(3 * 40)))
    vote = world.prepare(plan)
    world.participant(plan).adopt(world.fence(2, 0), 2)
    world.commit(plan, vote, epoch=2)
    assert table_of(world).prepared(world) == [] and world.target.ids() == world.ids_of(1, 3)


def test_a_forgotten_numbers_branches_do_not_block_its_rows(make: Make) -> None:
    world = make(ORDERS, **PREPARED)
    left_prepared(world)
    world.predecessor = 2
    plan = world.plan_of(3, world.segment(3, world.table(2 * 40)))
    world.participant(plan).adopt(world.fence(2, 0), 2)
    world.commit(plan, world.prepare(plan, epoch=2), epoch=2)
    assert table_of(world).prepared(world) == [] and world.target.ids() == world.ids_of(1, 2)


def test_prepared_transactions_of_others_are_left_alone(make: Make) -> None:
    world = make(ORDERS, **PREPARED)
    table = table_of(world)
    table.sql("BEGIN; SELECT txid_current(); PREPARE TRANSACTION 'of somebody else'")
    other = World(table, world.folder, "another")
    plan = other.plan_of(1, other.segment(1, other.table(7 * 40)))
    other.prepare(plan)
    world.deliver(world.plan())
    aborted = world.plan()
    world.prepare(aborted)
    world.participant(aborted).abort(aborted, world.fence(1, world.attempt()), {})
    assert len(table.sql("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()")) == 2
    assert len(table.prepared(other)) == 1
    table.sql("ROLLBACK PREPARED 'of somebody else'")
    other.close()


def test_a_checkpoint_with_a_wrong_row_count_is_not_prepared(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    world = make(ORDERS, **PREPARED)
    plan = world.plan()
    monkeypatch.setattr(load.Load, "all", lambda self: 39)
    with raises(SinkUnavailableError, "row_count_mismatch", found={SINK: 39}, expected={SINK: 40}):
        world.prepare(plan)
    assert table_of(world).prepared(world) == []
