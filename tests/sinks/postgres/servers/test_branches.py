"""`prepared` with several branches, in one process and in several: deaths, sleepers, lost answers (I2, I3, I5, I7)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import psycopg2
import pyarrow as pa
import pytest

from airflow_ft.protocol.errors import (
    AbortedHeuristicCommitError,
    DeclinedError,
    FencedError,
    SinkUnavailableError,
    StoreBehindSinkError,
    TransientError,
)
from airflow_ft.protocol.model import Plan
from airflow_ft.protocol.orphans import OrphanKind, PreparedEnding, partly_there
from airflow_ft.protocol.participant import Branching
from airflow_ft.protocol.votes import Outcome, Proof, Vote
from airflow_ft.sinks.base import slices
from airflow_ft.sinks.base.prepared import owner_of
from airflow_ft.sinks.postgres.failures import Unanswered
from airflow_ft.sinks.postgres.gid import Gid, label_of
from airflow_ft.sinks.postgres.ledger import Ledger
from airflow_ft.sinks.postgres.prepared import PreparedParticipant
from airflow_ft.sinks.postgres.session import Session
from airflow_ft.testing.world import OURS, SINK, THEIRS, World
from tests.density import stride
from tests.raising import raises
from tests.sinks.postgres.conftest import Make
from tests.sinks.postgres.deaths import AtStatement, Death
from tests.sinks.postgres.world import QUICK, quick, table_of

pytestmark = [pytest.mark.server, pytest.mark.sampled]

ORDERS = "CREATE TABLE orders (id bigint, text text)"  # no unique key: only the markers help
LABELS = ["0001", "0002", "0003"]
Notes = Mapping[str, Any]


@pytest.fixture(autouse=True)
def small_branches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "MIN_ROWS", 2)


@pytest.fixture
def world(make: Make) -> World:
    return make(ORDERS, strategy="prepared", branches=3)


def sink(world: World, plan: Plan) -> Branching:
    participant = quick(world, plan.participants[0])
    assert isinstance(participant, Branching)
    return participant


def prepare(world: World, plan: Plan, attempt: int) -> Notes:
    return quick(world, plan.participants[0]).prepare(plan, world.fence(1, attempt))


def announce(world: World, plan: Plan, attempt: int) -> Notes:
    return sink(world, plan).announce(plan, world.fence(1, attempt))


def load(world: World, plan: Plan, attempt: int, notes: Notes, *branches: str) -> None:
    for branch in branches or LABELS:
        assert sink(world, plan).load(plan, world.fence(1, attempt), notes, branch)


def conclude(world: World, plan: Plan, attempt: int, notes: Notes) -> Notes:
    voted = sink(world, plan).conclude(plan, world.fence(1, attempt), notes)
    assert voted is not None
    return voted


def commit(world: World, plan: Plan, notes: Notes, voted: int) -> Proof:
    vote = Vote("shop", voted, voted, None, dict(notes))
    proof = quick(world, plan.participants[0]).commit(plan, world.fence(1, world.attempt()), vote)
    assert proof.outcome is Outcome.COMMITTED and proof.counts == {SINK: 40}
    world.predecessor = plan.number
    return proof


def abort(world: World, plan: Plan) -> None:
    proof = quick(world, plan.participants[0]).abort(plan, world.fence(1, world.attempt()), {"message": "a test"})
    assert proof.outcome is Outcome.ABORTED


def prepared(world: World) -> list[tuple[int, str]]:
    return [(gid.attempt, gid.branch) for gid in table_of(world).prepared(world)]


# --- one process -----------------------------------------------------------------------------------------------------


def test_prepared_branches_become_visible_with_one_proof(world: World) -> None:
    plan = world.plan()
    attempt = world.attempt()
    notes = prepare(world, plan, attempt)
    assert notes["branches"] == {"0001": {SINK: 13}, "0002": {SINK: 13}, "0003": {SINK: 14}}
    assert prepared(world) == [(attempt, label) for label in LABELS] and world.target.ids() == []
    proof = commit(world, plan, notes, attempt)
    assert proof.detail["branches"] == notes["branches"] and "redelivered" not in proof.detail
    assert world.target.ids() == world.ids_of(1) and prepared(world) == []
    markers = table_of(world).sql("SELECT branch, kind FROM airflow_ft_ledger ORDER BY branch")
    assert markers == [(branch, "committed") for branch in ("", *LABELS)]
    assert commit(world, plan, notes, attempt) == proof


def test_a_commit_between_two_branches_is_finished(world: World) -> None:
    """COMMIT PREPARED of the first one is what a process that died has left."""
    plan = world.plan()
    attempt = world.attempt()
    notes = prepare(world, plan, attempt)
    table_of(world).sql(f"COMMIT PREPARED {table_of(world).prepared(world)[0].sql}")
    assert len(world.target.ids()) == 13 and quick(world).proof(plan) is None
    proof = commit(world, plan, notes, attempt)
    assert "redelivered" not in proof.detail and world.target.ids() == world.ids_of(1)


def test_only_the_branch_rolled_back_by_hand_is_delivered_again(world: World) -> None:
    plan = world.plan()
    attempt = world.attempt()
    notes = prepare(world, plan, attempt)
    table_of(world).sql(f"ROLLBACK PREPARED {table_of(world).prepared(world)[1].sql}")
    proof = commit(world, plan, notes, attempt)
    assert proof.detail["redelivered"] == ["0002"] and world.target.ids() == world.ids_of(1)


def test_a_refused_row_leaves_no_branch_prepared(world: World) -> None:
    plan = world.plan()
    table_of(world).sql(f"ALTER TABLE orders ADD CHECK (id <> {world.ids_of(1)[20]})")
    with raises(DeclinedError, "row_refused", sqlstate="23514"):
        prepare(world, plan, world.attempt())
    assert prepared(world) == []
    abort(world, plan)
    assert world.target.ids() == []


def test_a_key_in_two_branches_is_reported_and_leaves_no_lock(make: Make) -> None:
    world = make("CREATE TABLE orders (id bigint UNIQUE, text text)", strategy="prepared", branches=2)
    plan = world.plan(pa.table({"id": [1, 2, 3, 1], "text": ["a", "b", "c", "d"]}))
    attempt = world.attempt()
    with raises(SinkUnavailableError, "lock_timeout") as raised:
        quick(world, head_wait=1.0).prepare(plan, world.fence(1, attempt))
    assert raised.error is not None and "branches=1" in raised.error.remedy
    assert prepared(world) == []
    table_of(world).sql("ALTER TABLE orders ADD COLUMN note text")  # nothing keeps it out


@contextmanager
def two_places_left(world: World) -> Iterator[None]:
    """Other pipelines have prepared."""
    table = table_of(world)
    limit = int(table.sql("SHOW max_prepared_transactions")[0][0])
    others = [Gid(owner_of(OURS, f"other-{each}", "shop"), 1, 1, 1, "0001", "0" * 8) for each in range(limit // 2 - 2)]
    try:
        for gid in others:
            table.sql(f"BEGIN; SELECT txid_current(); PREPARE TRANSACTION {gid.sql}")
        yield
    finally:
        for gid in others:
            table.sql(f"ROLLBACK PREPARED {gid.sql}")


def test_branches_that_find_no_room_are_sent_after_the_decision(world: World) -> None:
    plan = world.plan()
    attempt = world.attempt()
    with two_places_left(world):
        assert announce(world, plan, attempt) == {}  # it has three branches
        notes = prepare(world, plan, attempt)
        assert notes["deferred"] and prepared(world) == []
        proof = commit(world, plan, notes, attempt)
    assert proof.detail["deferred"] and world.target.ids() == world.ids_of(1)


def test_rows_that_refer_to_each_other_need_one_transaction(make: Make) -> None:
    """Branches decline them; without room for branches, one transaction sends them after the decision."""
    key = "parent bigint REFERENCES orders DEFERRABLE INITIALLY DEFERRED"
    world = make(f"CREATE TABLE orders (id bigint PRIMARY KEY, {key})", strategy="prepared", branches=3)
    plan = world.plan(pa.table({"id": [1, 2, 3, 4, 5, 6], "parent": [6, 5, 4, 3, 2, 1]}))
    with raises(DeclinedError, "row_refused", sqlstate="23503"):  # no branch has all that it needs
        prepare(world, plan, world.attempt())
    with two_places_left(world):
        attempt = world.attempt()
        vote = Vote("shop", attempt, attempt, None, dict(prepare(world, plan, attempt)))
        proof = quick(world).commit(plan, world.fence(1, world.attempt()), vote)
    assert proof.counts == {SINK: 6} and world.target.ids() == [1, 2, 3, 4, 5, 6]


def test_a_branch_committed_by_hand_counts_and_halts_an_abort(world: World) -> None:
    plan = world.plan()
    prepare(world, plan, world.attempt())
    table_of(world).sql(f"COMMIT PREPARED {table_of(world).prepared(world)[0].sql}")
    text = quick(world).heuristic(plan)
    assert "0001 of 3" in text and "13 rows are visible in orders" in text
    with raises(AbortedHeuristicCommitError, "heuristic_commit_aborted"):
        abort(world, plan)
    attempt = world.attempt()
    notes = prepare(world, plan, attempt)
    assert notes["heuristic"] == ["0001"] and prepared(world) == [(attempt, "0002"), (attempt, "0003")]
    assert "redelivered" not in commit(world, plan, notes, attempt).detail
    assert world.target.ids() == world.ids_of(1) and quick(world).heuristic(plan) == ""


def test_an_abort_meets_a_branch_that_is_committed_meanwhile(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was prepared after the abort had listed the branches."""
    plan = world.plan()
    prepare(world, plan, world.attempt())
    monkeypatch.setattr(PreparedParticipant, "_roll_back", lambda *_, **__: None)
    write = Ledger.write_marker

    def commit_first(self: Ledger, *given: Any) -> None:
        table_of(world).sql(f"COMMIT PREPARED {table_of(world).prepared(world)[0].sql}")
        write(self, *given)

    with monkeypatch.context() as patch, raises(AbortedHeuristicCommitError, "heuristic_commit_aborted"):
        patch.setattr(Ledger, "write_marker", commit_first)
        abort(world, plan)
    markers = table_of(world).sql("SELECT branch, kind FROM airflow_ft_ledger")
    assert markers == [("0001", "committed")], "no tombstone beside visible rows"


@pytest.mark.parametrize("ending", PreparedEnding)
def test_half_committed_branches_of_a_former_owner_are_ended(world: World, ending: PreparedEnding) -> None:
    world.deliver(world.plan())
    plan = world.plan()
    prepare(world, plan, world.attempt())
    table_of(world).sql(f"COMMIT PREPARED {table_of(world).prepared(world)[0].sql}")
    participant = world.participant(plan)
    found = participant.orphans(world.pipeline, THEIRS)
    kinds = [OrphanKind.COMMITTED, OrphanKind.PREPARED, OrphanKind.PREPARED]
    assert [(each.branch, each.kind) for each in found] == list(zip(LABELS, kinds, strict=True))
    assert partly_there(found, ending) == ([] if ending is PreparedEnding.COMMIT else [2])
    participant.end_orphans(world.fence(5, 1, THEIRS), ending)
    assert prepared(world) == []
    whole = [*world.ids_of(1, 2)]
    assert world.target.ids() == (whole if ending is PreparedEnding.COMMIT else whole[:53])
    participant.adopt(world.fence(5, 2, THEIRS), 2)
    head = participant.head(world.pipeline)
    assert head is not None and (head.installation, head.number) == (THEIRS, 2)


# --- announced: several processes ------------------------------------------------------------------------------------


def test_branches_of_several_processes_become_visible_together(world: World) -> None:
    plan = world.plan()
    notes = announce(world, plan, 1)
    assert sink(world, plan).branches(plan) == LABELS and prepared(world) == []
    load(world, plan, 1, notes)
    load(world, plan, 1, notes)  # again: they are found
    assert prepared(world) == [(1, label) for label in LABELS] and world.target.ids() == []
    voted = conclude(world, plan, 1, notes)
    assert voted["branches"] == {"0001": {SINK: 13}, "0002": {SINK: 13}, "0003": {SINK: 14}}
    assert "redelivered" not in commit(world, plan, voted, 1).detail
    assert world.target.ids() == world.ids_of(1) and prepared(world) == []


def test_prepare_loads_what_no_task_has_loaded(world: World) -> None:
    plan = world.plan()
    attempt = world.attempt()
    notes = announce(world, plan, attempt)
    load(world, plan, attempt, notes, "0002")
    commit(world, plan, conclude(world, plan, attempt, notes), attempt)
    assert world.target.ids() == world.ids_of(1)


def test_an_announcement_of_an_older_attempt_does_nothing(world: World) -> None:
    plan = world.plan()
    old = world.attempt()
    notes = announce(world, plan, old)
    load(world, plan, old, notes, "0003")
    new = world.attempt()
    newer = announce(world, plan, new)
    assert prepared(world) == []  # a newer attempt has rolled it back
    assert sink(world, plan).load(plan, world.fence(1, old), notes, "0001") is False
    assert sink(world, plan).conclude(plan, world.fence(1, old), notes) is None
    assert prepared(world) == []
    commit(world, plan, conclude(world, plan, new, newer), new)
    assert world.target.ids() == world.ids_of(1)


@pytest.mark.parametrize("gone", [False, True], ids=["older", "gone"])
def test_a_sink_restored_after_the_announcement_gets_no_vote(world: World, gone: bool) -> None:
    """One row of the fence has attempt and last number: a fence that names the announcement has lost no delivery."""
    first = world.plan()
    attempt = world.attempt()
    commit(world, first, prepare(world, first, attempt), attempt)
    [backup] = table_of(world).sql("SELECT epoch, attempt FROM airflow_ft_head")
    second = world.plan()
    attempt = world.attempt()
    commit(world, second, prepare(world, second, attempt), attempt)
    third = world.plan()
    attempt = world.attempt()
    notes = announce(world, third, attempt)
    load(world, third, attempt, notes, "0001")
    for gid in table_of(world).prepared(world):
        table_of(world).sql(f"ROLLBACK PREPARED {gid.sql}")
    table_of(world).sql(
        "DELETE FROM airflow_ft_head" if gone else "UPDATE airflow_ft_head SET epoch = %s, attempt = %s,"
        " last_delivered = 1", *(() if gone else backup)
    )  # fmt: skip
    table_of(world).sql("DELETE FROM airflow_ft_ledger WHERE number = 2")
    if gone:
        with raises(StoreBehindSinkError, "ledger_lost"):
            sink(world, third).conclude(third, world.fence(1, attempt), notes)
    else:
        assert sink(world, third).conclude(third, world.fence(1, attempt), notes) is None
    demanding = replace(world.fence(1, world.attempt()), delivered=2)  # as the coordinator does it then
    with raises(StoreBehindSinkError, "ledger_lost" if gone else "store_behind_sink"):
        quick(world, third.participants[0]).prepare(third, demanding)
    assert prepared(world) == []


def test_a_refused_row_fails_its_branch_and_leaves_the_others(world: World) -> None:
    plan = world.plan()
    table_of(world).sql(f"ALTER TABLE orders ADD CHECK (id <> {world.ids_of(1)[20]})")
    attempt = world.attempt()
    notes = announce(world, plan, attempt)
    load(world, plan, attempt, notes, "0001", "0003")
    for step in (
        lambda: sink(world, plan).load(plan, world.fence(1, attempt), notes, "0002"),
        lambda: sink(world, plan).conclude(plan, world.fence(1, attempt), notes),
    ):
        with raises(DeclinedError, "row_refused"):
            step()
        assert prepared(world) == [(attempt, "0001"), (attempt, "0003")]  # a vote may count them
    abort(world, plan)
    assert prepared(world) == [] and world.target.ids() == []


@pytest.mark.parametrize("of", ["this attempt", "an older one"])
def test_a_load_ends_a_session_that_stopped_with_its_branch(world: World, of: str) -> None:
    plan = world.plan()
    attempt = world.attempt()
    notes = announce(world, plan, attempt)
    fence = world.fence(1, attempt)
    stopped = Session(table_of(world).connection, QUICK, label_of(fence, "shop", "0001"))
    if of == "an older one":
        attempt = world.attempt()
        notes = announce(world, plan, attempt)
    stopped.begin()
    stopped.run(
        "INSERT INTO airflow_ft_ledger (pipeline, participant, number, branch, installation, kind, epoch, attempt,"
        " digest, counts, detail) VALUES (%s, 'shop', 1, '0001', %s, 'committed', 1, %s, %s, '{}', '{}')",
        (world.pipeline, OURS, attempt, plan.digest),
    )
    load(world, plan, attempt, notes, "0001")
    with pytest.raises((psycopg2.Error, Unanswered)):
        stopped.run("PREPARE TRANSACTION 'late'")
    commit(world, plan, conclude(world, plan, attempt, notes), attempt)
    assert world.target.ids() == world.ids_of(1)


@pytest.mark.parametrize("lost", ["INSERT INTO", "COPY", "PREPARE TRANSACTION"])
def test_an_answer_that_is_lost_in_a_load_ends_in_one_branch(
    world: World, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    plan = world.plan()
    attempt = world.attempt()
    notes = announce(world, plan, attempt)
    seen: list[str] = []

    def losing(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(session: Session, sql: str, *args: Any) -> Any:
            found = method(session, sql, *args)
            if sql.lstrip().startswith(lost) and not seen:
                seen.append(sql)
                session.close()
                return session.value("SELECT 1")
            return found

        return call

    for name in ("run", "copy"):
        monkeypatch.setattr(Session, name, losing(getattr(Session, name)))
    load(world, plan, attempt, notes, "0002")
    assert seen and prepared(world) == [(attempt, "0002")]
    assert "redelivered" not in commit(world, plan, conclude(world, plan, attempt, notes), attempt).detail
    assert world.target.ids() == world.ids_of(1)


# --- zombies and deaths ----------------------------------------------------------------------------------------------


def others_deliver(world: World, plan: Plan, attempt: int, notes: Notes) -> None:
    """The next tries of the tasks: the same attempt."""
    load(world, plan, attempt, notes)
    commit(world, plan, conclude(world, plan, attempt, notes), attempt)


def a_newer_attempt_delivers(world: World, plan: Plan, attempt: int, notes: Notes) -> None:
    newer = world.attempt()
    commit(world, plan, prepare(world, plan, newer), newer)


def others_abort(world: World, plan: Plan, attempt: int, notes: Notes) -> None:
    abort(world, plan)


MEANWHILE = (others_deliver, a_newer_attempt_delivers, others_abort)


@pytest.mark.chaos
@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("meanwhile", MEANWHILE)
@pytest.mark.parametrize("step", ["announce", "load", "conclude", "prepare"])
def test_a_step_that_wakes_up_late_changes_nothing_others_did(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    meanwhile: Callable[[World, Plan, int, Notes], None],
    before: bool,
) -> None:
    expected: list[int] = []
    at, struck = 1, 0
    while True:
        plan = world.plan()
        attempt = world.attempt()
        announced = {"load", "conclude"} & {step}
        notes = announce(world, plan, attempt) if announced else {}
        rival = meanwhile
        if not announced and meanwhile is others_deliver:  # only an announced attempt has other tries of its own
            rival = a_newer_attempt_delivers

        def act(plan: Plan = plan, attempt: int = attempt, notes: Notes = notes, rival: Any = rival) -> None:
            rival(world, plan, attempt, notes)

        statement = AtStatement(at, before, act)
        with monkeypatch.context() as patch, suppress(TransientError):
            statement.install(patch)
            take(world, plan, attempt, step, notes)
        if statement.struck and rival is not others_abort:
            expected = sorted([*expected, *world.ids_of(plan.number)])
        assert world.target.ids() == expected, statement.struck
        if not statement.struck:
            break
        assert prepared(world) == [], statement.struck
        world.close()  # the server has a hundred connections for all of them
        struck, at = struck + 1, at + stride(5)
    assert struck > 2


@pytest.mark.chaos
@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("step", ["announce", "load", "conclude", "prepare", "commit", "abort"])
def test_a_step_that_dies_at_any_statement_is_made_good(
    world: World, monkeypatch: pytest.MonkeyPatch, step: str, before: bool
) -> None:
    expected: list[int] = []
    at, died = 1, 0
    while True:
        plan = world.plan()
        attempt = world.attempt()
        notes = announce(world, plan, attempt) if step in ("load", "conclude") else {}
        if step in ("commit", "abort"):
            notes = prepare(world, plan, attempt)
        statement = AtStatement(at, before)
        with monkeypatch.context() as patch, suppress(Death):
            statement.install(patch)
            take(world, plan, attempt, step, notes)
        if step != "commit":
            assert world.target.ids() == expected, statement.struck
        if step == "abort":
            abort(world, plan)
        else:
            if step in ("load", "conclude"):
                notes = conclude(world, plan, attempt, notes)
            elif step != "commit":
                attempt = world.attempt()
                notes = prepare(world, plan, attempt)
            proof = commit(world, plan, notes, attempt)
            assert "redelivered" not in proof.detail, statement.struck
            expected = sorted([*expected, *world.ids_of(plan.number)])
        assert world.target.ids() == expected and prepared(world) == [], statement.struck
        if not statement.struck:
            break
        world.close()
        died, at = died + 1, at + stride(5)
    assert died > 2


def take(world: World, plan: Plan, attempt: int, step: str, notes: Notes) -> None:
    """One step of a process."""
    fence = world.fence(1, attempt)
    if step == "commit":
        commit(world, plan, notes, attempt)
    elif step == "abort":
        abort(world, plan)
    elif step == "announce":
        sink(world, plan).announce(plan, fence)
    elif step == "load":
        sink(world, plan).load(plan, fence, notes, "0002")
    elif step == "conclude":
        sink(world, plan).conclude(plan, fence, notes)
    else:
        quick(world, plan.participants[0]).prepare(plan, fence)


def test_a_load_whose_epoch_is_over_is_fenced(world: World) -> None:
    plan = world.plan()
    attempt = world.attempt()
    notes = announce(world, plan, attempt)
    quick(world).prepare(plan, world.fence(2, world.attempt()))
    assert sink(world, plan).load(plan, world.fence(1, attempt), notes, "0001") is False
    with pytest.raises(FencedError):
        prepare(world, plan, attempt)
