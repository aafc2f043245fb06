"""Refusals, aborts and contradictions, step by step; the quiet path and every crash are in test_every_crash_point."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from airflow_ft.pipeline.checkpoints import Gate
from airflow_ft.protocol import retention
from airflow_ft.protocol.adoption import adopt, look
from airflow_ft.protocol.coordinator import Coordinator
from airflow_ft.protocol.errors import (
    AirflowFtError,
    CheckpointExpiredError,
    ConfigurationError,
    DeclinedError,
    ForeignOwnerError,
    NotDeliveredError,
    PipelineHaltedError,
    SinkAccessError,
    SinkUnavailableError,
    StateConflictError,
    StorageUnavailableError,
    StoreBehindSinkError,
    TokenLostError,
    TurnHeldError,
)
from airflow_ft.protocol.lease import Worker, new_epoch
from airflow_ft.protocol.model import AfterAbort, Checkpoint, CheckpointState, Fence, Plan, Promise, RunKey
from airflow_ft.protocol.orphans import Orphan, OrphanKind, PreparedEnding
from airflow_ft.protocol.pipelines import HaltReason, PipelineStatus
from airflow_ft.protocol.reasons import AbortReason
from airflow_ft.protocol.resolution import Resolver
from airflow_ft.protocol.retention import MARKERS_TOGETHER, retain
from airflow_ft.protocol.steps import CLEAR_STAGE, commit_step, confirm_step, prepare_step, recover_step
from airflow_ft.protocol.votes import Outcome
from airflow_ft.store.decision_log import DecisionLog
from tests.protocol.systems import ModelParticipant, NoArchive, System, Systems
from tests.protocol.world import PIPELINE, RUN, Crash, World
from tests.raising import raises


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def coordinator(world: World, try_number: int = 5) -> Coordinator:
    with new_epoch(world.store, PIPELINE, Worker(f"{RUN}/step", try_number), "test") as (epoch, _):
        return Coordinator(world.store, PIPELINE, epoch, Systems(world.systems))


def hasty_coordinator(world: World) -> Coordinator:
    epoch, began = coordinator(world).epoch, world.store.now()
    timeout = timedelta(microseconds=1)
    return Coordinator(world.store, PIPELINE, epoch, Systems(world.systems), timeout=timeout, began=began)


def state(world: World, number: int) -> CheckpointState:
    return world.store.checkpoint(PIPELINE, number).state


def test_a_quiet_run_delivers_everything_once(world: World) -> None:
    numbers = world.stage(3)
    world.steps(world.context())
    world.check_exactly_once(numbers)


def test_a_cleared_finished_run_takes_no_epoch_and_no_turn(world: World) -> None:
    numbers = world.stage(2)
    world.steps(world.context())
    before = world.store.pipeline(PIPELINE)
    world.steps(world.context())
    after = world.store.pipeline(PIPELINE)
    assert (after.epoch, after.turn) == (before.epoch, None)
    world.check_exactly_once(numbers)


def test_a_participant_stays_open_until_a_failure_or_a_close(world: World) -> None:
    first, second, third = world.stage(3)
    acting = coordinator(world)
    systems = acting._participants
    assert isinstance(systems, Systems)
    assert acting.plan(world.delivery, 0) == [first, second, third]
    acting.deliver(first)
    acting.deliver(second)
    assert (systems.opened, systems.closed) == (["db", "log"], [])

    world.systems["db"].away = True
    with pytest.raises(SinkUnavailableError):
        acting.deliver(third)
    assert (systems.opened, systems.closed) == (["db", "log"], ["db"])
    world.systems["db"].away = False
    acting.deliver(third)
    assert (systems.opened, systems.closed) == (["db", "log", "db"], ["db"])

    acting.close()
    assert sorted(systems.closed) == ["db", "db", "log"]
    world.steps(world.context())
    world.check_exactly_once([first, second, third])


def test_a_participant_is_opened_again_when_its_sinks_change(world: World) -> None:
    (first,) = world.stage(1)
    acting = coordinator(world)
    acting.plan(world.delivery, 0)
    acting.deliver(first)
    world.stage(1)
    acting.epoch = world.store.pipeline(PIPELINE).epoch
    [second] = acting.plan(world.deliver_into({"rows": "db", "copies": "log"}, table="other"), 0)
    acting.deliver(second)
    systems = acting._participants
    assert isinstance(systems, Systems)
    assert (systems.opened, systems.closed) == (["db", "log"] * 2, ["db", "log"])


def test_a_refusal_in_prepare_rewinds_to_the_last_delivery(world: World) -> None:
    delivered = world.stage(1)
    world.steps(world.context())
    base = world.store.pipeline(PIPELINE).base
    run = RunKey("dag", "run-2")
    refused = world.stage(2, run=run)
    world.systems["db"].declines_in_prepare = True
    with raises(DeclinedError, "declined", checkpoint=2, participant="db", sink="rows", column="id"):
        prepare_step(world.context(run=run), world.delivery, world.config, "db")
    assert [state(world, n) for n in refused] == [CheckpointState.ABORTED] * 2
    assert world.store.checkpoint(PIPELINE, 2).reason is AbortReason.DECLINED
    row = world.store.pipeline(PIPELINE)
    assert (row.base, row.base_is_clean) == (base, False)
    with raises(NotDeliveredError, "stage_unfinished", open={}, remedy=CLEAR_STAGE):
        confirm_step(world.context(run=run), world.config, NoArchive())  # type: ignore[arg-type]
    world.systems["db"].declines_in_prepare = False
    again = world.stage(2, run=run, try_number=2)
    world.steps(world.context(2, run=run))
    world.check_exactly_once([*delivered, *again])


def test_a_refusal_in_the_commit_leaves_only_an_abort_marker(world: World) -> None:
    (number,) = world.stage(1)
    world.systems["db"].declines_in_commit = True
    with raises(DeclinedError, "declined", participant="db"):
        world.steps(world.context())
    assert world.systems["db"].markers[number].outcome is Outcome.ABORTED
    assert world.systems["db"].rows == world.systems["log"].rows == []
    checkpoint = world.store.checkpoint(PIPELINE, number)
    assert (checkpoint.state, checkpoint.after_abort) == (CheckpointState.ABORTED, AfterAbort.REWOUND)


def test_a_refusal_after_the_decision_is_retried_not_aborted(world: World) -> None:
    (number,) = world.stage(1)
    world.systems["log"].declines_in_commit = True
    with raises(SinkUnavailableError, "refused_after_decision", participant="log", cause="declined"):
        world.steps(world.context())
    assert state(world, number) is CheckpointState.COMMITTING
    world.systems["log"].declines_in_commit = False
    world.steps(world.context(2))
    world.check_exactly_once([number])


def test_a_commit_warns_of_attempts_without_an_answer(world: World, caplog: pytest.LogCaptureFixture) -> None:
    def warned(participant: str, kills: int) -> bool:
        """Whether a commit warns, after attempts that have begun and noted nothing."""
        acting = coordinator(world)
        for _ in range(kills):
            world.store.begin_attempt(PIPELINE, acting.epoch, 1, participant)
        caplog.clear()
        with suppress(SinkUnavailableError):
            acting.commit(1, participant)
        return f"{kills} attempts to commit it in {participant} ended without an answer" in caplog.text

    world.prepared()
    assert not warned("db", 2)
    world.systems["log"].declines_in_commit = True
    assert warned("log", 3), "this one notes an error"
    assert not warned("log", 2), "its error explains those before it"
    world.systems["log"].declines_in_commit = False
    assert warned("log", 4)


def test_the_next_run_delivers_what_a_failed_run_staged(world: World) -> None:
    left = world.stage(2)
    run = RunKey("dag", "run-2")
    recover_step(world.context(run=run))
    mine = world.stage(1, run=run)
    world.steps(world.context(run=run))
    world.check_exactly_once([*left, *mine])


def test_an_aborted_checkpoint_is_carried_by_the_next_number(world: World) -> None:
    one, two = world.stage(2)
    prepare_step(world.context(), world.delivery, world.config, "db")
    prepare_step(world.context(), world.delivery, world.config, "log")
    assert state(world, two) is CheckpointState.PREPARED
    coordinator(world).abort(one, AbortReason.USER, "asked for.", AfterAbort.CARRIED)
    assert world.systems["db"].markers[one].outcome is Outcome.ABORTED
    assert world.store.checkpoint(PIPELINE, two).reason is AbortReason.PREDECESSOR_ABORTED
    recover_step(world.context(6))
    assert world.store.pipeline(PIPELINE).last_published == 3
    world.steps(world.context(7))
    assert world.systems["db"].rows == world.systems["log"].rows == [one, two]
    assert world.store.checkpoint(PIPELINE, one).delivered_by == 3


def test_a_late_commit_meets_the_tombstone(world: World) -> None:
    (number,) = world.stage(1)
    for name in world.delivery.names:
        prepare_step(world.context(), world.delivery, world.config, name)
    checkpoint = world.store.checkpoint(PIPELINE, number)
    assert checkpoint.plan
    acting = coordinator(world)
    fence = acting._fence(99)
    Systems(world.systems)(checkpoint.plan.participants[0]).abort(
        checkpoint.plan,
        fence,
        {"reason": "DECLINED", "message": "written by one that died after it.", "after": "carried"},
    )
    recover_step(world.context(6))
    found = world.store.checkpoint(PIPELINE, number)
    assert (found.state, found.reason, found.after_abort) == (
        CheckpointState.ABORTED,
        AbortReason.DECLINED,
        AfterAbort.CARRIED,
    )
    assert world.systems["db"].rows == []


def test_a_late_abort_is_refused_once_a_retry_has_prepared(world: World) -> None:
    """A prepare is declined and stands still before it writes ABORTED; the next try votes, and its carrier commits."""
    (number,) = world.stage(1)

    class Late:
        def __getattr__(self, name: str) -> Any:
            if name == "abort":  # what happens while its request is on the way
                world.systems["db"].declines_in_prepare = False
                for participant in world.delivery.names:
                    prepare_step(world.context(2), world.delivery, world.config, participant)
                with pytest.raises(Crash):
                    commit_step(replace(world.context(2), store=Dying()), "db")  # type: ignore[arg-type]
                assert world.systems["db"].rows == [number]
            return getattr(world.store, name)

    class Dying:
        def __getattr__(self, name: str) -> Any:
            if name == "decide":
                raise Crash
            return getattr(world.store, name)

    world.systems["db"].declines_in_prepare = True
    with pytest.raises(StateConflictError):
        prepare_step(replace(world.context(), store=Late()), world.delivery, world.config, "db")  # type: ignore[arg-type]
    assert state(world, number) is CheckpointState.PREPARED
    world.steps(world.context(3))
    world.check_exactly_once([number])


def test_an_abort_after_the_commit_point_delivers_instead(world: World) -> None:
    (number,) = world.stage(1)
    for name in world.delivery.names:
        prepare_step(world.context(), world.delivery, world.config, name)
    checkpoint = world.store.checkpoint(PIPELINE, number)
    assert checkpoint.plan
    acting = coordinator(world)
    Systems(world.systems)(checkpoint.plan.participants[0]).commit(checkpoint.plan, acting._fence(50))
    with raises(StateConflictError, "already_committed", checkpoint=number):
        coordinator(world, 6).abort(number, AbortReason.USER, "asked for.", AfterAbort.CARRIED)
    assert state(world, number) is CheckpointState.COMMITTING
    world.steps(world.context(7))
    world.check_exactly_once([number])


def test_changed_sinks_supersede_a_plan_that_is_not_prepared(world: World) -> None:
    numbers = world.stage(1)
    prepare_step(world.context(), world.delivery, world.config, "db")
    changed = world.deliver_into({"rows": "db", "copies": "log"}, table="other")
    world.steps(world.context(2), changed)
    assert world.store.checkpoint(PIPELINE, numbers[0]).reason is AbortReason.SUPERSEDED
    assert world.systems["db"].rows == world.systems["log"].rows == numbers


def test_a_removed_sink_frees_the_locks_of_its_plan(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    world = World(tmp_path, systems={"db": System(Promise.TWO_PHASE), "log": System(Promise.TWO_PHASE)})
    numbers = world.stage(1)
    prepare_step(world.context(), world.delivery, world.config, "db")
    assert world.systems["db"].prepared
    without = world.deliver_into({"rows": "db"})
    for epoch in (2, 3):
        with raises(ConfigurationError, "sink_undeclared", checkpoint=numbers[0], sink="copies"):
            prepare_step(world.context(epoch), without, world.config, "db")
    assert not world.systems["db"].prepared
    [superseded] = [line for line in caplog.messages if "(SUPERSEDED)" in line]
    assert "declare it again" in superseded and "Do nothing" not in superseded
    world.steps(world.context(4))
    world.check_exactly_once(numbers)


def test_rows_of_an_expired_checkpoint_are_carried_over(world: World) -> None:
    one, two = world.stage(2)
    prepare_step(world.context(), world.delivery, world.config, "db")
    hasty = hasty_coordinator(world)
    with raises(CheckpointExpiredError, "checkpoint_expired", checkpoint=1, seconds=1e-06):
        hasty.expire()
    checkpoint = world.store.checkpoint(PIPELINE, one)
    assert checkpoint.reason is AbortReason.EXPIRED and checkpoint.message == "not decided within 1e-06 s"
    assert checkpoint.after_abort is AfterAbort.CARRIED
    world.steps(world.context(7))
    world.check_exactly_once([one, two])


def test_all_that_is_not_decided_in_time_expires_at_once(world: World) -> None:
    """A stream that runs ahead of a sink that is away would be restarted once for each of them, when that is back."""
    numbers = world.stage(5)
    hasty = hasty_coordinator(world)
    with raises(CheckpointExpiredError, "checkpoint_expired", checkpoint=1, seconds=1e-06):
        hasty.expire()
    assert {state(world, number) for number in numbers} == {CheckpointState.ABORTED}
    hasty.expire()
    world.steps(world.context(7))
    world.check_exactly_once(numbers)


def test_a_store_older_than_the_sink_halts_the_pipeline(world: World) -> None:
    world.stage(1)
    world.systems["db"].rank = (99, 1)
    with raises(StoreBehindSinkError, "store_behind_sink"):
        world.steps(world.context())
    assert world.store.pipeline(PIPELINE).status is PipelineStatus.HALTED
    with raises(PipelineHaltedError, "pipeline_halted", reason="STORE_BEHIND_SINK") as halted:
        recover_step(world.context(2))
    assert halted.error and "`airflow ft resume orders`" in halted.error.remedy


def test_another_digest_under_the_same_number_halts_the_pipeline(world: World) -> None:
    (number,) = world.stage(1)
    for name in world.delivery.names:
        prepare_step(world.context(), world.delivery, world.config, name)
    checkpoint = world.store.checkpoint(PIPELINE, number)
    assert checkpoint.plan
    sink = Systems(world.systems)(checkpoint.plan.participants[0])
    proof = sink._mark(checkpoint.plan, coordinator(world)._fence(9), Outcome.COMMITTED, {})
    world.systems["db"].markers[number] = type(proof)("db", number, Outcome.COMMITTED, "f" * 64, 1, {}, {})
    with pytest.raises(StoreBehindSinkError):
        recover_step(world.context(6))
    assert world.systems["log"].rows == []


def test_a_second_run_waits_for_its_turn(world: World) -> None:
    world.stage(1)
    import dataclasses

    second = dataclasses.replace(world.context(run=RunKey("dag", "run-2")), run_is_over=lambda _: False)
    with pytest.raises(TurnHeldError) as caught:
        recover_step(second)
    assert caught.value.holder == RUN and "retire" not in caught.value.remedy and "paused" not in caught.value.remedy
    renamed = dataclasses.replace(second, run=RunKey("renamed", "run-2"))
    with pytest.raises(TurnHeldError) as caught:
        recover_step(renamed)
    assert "`airflow ft retire orders`" in caught.value.remedy and "paused, unpause it" in caught.value.remedy
    world.steps(world.context())
    recover_step(second)
    assert world.store.pipeline(PIPELINE).turn == second.run


@pytest.mark.parametrize("error", [KeyError("a mistake"), KeyboardInterrupt()])
def test_a_confirmation_that_fails_gives_the_turn_back(world: World, error: BaseException) -> None:
    class Failing(NoArchive):
        def sweep(self, pipeline: str, keep: object, below_epoch: int, must_stop: object) -> bool:
            raise error

    world.stage(1)
    recover_step(world.context())
    assert world.store.pipeline(PIPELINE).turn == RUN
    with pytest.raises(type(error)):
        confirm_step(world.context(), world.config, Failing())  # type: ignore[arg-type]
    assert world.store.pipeline(PIPELINE).turn is None


def test_a_run_without_new_data_succeeds_and_confirms_nothing(world: World) -> None:
    world.stage(0)
    world.steps(world.context())
    confirmation = confirm_step(world.context(), world.config, NoArchive())  # type: ignore[arg-type]
    assert (confirmation.confirmed.numbers.count, confirmation.latest) == (0, 0)


def test_a_sink_commits_nothing_before_a_number_that_was_skipped(world: World) -> None:
    """Else it would find its own sink one number behind, and halt the pipeline as if a delivery were lost (I4, I7)."""
    numbers = world.stage(2)
    for name in ("db", "log"):
        prepare_step(world.context(), world.delivery, world.config, name)
    late = coordinator(world)
    assert late.commit(numbers[0], "log").state is CheckpointState.PREPARED  # not decided: passed by
    for number in numbers:
        late.commit(number, "db")
    with raises(StateConflictError, "earlier_first", checkpoint=numbers[1], earlier=numbers[0], participant="log"):
        late.commit(numbers[1], "log")
    assert world.store.pipeline(PIPELINE).status is PipelineStatus.ACTIVE
    world.steps(world.context(2))
    world.check_exactly_once(numbers)


@pytest.mark.parametrize("step", ["deliver", "commit"])
def test_a_vote_that_a_lost_attempt_took_back_is_given_again(tmp_path: Path, step: str) -> None:
    """Else what the carrier then commits could never be decided (I3, I7)."""
    world = World(tmp_path, systems={"db": System(Promise.ATOMIC), "log": System(Promise.TWO_PHASE)})
    (number,) = world.stage(1)
    for name in ("db", "log"):
        prepare_step(world.context(), world.delivery, world.config, name)
    mine = coordinator(world)
    world.store.begin_attempt(PIPELINE, mine.epoch, number, "log")  # arrives late; whoever sent it is gone
    if step == "commit":
        mine.commit(number, "db")
    mine.deliver(number)
    world.check_exactly_once([number])


@pytest.mark.parametrize("dies", [False, True])
def test_visible_rows_are_decided_without_a_follower_vote(tmp_path: Path, dies: bool) -> None:
    """A late attempt takes the vote back behind the carrier's commit, and the follower refuses the rows from now on."""
    log = System(Promise.TWO_PHASE)
    world = World(tmp_path, systems={"db": System(Promise.ATOMIC), "log": log})
    (number,) = world.prepared()
    mine = coordinator(world)
    decide = world.store.decide

    def late(*args: Any) -> Any:
        world.store.decide = decide  # type: ignore[method-assign]
        world.store.begin_attempt(PIPELINE, mine.epoch, number, "log")
        if dies:
            raise Crash
        return decide(*args)

    world.store.decide = late  # type: ignore[method-assign]
    log.declines_in_prepare = log.declines_in_commit = True
    with pytest.raises(Crash if dies else SinkUnavailableError):
        mine.deliver(number)
    if dies:
        assert mine.prepare(number, "log").state is CheckpointState.COMMITTING
    assert state(world, number) is CheckpointState.COMMITTING
    with raises(SinkUnavailableError, "refused_after_decision"):
        mine.deliver(number)
    resolver = Resolver(world.store, PIPELINE, Systems(world.systems), "a test", Worker("", 1), 0.03)
    assert resolver.dead_letter(number).state is CheckpointState.COMPLETED
    world.check_exactly_once([number])


def test_a_prepare_that_comes_after_the_decision_touches_nothing(tmp_path: Path) -> None:
    """It read STAGED, slept, and began its attempt when the branches of the older one were decided (R7)."""
    systems = {"db": System(Promise.TWO_PHASE), "log": System(Promise.REDO)}
    world = World(tmp_path, systems=systems)
    (number,) = world.stage(1)
    late = coordinator(world)
    begin = world.store.begin_attempt

    def decided_meanwhile(*args: Any) -> int:
        world.store.begin_attempt = begin  # type: ignore[method-assign]
        for name in ("db", "log"):
            late.prepare(number, name)  # by another task of the run: it has the same epoch
        votes = world.store.checkpoint(PIPELINE, number).votes
        world.store.decide(PIPELINE, late.epoch, number, {name: vote.prepared for name, vote in votes.items()})
        return begin(*args)

    late.plan(world.delivery, 0)
    world.store.begin_attempt = decided_meanwhile  # type: ignore[method-assign]
    assert late.prepare(number, "db").state is CheckpointState.COMMITTING
    world.steps(world.context(2))
    world.check_exactly_once([number])


def test_recovery_settles_first_what_a_prepared_number_waits_for(tmp_path: Path) -> None:
    """The vote of 1 was taken back by an attempt that is gone, 2 was prepared: neither would ever go on (I7)."""
    world = World(tmp_path, systems={"db": System(Promise.TWO_PHASE), "log": System(Promise.REDO)})
    numbers = world.stage(2)
    prepare_step(world.context(), world.delivery, world.config, "db")
    world.store.begin_attempt(PIPELINE, world.store.pipeline(PIPELINE).epoch, numbers[0], "db")
    prepare_step(world.context(), world.delivery, world.config, "log")
    assert [state(world, number) for number in numbers] == [CheckpointState.STAGED, CheckpointState.PREPARED]
    recover_step(world.context(2))
    world.check_exactly_once(numbers)


def test_an_empty_run_waits_for_what_an_earlier_run_published(world: World) -> None:
    """I9: its stage found those rows published; whoever waits for it must not start without them."""
    numbers = world.stage(1)
    later = world.context(2, run=RunKey("dag", "run-2"))
    recover_step(later)
    world.stage(0, run=later.run, try_number=2)
    for _ in range(2):  # also when it is asked again, after it gave its turn back
        with raises(NotDeliveredError, "not_delivered", open={numbers[0]: "STAGED"}):
            confirm_step(later, world.config, NoArchive())  # type: ignore[arg-type]
    world.steps(world.context(3, run=later.run))
    world.check_exactly_once(numbers)


def test_commit_before_prepare_does_nothing(world: World) -> None:
    (number,) = world.stage(1)
    assert commit_step(world.context(), "db") == []
    assert state(world, number) is CheckpointState.STAGED


def deliver_one_by_one(world: World, numbers: range) -> None:
    for index in numbers:
        run = RunKey("dag", f"run-{index}")
        recover_step(world.context(run=run))
        world.stage(1, run=run)
        world.steps(world.context(run=run))


def test_old_markers_are_forgotten_below_the_floor_only(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "MARKERS_TOGETHER", 1)
    deliver_one_by_one(world, range(5))
    assert sorted(world.systems["db"].markers) == [3, 4, 5]
    assert world.systems["db"].floor == 2
    assert world.systems["log"].renewed > 0


@pytest.mark.parametrize("error", [KeyError("markers of it"), SinkAccessError("no DELETE on markers of it.")])
def test_a_sink_that_fails_to_delete_markers_fails_no_delivery(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    """Its rows are confirmed, the other sink is told, files go, and the next pruning makes good what it has missed."""
    monkeypatch.setattr(retention, "MARKERS_TOGETHER", 1)
    with monkeypatch.context() as patch:

        def forget(sink: ModelParticipant, *_: Any) -> None:
            if sink.name == "db":
                raise error

        patch.setattr(ModelParticipant, "forget", forget)
        deliver_one_by_one(world, range(4))
        messages = next(each for each in caplog.records if "cannot delete its markers" in each.getMessage())
        assert re.match(r"sink db of orders .* up to 1 \(the next .*: .*markers of it", messages.getMessage())
        is_known = isinstance(error, AirflowFtError)
        assert ("KeyError" in messages.getMessage()) != is_known
        assert bool(messages.exc_info) != is_known, "with its traceback"
    assert sorted(world.systems["db"].markers) == [1, 2, 3, 4]
    assert world.systems["log"].renewed > 0
    assert [c.number for c in world.store.prunable(PIPELINE, 0, 9)] == [2, 3, 4]
    deliver_one_by_one(world, range(4, 5))
    assert sorted(world.systems["db"].markers) == [3, 4, 5]


@pytest.mark.parametrize(
    ("fails", "error", "deleted"),
    [
        ("delete", PermissionError("a file of another user"), 2),
        ("delete", StorageUnavailableError("the storage is away."), 1),
        ("sweep", PermissionError("a file of another user"), 2),
    ],
)
def test_a_part_of_retention_that_fails_leaves_the_others(
    world: World, monkeypatch: pytest.MonkeyPatch, fails: str, error: OSError, deleted: int
) -> None:
    done: list[str] = []

    class Failing(NoArchive):
        def delete(self, segment: object) -> None:
            self._do("delete")

        def sweep(self, pipeline: str, keep: object, below_epoch: int, must_stop: object) -> bool:
            self._do("sweep")
            return True

        def _do(self, what: str) -> None:
            done.append(what)
            if what == fails:
                raise error

    deliver_one_by_one(world, range(4))
    monkeypatch.setattr(world.store, "forget_events", lambda *_: done.append("forget"))
    config = replace(world.config, num_retained=1)
    retain(world.store, PIPELINE, config, world.context().participants, Failing(), lambda _: None)
    assert done == ["delete"] * deleted + ["sweep", "forget"]


@pytest.mark.slow
@pytest.mark.parametrize("lost", [0, 1, 4])
def test_sinks_are_told_to_forget_only_now_and_then(world: World, lost: int) -> None:
    """Also where a first attempt always dies, so that every number that is delivered has the same remainder."""
    floors, runs, step = [], 2 * MARKERS_TOGETHER + 3, lost + 1
    for index in range(runs):
        run = RunKey("dag", f"run-{index}")
        world.store.register(PIPELINE)
        world.store.enter_turn(PIPELINE, run, None)
        for _ in range(lost):
            with new_epoch(world.store, PIPELINE, Worker(f"{run}/step", 1), "stage") as (epoch, _):
                world.store.begin_stage(PIPELINE, epoch, run)
                world.store.trigger(PIPELINE, epoch, run)
        deliver_one_by_one(world, range(index, index + 1))
        floors.append(world.systems["db"].floor)
    expected = list(range(MARKERS_TOGETHER - step, 2 * MARKERS_TOGETHER * step, MARKERS_TOGETHER))
    assert sorted(set(floors)) == [0, *expected]
    assert sorted(world.systems["db"].markers) == [n for n in range(step, runs * step + 1, step) if n > expected[-1]]


def test_sources_hear_of_the_newest_confirmed_checkpoint_once(world: World) -> None:
    numbers = world.stage(3)
    world.steps(world.context())
    reported: list[int] = []
    for number in numbers:
        assert world.store.checkpoint(PIPELINE, number).finalised
    world.stage(2, run=RunKey("dag", "run-2"))
    context = world.context(run=RunKey("dag", "run-2"))
    recover_step(context)
    for step in (lambda name: prepare_step(context, world.delivery, world.config, name), partial(commit_step, context)):
        for name in world.delivery.names:
            step(name)

    def away(_: Checkpoint) -> None:
        raise SinkUnavailableError("the source's cluster is away.")

    confirm_step(context, world.config, NoArchive(), away)  # type: ignore[arg-type]
    assert not world.store.checkpoint(PIPELINE, 5).finalised  # so that the next run does it again
    confirm_step(context, world.config, NoArchive(), lambda c: reported.append(c.number))  # type: ignore[arg-type]
    confirm_step(context, world.config, NoArchive(), lambda c: reported.append(c.number))  # type: ignore[arg-type]
    assert reported == [5]
    assert world.store.checkpoint(PIPELINE, 4).finalised and world.store.checkpoint(PIPELINE, 5).finalised


def test_a_token_lost_after_all_is_settled_is_seeded_again(world: World) -> None:
    first = world.stage(1)
    world.steps(world.context())
    world.systems["log"].token_is_gone = True
    run = RunKey("dag", "a month later")
    recover_step(world.context(run=run))
    second = world.stage(1, run=run)
    world.steps(world.context(run=run))
    world.check_exactly_once([*first, *second])
    assert world.systems["log"].seeded_after == world.store.checkpoint(PIPELINE, first[0]).proof_of("log")


def test_a_memory_that_does_not_go_by_itself_is_not_made_anew(world: World) -> None:
    """Somebody has removed it: what was delivered may have gone with it."""
    world.stage(1)
    world.steps(world.context())
    world.systems["log"].token_is_gone, world.systems["log"].expires = True, False
    run = RunKey("dag", "a month later")
    recover_step(world.context(run=run))
    (second,) = world.stage(1, run=run)
    with raises(TokenLostError, "token_lost") as lost:
        world.steps(world.context(run=run))
    row = world.store.pipeline(PIPELINE)
    assert row.halt_reason is HaltReason.TOKEN_LOST and row.halt.message == lost.error.headline
    assert row.halt.code == lost.error.code and row.halt.remedy.startswith(lost.error.remedy)
    assert second not in world.systems["log"].rows and world.systems["log"].token_is_gone


@pytest.mark.parametrize("promise", [Promise.REDO, Promise.TWO_PHASE])
def test_a_token_lost_after_voting_is_noticed_before_deciding(
    world: World, monkeypatch: pytest.MonkeyPatch, promise: Promise
) -> None:
    world.systems["log"].promise = promise
    world.delivery = world.deliver_into({"rows": "db", "copies": "log"})
    first = world.stage(1)
    world.steps(world.context())
    waiting = world.prepared(3)
    world.systems["log"].token_is_gone = True
    monkeypatch.setattr("airflow_ft.protocol.coordinator.VOTES_LAST", timedelta(0))
    recover_step(world.context(2))
    assert [state(world, number) for number in waiting] == [CheckpointState.COMPLETED] * 3
    world.check_exactly_once([*first, *waiting])


def test_a_sink_that_remembers_is_not_asked_for_its_vote_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.stage(1)
    world.steps(world.context())
    [waiting] = world.prepared(1)
    before = {name: vote.prepared for name, vote in world.store.checkpoint(PIPELINE, waiting).votes.items()}
    monkeypatch.setattr("airflow_ft.protocol.coordinator.VOTES_LAST", timedelta(0))
    recover_step(world.context(2))
    found = world.store.checkpoint(PIPELINE, waiting)
    assert found.state is CheckpointState.COMPLETED
    assert {name: vote.prepared for name, vote in found.votes.items()} == before


def test_a_token_lost_after_a_decision_halts_the_pipeline(world: World) -> None:
    world.stage(2)
    for name in world.delivery.names:
        prepare_step(world.context(), world.delivery, world.config, name)
    commit_step(world.context(), "db")
    third = world.stage(1, run=RunKey("dag", "run-2"))
    world.systems["log"].token_is_gone = True
    with pytest.raises(TokenLostError):
        prepare_step(world.context(2, run=RunKey("dag", "run-2")), world.delivery, world.config, "log")
    assert world.store.pipeline(PIPELINE).halt_reason is HaltReason.TOKEN_LOST
    assert state(world, third[0]) is CheckpointState.STAGED


def test_no_token_is_seeded_past_what_is_decided_and_quarantined(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise that checkpoint could not be delivered any more. It is quarantined after the step has looked."""
    first, second = world.prepared(2)
    late, prepare = coordinator(world), ModelParticipant.prepare

    def overtaken(self: ModelParticipant, plan: Plan, fence: Fence) -> Any:
        monkeypatch.undo()
        coordinator(world, 6).commit(first, "db")
        Resolver(world.store, PIPELINE, Systems(world.systems), "a test", Worker("", 1), 0.03).quarantine(first)
        self.system.token_is_gone = True
        return prepare(self, plan, fence)

    monkeypatch.setattr(ModelParticipant, "prepare", overtaken)
    with raises(TokenLostError, "token_lost"):
        late.prepare(second, "log", again=True)
    assert world.systems["log"].token_is_gone


def test_sinks_of_a_lost_log_refuse_rows_until_they_are_adopted(world: World) -> None:
    for system in world.systems.values():
        system.rank, system.last, system.rows, system.foreign = (9, 30), 7, [5, 6, 7], True
    (number,) = world.stage(1)
    with raises(ForeignOwnerError, "foreign_owner"):
        world.steps(world.context())
    with pytest.raises(PipelineHaltedError):
        world.steps(world.context(2))
    adoption = adopt(world.store, PIPELINE, Systems(world.systems), "someone")
    assert (adoption.uneven, adoption.epoch) == (False, 10)
    world.steps(world.context(3))
    assert world.systems["db"].rows == world.systems["log"].rows == [5, 6, 7, number]
    assert world.store.checkpoint(PIPELINE, number).delivered_by == 8


def test_the_slower_of_two_simultaneous_adoptions_is_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for system in world.systems.values():
        system.rank, system.last, system.foreign = (9, 30), 7, True
    (number,) = world.stage(1)
    with pytest.raises(ForeignOwnerError):
        world.steps(world.context())

    def beside(store: DecisionLog, pipeline: str, participants: Any) -> Any:
        """The other one adopts and delivers, and the pipeline halts once more."""
        found = look(store, pipeline, participants)
        monkeypatch.undo()
        adopt(store, pipeline, participants, "someone")
        world.steps(world.context(2))
        store.halt(pipeline, HaltReason.FOREIGN_OWNER, "a test")
        return found

    monkeypatch.setattr("airflow_ft.protocol.adoption.look", beside)
    with pytest.raises(StateConflictError):
        adopt(world.store, PIPELINE, Systems(world.systems), "somebody else")
    assert world.store.last_delivered(PIPELINE, "db") == world.systems["db"].last == 8
    assert world.store.checkpoint(PIPELINE, number).delivered_by == 8


def test_only_a_halted_pipeline_is_adopted(world: World) -> None:
    world.stage(1)
    prepare_step(world.context(), world.delivery, world.config, "db")
    with raises(StateConflictError, "action_refused", status="ACTIVE"):
        adopt(world.store, PIPELINE, Systems(world.systems), "someone")


@pytest.mark.parametrize("reason", [HaltReason.TOKEN_LOST, HaltReason.STORE_BEHIND_SINK])
def test_adoption_of_own_sinks_is_refused_after_a_decision(world: World, reason: HaltReason) -> None:
    """It said that all was well, and changed nothing: the next run met the same."""
    (number,) = world.stage(1)
    for name in world.delivery.names:
        prepare_step(world.context(), world.delivery, world.config, name)
    commit_step(world.context(), "db")
    for system in world.systems.values():
        system.owner = world.store.installation
    world.store.halt(PIPELINE, reason, "a test")
    with raises(StateConflictError, "action_refused", checkpoint=number, state="COMMITTING"):
        adopt(world.store, PIPELINE, Systems(world.systems), "someone")
    assert world.store.pipeline(PIPELINE).halt_reason is reason
    assert state(world, number) is CheckpointState.COMMITTING


def test_adopting_does_not_carry_what_was_committed_by_hand(world: World) -> None:
    (number,) = world.stage(1)
    prepare_step(world.context(), world.delivery, world.config, "db")
    world.store.halt(PIPELINE, HaltReason.HEURISTIC_COMMIT, "a test")
    with raises(StateConflictError, "action_refused", status="HALTED", reason="HEURISTIC_COMMIT"):
        adopt(world.store, PIPELINE, Systems(world.systems), "someone")
    assert state(world, number) is CheckpointState.STAGED


def test_what_can_only_be_dropped_is_not_taken_for_committed(world: World) -> None:
    """One sink shows the checkpoint then, and the other one never will: a person has to say that, too."""
    world.stage(1)
    log, db = world.systems["log"], world.systems["db"]
    db.left = [Orphan(8, "0001", OrphanKind.PREPARED, "other", "prepared", 0, "XA COMMIT", "XA ROLLBACK")]
    log.left = [Orphan(0, "group", OrphanKind.PREPARED, "other", "open")]
    for system in world.systems.values():
        system.rank, system.last, system.foreign = (9, 30), 7, True
    with pytest.raises(ForeignOwnerError):
        world.steps(world.context())
    with raises(ConfigurationError, "rows_incomplete", participant="log"):
        adopt(world.store, PIPELINE, Systems(world.systems), "someone", ending=PreparedEnding.COMMIT)
    assert db.left and log.left
    adopt(world.store, PIPELINE, Systems(world.systems), "someone", ending=PreparedEnding.COMMIT, accept_partial=True)
    assert not db.left and not log.left


def test_an_unavailable_sink_delays_no_other_after_the_decision(tmp_path: Path) -> None:
    world = World(tmp_path, systems={"db": System(Promise.TWO_PHASE), "log": System(Promise.TWO_PHASE)})
    (number,) = world.stage(1)
    for name in world.delivery.names:
        prepare_step(world.context(), world.delivery, world.config, name)
    first, second = world.delivery.names
    world.systems[first].away = True
    with pytest.raises(SinkUnavailableError):
        commit_step(world.context(), first)  # it decides, and does not get through
    assert state(world, number) is CheckpointState.COMMITTING
    with raises(SinkUnavailableError, "sink_unavailable", participant=first):
        coordinator(world).deliver(number)
    assert (world.systems[first].rows, world.systems[second].rows) == ([], [number])
    world.systems[first].away = False
    assert coordinator(world, 6).deliver(number).state is CheckpointState.COMPLETED


@pytest.mark.parametrize("look", ["confirmed", "sensor", "is it finished"])
def test_a_rewind_while_the_gate_looks_keeps_it_closed(world: World, look: str) -> None:
    """I9: a commit task that stood still gives its number up between two reads (found by the simulator)."""
    (number,) = world.stage(1)
    context = world.context()
    reads: Any = world.store.unsettled
    worker = Worker(f"{RUN}/late", 1)

    def rewound_meanwhile(*given: Any, **more: Any) -> Sequence[Checkpoint]:
        with new_epoch(world.store, PIPELINE, worker, "late", 0.01) as (epoch, _):
            late = Coordinator(world.store, PIPELINE, epoch, Systems(world.systems))
            late.abort(number, AbortReason.DECLINED, "refused.", AfterAbort.REWOUND)
        found: Sequence[Checkpoint] = reads(*given, **more)
        return found

    gate = Gate(run=RUN)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(world.store, "unsettled", rewound_meanwhile)
        if look == "confirmed":
            with raises(NotDeliveredError, "stage_unfinished"):
                confirm_step(context, world.config, NoArchive())  # type: ignore[arg-type]
        elif look == "sensor":
            assert not gate.is_open(world.store, PIPELINE)
        else:
            assert not context.is_finished()


def test_a_commit_reads_no_number_that_it_has_delivered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def rows_of_the_last(count: int) -> int:
        (folder := tmp_path / str(count)).mkdir()
        world = World(folder)
        *earlier, last = world.prepared(count)
        acting = coordinator(world)
        for number in earlier:
            acting.commit(number, "db")
        database: Any = world.store._database  # type: ignore[attr-defined]
        seen = 0

        def read(sql: str, *values: object) -> Any:
            nonlocal seen
            rows = plain(sql, *values)
            seen += len(rows)
            return rows

        plain = database.read
        monkeypatch.setattr(database, "read", read)
        acting.commit(last, "db")
        world.store.close()
        return seen

    assert rows_of_the_last(9) == rows_of_the_last(3)
