"""What is in doubt, what the sinks say of it, and a person's acts, over a real decision log and model systems."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_ft.pipeline.checkpoints import Gate
from airflow_ft.protocol import resolution, steps
from airflow_ft.protocol.adoption import adopt
from airflow_ft.protocol.connections import missing_connection
from airflow_ft.protocol.coordinator import Coordinator, coordinating
from airflow_ft.protocol.doubt import Doubt, Finding, doubts
from airflow_ft.protocol.errors import (
    AirflowFtError,
    ConfigurationError,
    NotDeliveredError,
    QuarantinedError,
    SinkAccessError,
    SinkUnavailableError,
    StateConflictError,
    StoreBehindSinkError,
    TokenLostError,
)
from airflow_ft.protocol.failure import Failure
from airflow_ft.protocol.lease import LeaseKeeper, Worker, new_epoch
from airflow_ft.protocol.model import AfterAbort, CheckpointState, Promise, RunKey
from airflow_ft.protocol.pipelines import HaltReason, PipelineStatus
from airflow_ft.protocol.reasons import AbortReason
from airflow_ft.protocol.recovery import in_doubt, recover
from airflow_ft.protocol.resolution import Resolver
from airflow_ft.protocol.set_aside import of_checkpoint
from tests.protocol.systems import ModelParticipant, NoArchive, System, Systems
from tests.protocol.world import PIPELINE, RUN, Crash, World
from tests.raising import raises

S = CheckpointState
REFUSED = Failure("UnfitTargetError", "column_missing", "no column x.", "add x.")
LATER = RunKey("dag", "run-2")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    with closing(world.store):
        yield world


def decided(world: World, count: int = 1) -> list[int]:
    """`db` has committed and the log has not."""
    numbers = world.prepared(count)
    steps.commit_step(world.context(), "db")
    return numbers


def resolver(world: World, participants: Any = None) -> Resolver:
    return Resolver(
        world.store,
        PIPELINE,
        participants or Systems(world.systems),
        "a test by ada",
        Worker("", 1),
        lease_seconds=0.03,
    )


def found(world: World) -> list[Doubt]:
    return doubts(world.store, [row.name for row in world.store.pipelines()], Systems(world.systems))


def findings(world: World) -> dict[tuple[int, str], Finding]:
    return {(doubt.number, doubt.participant): doubt.evidence.finding for doubt in found(world)}


def state(world: World, number: int) -> CheckpointState:
    return world.store.checkpoint(PIPELINE, number).state


def event_text(world: World, number: int | None = None) -> str:
    return "\n".join(event.message for event in world.store.events(PIPELINE, number, 1000))


# --- listing ------------------------------------------------------------------------------------------------------


def test_what_is_settled_or_only_staged_is_not_in_doubt(world: World) -> None:
    world.stage(1)
    assert found(world) == []
    world.steps(world.context())
    assert found(world) == []


def test_each_sink_of_each_number_is_told_with_how_it_is_known(world: World) -> None:
    decided(world, 2)
    assert findings(world) == {
        (1, "db"): Finding.DELIVERED,
        (1, "log"): Finding.ABSENT,
        (2, "db"): Finding.DELIVERED,
        (2, "log"): Finding.WAITING,
    }
    first, second, *_ = found(world)
    assert (first.state, first.evidence.text) == (
        "COMMITTING",
        "committed by epoch 1, as recorded in the decision log",
    )
    assert "it has delivered nothing" in second.evidence.text
    assert timedelta(0) <= first.age < timedelta(minutes=5)


def test_a_delivery_unknown_to_the_log_is_read_from_the_marker(world: World) -> None:
    world.prepared()
    row = world.store.checkpoint(PIPELINE, 1)
    assert row.plan is not None
    with new_epoch(world.store, PIPELINE, Worker("a", 9), "a test", 0.03) as (epoch, _):
        attempt = world.store.begin_attempt(PIPELINE, epoch, 1, "db")
        fence = Coordinator(world.store, PIPELINE, epoch, Systems(world.systems))._fence(attempt)
        Systems(world.systems)(row.plan.participant("db")).commit(row.plan, fence)
    [db, _] = found(world)
    assert (db.state, db.evidence.finding) == ("PREPARED", Finding.DELIVERED)
    assert db.evidence.text.startswith(f"marker: committed by epoch {epoch} (10 rows into rows)")


def test_a_sink_that_does_not_answer_is_asked_once_and_said(world: World) -> None:
    world.prepared(3)
    asked = []

    def participants(plan: Any) -> Any:
        if plan.name == "log":
            asked.append(plan)
            raise SinkUnavailableError("no broker answers.")
        return Systems(world.systems)(plan)

    listed = doubts(world.store, [PIPELINE], participants)
    assert [d.evidence.finding for d in listed if d.participant == "log"] == [Finding.UNKNOWN] * 3
    assert "not known, the sink cannot be read: no broker answers." in listed[1].evidence.text
    assert len(asked) == 1


def test_contradictions_are_told_as_such(world: World) -> None:
    world.prepared()
    world.systems["db"].last = 7
    world.systems["log"].token_is_gone = True
    assert findings(world) == {(1, "db"): Finding.CONTRADICTION, (1, "log"): Finding.ABSENT}
    world.store.halt(PIPELINE, HaltReason.STORE_BEHIND_SINK, "its last number is 7.")
    halted = found(world)[0]
    assert (halted.number, halted.state) == (0, "HALTED (STORE_BEHIND_SINK)")
    assert (halted.evidence.text, halted.last_error_code) == ("its last number is 7.", "store_behind_sink")
    assert "airflow ft resume" in halted.advice


@pytest.mark.parametrize(
    ("reason", "ways"),
    [
        (HaltReason.STORE_BEHIND_SINK, {"resume"}),
        (HaltReason.FOREIGN_OWNER, {"resume"}),
        (HaltReason.TOKEN_LOST, {"resume", "--redeliver"}),
        (HaltReason.HEURISTIC_COMMIT, {"resume", "--commit"}),
    ],
)
def test_nothing_is_promised_of_a_halted_pipeline(world: World, reason: HaltReason, ways: set[str]) -> None:
    decided(world)
    world.store.halt(PIPELINE, reason, "a test.")
    _, db, log = found(world)
    for doubt in (db, log):
        assert "HALTED" in doubt.advice and "next" not in doubt.advice
        assert {way for way in ("resume", "--redeliver", "--commit") if way in doubt.advice} == ways


@pytest.mark.parametrize("halted", [False, True])
def test_rows_committed_by_hand_are_not_aborted_while_halted(
    world: World, halted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.prepared()
    monkeypatch.setattr("airflow_ft.protocol.doubt.may_be_heuristic", lambda *_: True)
    monkeypatch.setattr(ModelParticipant, "heuristic", lambda *_: "a branch is committed: delete its rows.")
    if halted:
        world.store.halt(PIPELINE, HaltReason.HEURISTIC_COMMIT, "a test.")
    listed = [each for each in found(world) if each.evidence.finding is Finding.HEURISTIC]
    assert listed
    for each in listed:
        assert ("`airflow ft resume`" in each.advice, "--abort" in each.advice) == (halted, not halted)


def test_no_run_is_promised_of_a_pipeline_that_rests(world: World) -> None:
    decided(world)
    for doubt in doubts(world.store, [PIPELINE], Systems(world.systems), resting={PIPELINE}):
        assert doubt.advice.startswith("no run follows") and "--commit" in doubt.advice
    world.store.record_problem(PIPELINE, world.store.pipeline(PIPELINE).epoch, 1, "log", REFUSED)
    [_, log] = doubts(world.store, [PIPELINE], Systems(world.systems), resting={PIPELINE})
    assert log.advice.startswith("remove the cause") and "next" not in log.advice


def test_each_failed_act_replaces_the_failure_before_it(world: World) -> None:
    decided(world)
    resolver(world).quarantine(1)

    def participants(plan: Any) -> Any:
        raise SinkUnavailableError("no broker answers.")

    messages = []
    for _ in range(3):
        with raises(SinkUnavailableError, "sink_unavailable"):
            resolver(world, participants).commit(1)
        messages.append(world.store.checkpoint(PIPELINE, 1).message)
    assert world.store.checkpoint(PIPELINE, 1).state is S.QUARANTINED
    assert messages[0] == messages[2] and messages[0].count("no broker answers") == 1


def test_looking_takes_no_epoch_and_writes_no_event(world: World) -> None:
    decided(world)
    before = (world.store.pipeline(PIPELINE), world.store.events(PIPELINE, limit=1000), world.systems["log"].rank)
    found(world)
    assert before == (
        world.store.pipeline(PIPELINE),
        world.store.events(PIPELINE, limit=1000),
        world.systems["log"].rank,
    )


def test_a_hundred_numbers_in_doubt_are_listed_in_no_time(world: World) -> None:
    world.prepared(50)
    began = time.monotonic()
    assert len(found(world)) == 100
    print(f"listed in {time.monotonic() - began:.2f} s")


# --- acts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [World.prepared, decided])
def test_commit_delivers_under_the_same_marker(world: World, how: Callable[[World], list[int]]) -> None:
    numbers = how(world)
    assert resolver(world).commit(1).state is S.COMPLETED
    world.check_exactly_once(numbers)
    assert "a test by ada" in event_text(world)


def test_commit_keeps_the_order(world: World) -> None:
    numbers = decided(world, 2)
    with raises(StateConflictError, "earlier_first", checkpoint=2, earlier=1):
        resolver(world).commit(2)
    assert world.store.pipeline(PIPELINE).status is PipelineStatus.ACTIVE
    for number in numbers:
        resolver(world).commit(number)
    world.check_exactly_once(numbers)


@pytest.mark.parametrize(
    "reason, action", [(HaltReason.HEURISTIC_COMMIT, Resolver.commit), (HaltReason.TOKEN_LOST, Resolver.redeliver)]
)
def test_an_act_out_of_order_leaves_the_pipeline_halted(
    world: World, reason: HaltReason, action: Callable[[Resolver, int], object]
) -> None:
    decided(world, 2)
    world.store.halt(PIPELINE, reason, "a test.")
    with raises(StateConflictError, "earlier_first", checkpoint=2, earlier=1):
        action(resolver(world), 2)
    assert world.store.pipeline(PIPELINE).halt_reason is reason


def test_commit_delivers_what_is_planned_before_it(world: World) -> None:
    """A part of 2 was committed by hand before anybody has voted: Kafka, for one, would not find the token of 1."""
    world.stage(2)
    worker = Worker("", 1)
    with coordinating(world.store, PIPELINE, Systems(world.systems), worker, "a test", 0.03) as (coordinator, _):
        assert coordinator.plan(world.delivery, 10) == [1, 2]
    world.store.halt(PIPELINE, HaltReason.HEURISTIC_COMMIT, "a test.")
    assert resolver(world).commit(2).state is S.COMPLETED
    assert world.store.pipeline(PIPELINE).status is PipelineStatus.ACTIVE
    world.check_exactly_once([1, 2])


def test_abort_writes_the_tombstone_first(world: World) -> None:
    world.prepared()
    assert resolver(world).abort(1, AfterAbort.CARRIED).state is S.ABORTED
    assert world.systems["db"].markers[1].outcome == "aborted"
    assert world.store.checkpoint(PIPELINE, 1).reason is AbortReason.USER
    world.steps(world.context(3))
    assert world.systems["db"].rows == world.systems["log"].rows == [1]


def test_an_abort_that_comes_late_aborts_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it waits for its epoch, the run delivers the number. Later ones would be aborted before that is noticed."""
    numbers = world.prepared(3)

    @contextmanager
    def late(*given: Any) -> Iterator[tuple[Coordinator, LeaseKeeper]]:
        epoch = world.store.pipeline(PIPELINE).epoch
        with closing(Coordinator(world.store, PIPELINE, epoch, Systems(world.systems))) as run:
            assert run.deliver(1).state is S.COMPLETED
        with coordinating(*given) as found:
            yield found

    monkeypatch.setattr(resolution, "coordinating", late)
    with raises(StateConflictError, "action_refused", checkpoint=1, state="COMPLETED"):
        resolver(world).abort(1, AfterAbort.CARRIED)
    assert (state(world, 2), state(world, 3)) == (S.PREPARED, S.PREPARED)
    world.steps(world.context(3))
    world.check_exactly_once(numbers)


def test_an_abort_of_a_committed_number_aborts_no_later_one(world: World) -> None:
    """The process that delivered it has died before the decision log knew."""
    world.prepared(3)

    def die(*_: Any, **__: Any) -> None:
        raise Crash

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Crash):
        patch.setattr(world.store, "decide", die)
        steps.commit_step(world.context(), "db")
    with raises(StateConflictError, "already_committed", checkpoint=1):
        resolver(world).abort(1, AfterAbort.CARRIED)
    states = [world.store.checkpoint(PIPELINE, number).state for number in (1, 2, 3)]
    assert states == [CheckpointState.COMMITTING, CheckpointState.PREPARED, CheckpointState.PREPARED]


@pytest.mark.parametrize(
    ("earlier", "later", "remedy"),
    [
        (AfterAbort.CARRIED, AfterAbort.REWOUND, "airflow ft rewind orders"),
        (AfterAbort.REWOUND, AfterAbort.CARRIED, "the next run computes them"),
    ],
)
def test_an_abort_says_if_an_earlier_one_decided_otherwise(
    world: World, earlier: AfterAbort, later: AfterAbort, remedy: str
) -> None:
    """The process of an earlier abort has died behind its abort marker, which says what becomes of the rows."""
    world.prepared()

    def die(*_: Any, **__: Any) -> None:
        raise Crash

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Crash):
        patch.setattr(world.store, "abort", die)
        resolver(world).abort(1, earlier)
    with raises(StateConflictError, "action_refused", checkpoint=1, state="ABORTED") as caught:
        resolver(world).abort(1, later)
    assert caught.error is not None and remedy in caught.error.remedy
    assert world.store.checkpoint(PIPELINE, 1).after_abort is earlier


def rollback_pending(world: World) -> None:
    """Checkpoint 1 is ABORTED, and `log` does not answer."""
    world.prepared()
    world.systems["log"].away = True
    assert resolver(world).abort(1, AfterAbort.CARRIED).rollback_pending


def test_a_rollback_in_a_sink_that_is_gone_is_given_up(tmp_path: Path) -> None:
    world = World(tmp_path, systems={"db": System(Promise.ATOMIC), "log": System(Promise.TWO_PHASE)})
    with closing(world.store):
        rollback_pending(world)
        with raises(SinkUnavailableError, "sink_unavailable", checkpoint=1) as caught:
            world.steps(world.context(3))
        assert caught.error is not None and "--give-up 1" in caught.error.remedy

        def gone(plan: Any) -> Any:
            raise missing_connection(plan.name)

        [_, doubt] = doubts(world.store, [PIPELINE], gone)
        assert "--give-up" in doubt.advice
        for _ in range(2):  # a retry has no effect
            assert not resolver(world, gone).give_up(1, "log").rollback_pending
        assert "is given up" in event_text(world, 1) and "docs/recovery.md" in event_text(world, 1)
        world.steps(world.context(4), world.deliver_into({"rows": "db", "copies": "db"}))
        assert world.systems["db"].rows == [1]


@pytest.mark.parametrize(
    "error",
    [
        SinkUnavailableError("the server does not answer."),
        SinkAccessError("the password is wrong."),
        ConfigurationError("it is not installed.", code="package_missing"),
    ],
)
def test_only_the_sink_that_a_person_names_is_given_up(tmp_path: Path, error: AirflowFtError) -> None:
    world = World(tmp_path, systems={"db": System(Promise.ATOMIC), "log": System(Promise.TWO_PHASE)})
    with closing(world.store):
        rollback_pending(world)

        def fails(plan: Any) -> Any:
            raise error

        for act in (lambda by: by.abort(1, AfterAbort.CARRIED), lambda by: by.give_up(1, "db")):
            with raises(type(error), error.code, checkpoint=1):
                act(resolver(world, fails))
            assert "--give-up 1 --sink log" in error.remedy
            assert world.store.checkpoint(PIPELINE, 1).rollback_pending
        with raises(ConfigurationError, "argument_invalid", checkpoint=1):
            resolver(world, fails).give_up(1, "elsewhere")
        world.systems["log"].away = False
        with raises(StateConflictError, "action_refused", checkpoint=1):
            resolver(world).abort(1, AfterAbort.REWOUND)
        assert not resolver(world).abort(1, AfterAbort.CARRIED).rollback_pending
        assert not world.systems["log"].prepared


def test_adopt_passes_over_a_sink_that_cannot_be_opened(tmp_path: Path) -> None:
    world = World(tmp_path, systems={"db": System(Promise.ATOMIC), "log": System(Promise.TWO_PHASE)})
    with closing(world.store):
        rollback_pending(world)
        plan = world.store.checkpoint(PIPELINE, 1).plan
        assert plan is not None
        declared = [plan.participant("db")]
        world.store.halt(PIPELINE, HaltReason.STORE_BEHIND_SINK, "a test.", participants=declared)

        def not_installed(participant: Any) -> Any:
            if participant.name == "log":
                raise ConfigurationError("it is not installed.", code="package_missing")
            return Systems(world.systems)(participant)

        adopt(world.store, PIPELINE, not_installed, "ada")
        assert world.store.pipeline(PIPELINE).status is PipelineStatus.ACTIVE
        assert world.store.checkpoint(PIPELINE, 1).rollback_pending


def test_only_an_aborted_checkpoint_is_given_up(world: World) -> None:
    world.prepared()
    with raises(StateConflictError, "action_refused", checkpoint=1):
        resolver(world).give_up(1, "log")


@pytest.mark.parametrize("lost, left", [("db", "log"), ("log", "db")])
def test_a_sink_that_was_given_up_is_never_opened_again(tmp_path: Path, lost: str, left: str) -> None:
    world = World(tmp_path, systems={"db": System(Promise.TWO_PHASE), "log": System(Promise.TWO_PHASE)})
    with closing(world.store):
        world.prepared()
        world.systems[lost].away = world.systems[left].away = True
        assert resolver(world).abort(1, AfterAbort.CARRIED).rollback_pending
        world.systems[lost].token_is_gone = True  # an emptied folder
        world.store.halt(PIPELINE, HaltReason.STORE_BEHIND_SINK, "a test.")
        adopt(world.store, PIPELINE, Systems(world.systems), "someone")
        pending = world.store.checkpoint(PIPELINE, 1)
        assert pending.rollback_pending and pending.votes[lost].rolled_back
        world.systems[left].away = False
        context = world.context(3)
        recover(world.store, PIPELINE, only := Systems({left: world.systems[left]}), context.worker)
        assert not world.store.checkpoint(PIPELINE, 1).rollback_pending
        assert only.opened == [left] and not world.systems[left].prepared
        assert "is given up" in event_text(world, 1)


def test_what_is_decided_is_never_aborted(world: World) -> None:
    numbers = decided(world)
    for _ in range(2):
        with raises(StateConflictError, "already_decided", checkpoint=1):
            resolver(world).abort(1, AfterAbort.CARRIED)
        resolver(world).quarantine(1)
    assert resolver(world).commit(1).state is S.COMPLETED
    world.check_exactly_once(numbers)


def test_an_abort_that_meets_a_delivery_delivers(world: World) -> None:
    """The carrier had committed, and nobody knew: quarantined as PREPARED, it cannot be aborted any more."""
    numbers = world.prepared()
    plan = world.store.checkpoint(PIPELINE, 1).plan
    assert plan is not None
    with new_epoch(world.store, PIPELINE, Worker("a", 9), "a test", 0.03) as (epoch, _):
        attempt = world.store.begin_attempt(PIPELINE, epoch, 1, "db")
        fence = Coordinator(world.store, PIPELINE, epoch, Systems(world.systems))._fence(attempt)
        Systems(world.systems)(plan.participant("db")).commit(plan, fence)
    resolver(world).quarantine(1)
    with raises(StateConflictError, "already_committed", checkpoint=1):
        resolver(world).abort(1, AfterAbort.REWOUND)
    assert state(world, 1) is S.QUARANTINED
    resolver(world).commit(1)
    world.check_exactly_once(numbers)


def test_settled_numbers_are_refused_with_the_reason(world: World) -> None:
    world.stage(1)
    with raises(StateConflictError, "action_refused", checkpoint=1, state="STAGED"):
        resolver(world).commit(1)
    world.steps(world.context())
    for action in (resolver(world).commit, resolver(world).quarantine, resolver(world).redeliver):
        with raises(StateConflictError, "action_refused", checkpoint=1, state="COMPLETED"):
            action(1)


# --- quarantine ---------------------------------------------------------------------------------------------------


def test_quarantine_closes_every_gate_and_stops_every_step(world: World) -> None:
    decided(world)
    resolver(world).quarantine(1)
    for step in (
        lambda: steps.recover_step(world.context(2)),
        lambda: steps.recover_step(world.context(run=LATER)),
        lambda: steps.prepare_step(world.context(2), world.delivery, world.config, "db"),
        lambda: steps.commit_step(world.context(2), "log"),
    ):
        with raises(QuarantinedError, "checkpoint_quarantined", checkpoint=1) as caught:
            step()
        assert caught.error and "a test by ada" in caught.error.headline
    with raises(NotDeliveredError, "not_delivered", open={1: "QUARANTINED"}):
        steps.confirm_step(world.context(2), world.config, NoArchive())
    assert Gate(number=1).is_open(world.store, PIPELINE) is None
    assert Gate(run=RUN).is_open(world.store, PIPELINE) is None
    assert world.systems["log"].rows == []


def test_recovery_leaves_it_and_what_comes_after_alone(world: World) -> None:
    decided(world, 2)
    resolver(world).quarantine(1)
    epoch = world.store.pipeline(PIPELINE).epoch
    assert recover(world.store, PIPELINE, Systems(world.systems), Worker(), lease_seconds=0.03).settled == ()
    assert world.store.pipeline(PIPELINE).epoch == epoch
    assert (state(world, 1), state(world, 2)) == (S.QUARANTINED, S.COMMITTING)
    assert world.store.pipeline(PIPELINE).status is PipelineStatus.ACTIVE


def test_nothing_later_reaches_a_sink_by_hand_either(world: World) -> None:
    decided(world, 2)
    resolver(world).quarantine(1)
    with raises(StateConflictError, "earlier_first", checkpoint=2, earlier=1):
        resolver(world).commit(2)
    with (
        new_epoch(world.store, PIPELINE, Worker("a", 9), "a test", 0.03) as (epoch, _),
        raises(StateConflictError, "earlier_first", checkpoint=2, earlier=1, state="QUARANTINED"),
    ):
        Coordinator(world.store, PIPELINE, epoch, Systems(world.systems)).commit(2, "log")
    assert world.systems["log"].rows == []


def test_everything_goes_on_after_it_is_taken_back(world: World) -> None:
    numbers = decided(world, 2)
    resolver(world).quarantine(1)
    resolver(world).commit(1)
    numbers += world.stage(1, try_number=2)
    world.steps(world.context(3))
    world.check_exactly_once(numbers)


def test_an_undecided_one_can_be_given_up_out_of_quarantine(world: World) -> None:
    world.max_rows = 1000
    world.prepared(2)
    resolver(world).quarantine(1)
    assert resolver(world).abort(1, AfterAbort.CARRIED).state is S.ABORTED
    world.steps(world.context(3))
    assert world.systems["db"].rows == [1, 2]


@pytest.mark.parametrize("error", [SinkUnavailableError("no broker answers."), OSError(5, "no broker answers.")])
def test_an_act_that_fails_puts_it_back(world: World, error: Exception) -> None:
    """Also by an error that is none of ours, such as that of the disk which takes dead letters."""
    decided(world)
    resolver(world).quarantine(1)

    def participants(plan: Any) -> Any:
        raise error

    with pytest.raises(type(error)):
        resolver(world, participants).commit(1)
    kept = world.store.checkpoint(PIPELINE, 1)
    assert kept.state is S.QUARANTINED
    assert "no broker answers" in kept.message


def test_quarantine_works_while_halted(world: World) -> None:
    decided(world)
    world.store.halt(PIPELINE, HaltReason.TOKEN_LOST, "it is gone.")
    resolver(world).quarantine(1)
    assert state(world, 1) is S.QUARANTINED


# --- redeliver ----------------------------------------------------------------------------------------------------


def test_only_a_person_sets_the_lost_token_of_a_decided_number(world: World) -> None:
    world.stage(1)
    world.steps(world.context())
    decided(world)
    log = world.systems["log"]
    log.token_is_gone, log.last = True, 0
    with pytest.raises(TokenLostError):
        resolver(world).commit(2)
    assert world.store.pipeline(PIPELINE).halt_reason is HaltReason.TOKEN_LOST
    assert resolver(world).redeliver(2).state is S.COMPLETED
    assert log.rows == world.systems["db"].rows == [1, 2]
    assert "RESUMED: by a test by ada" in event_text(world)


def test_what_does_not_go_by_itself_is_not_set_anew(world: World) -> None:
    world.stage(1)
    world.steps(world.context())
    decided(world)
    log = world.systems["log"]
    log.token_is_gone, log.last, log.expires = True, 0, False
    with raises(StoreBehindSinkError, "store_behind_sink", participant="log"):
        resolver(world).redeliver(2)
    assert log.rows == [1] and state(world, 2) is S.COMMITTING


def test_redeliver_of_what_needs_none_is_a_commit(world: World) -> None:
    numbers = decided(world)
    assert resolver(world).redeliver(1).state is S.COMPLETED
    world.check_exactly_once(numbers)


def test_nothing_undecided_is_redelivered(world: World) -> None:
    world.prepared()
    with raises(StateConflictError, "not_decided", checkpoint=1):
        resolver(world).redeliver(1)


# --- dead letters -------------------------------------------------------------------------------------------------


def test_only_a_person_sets_aside_what_a_sink_refuses(world: World) -> None:
    numbers = decided(world, 2)
    world.systems["log"].declines_in_commit = True
    for action in (resolver(world).commit, resolver(world).redeliver):
        with raises(SinkUnavailableError, "refused_after_decision", checkpoint=1, participant="log") as caught:
            action(1)
        assert caught.error and "--pipeline orders --dead-letter 1`" in caught.error.remedy
    assert state(world, 1) is S.COMMITTING
    found = resolver(world).dead_letter(1)
    assert found.state is S.COMPLETED
    assert of_checkpoint(found)["copies"].rows == 1 and "rows" not in of_checkpoint(found)
    assert "a test by ada" in event_text(world) and "1 row of copies was refused and set aside" in event_text(world)
    assert state(world, 2) is S.COMMITTING
    with pytest.raises(SinkUnavailableError):
        resolver(world).commit(2)
    resolver(world).dead_letter(2)
    world.check_exactly_once(numbers)
    confirmation = steps.confirm_step(world.context(3), world.config, NoArchive())
    assert {sink: each.rows for sink, each in confirmation.confirmed.set_aside.items()} == {"copies": 2}


def test_the_next_run_records_the_rows_that_a_person_set_aside(world: World) -> None:
    """The person's process died when the sink had committed: the next run records what the marker says."""
    numbers = decided(world)
    log = world.systems["log"]
    log.declines_in_commit = True
    plan = world.store.checkpoint(PIPELINE, 1).plan
    assert plan is not None
    with new_epoch(world.store, PIPELINE, Worker("a", 9), "a test", 0.03) as (epoch, _):
        attempt = world.store.begin_attempt(PIPELINE, epoch, 1, "log")
        fence = Coordinator(world.store, PIPELINE, epoch, Systems(world.systems))._fence(attempt)
        Systems(world.systems)(plan.participant("log")).commit(plan, fence, set_aside=True)
    recover(world.store, PIPELINE, Systems(world.systems), Worker(), lease_seconds=0.03)
    world.check_exactly_once(numbers)
    assert of_checkpoint(world.store.checkpoint(PIPELINE, 1))["copies"].rows == 1


def test_what_is_not_decided_is_not_set_aside(world: World) -> None:
    world.prepared()
    with raises(StateConflictError, "not_decided", checkpoint=1):
        resolver(world).dead_letter(1)


# --- the age of a doubt -------------------------------------------------------------------------------------------


def test_what_comes_after_a_young_doubt_waits_for_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settling the later number alone would meet a sink that stands before the earlier one: HALTED for nothing."""
    world.prepared(2)
    between = world.store.now()
    with new_epoch(world.store, PIPELINE, Worker("dag/run-1/step", 2), "a test", 0.03) as (epoch, _):
        Coordinator(world.store, PIPELINE, epoch, Systems(world.systems)).commit(1, "db")
    now = world.store.now()
    monkeypatch.setattr(world.store, "now", lambda: now)  # so that no time passes between here and the look
    age = now - between
    assert [c.state for c in world.store.open_checkpoints(PIPELINE)] == [S.COMMITTING, S.PREPARED]
    assert in_doubt(world.store, PIPELINE, age) == [], "2 is older than 1, which was decided just now"
    recover(world.store, PIPELINE, Systems(world.systems), Worker(), min_age=age, lease_seconds=0.03)
    assert world.store.pipeline(PIPELINE).status is PipelineStatus.ACTIVE
    recover(world.store, PIPELINE, Systems(world.systems), Worker(), lease_seconds=0.03)
    world.check_exactly_once([1, 2])


def test_every_error_of_an_act_names_pipeline_and_checkpoint(world: World) -> None:
    decided(world)
    with raises(StateConflictError, "already_decided", pipeline="orders", checkpoint=1) as caught:
        resolver(world).abort(1, AfterAbort.CARRIED)
    assert caught.error and caught.error.remedy
