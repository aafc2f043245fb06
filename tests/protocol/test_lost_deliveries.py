"""A vote notices a sink that has lost a delivery, and no vote of a healthy pipeline is refused."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_ft.protocol import adoption
from airflow_ft.protocol.adoption import adopt
from airflow_ft.protocol.coordinator import Coordinator
from airflow_ft.protocol.errors import (
    DeclinedError,
    SinkUnavailableError,
    StateConflictError,
    StoreBehindSinkError,
    TokenLostError,
)
from airflow_ft.protocol.lease import Worker, new_epoch
from airflow_ft.protocol.model import (
    AfterAbort,
    CheckpointingMode,
    CheckpointState,
    Fence,
    Plan,
    Promise,
    RunKey,
    SparkPosition,
)
from airflow_ft.protocol.pipelines import HaltReason, PipelineStatus
from airflow_ft.protocol.planning import Delivery
from airflow_ft.protocol.preparing import last_proven
from airflow_ft.protocol.resolution import Resolver
from airflow_ft.protocol.retention import MARKERS_TOGETHER
from airflow_ft.protocol.steps import commit_step, prepare_step, recover_step
from tests.protocol.systems import ModelParticipant, System, Systems
from tests.protocol.world import PIPELINE, World
from tests.raising import raises

S = CheckpointState
BOTH = {"rows": "db", "copies": "log"}


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    for system in world.systems.values():
        system.expires = False
    return world


def run_of(number: int) -> RunKey:
    return RunKey("dag", f"run-{number}")


def deliver(world: World, number: int, delivery: Delivery | None = None) -> list[int]:
    """A whole run of one checkpoint; returns its number."""
    context, delivery = world.context(run=run_of(number)), delivery or world.delivery
    recover_step(context)
    sinks = [name for each in delivery.participants for name in each.sinks]
    numbers = world.stage(1, run=run_of(number), sinks=sinks)
    world.steps(context, delivery)
    return numbers


def try_again(world: World, number: int, delivery: Delivery | None = None) -> None:
    """The next try of a run that has staged."""
    world.steps(world.context(2, run=run_of(number)), delivery)


def prepare(world: World, number: int, name: str, delivery: Delivery | None = None) -> None:
    prepare_step(world.context(run=run_of(number)), delivery or world.delivery, world.config, name)


def coordinator(world: World) -> Coordinator:
    with new_epoch(world.store, PIPELINE, Worker("a test", 9), "test") as (epoch, _):
        return Coordinator(world.store, PIPELINE, epoch, Systems(world.systems))


def resolver(world: World) -> Resolver:
    return Resolver(world.store, PIPELINE, Systems(world.systems), "a test", Worker("", 1), 0.03)


@pytest.fixture
def demanded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """Participant, number and the least number that its vote demands, for each vote."""
    found: list[tuple[str, int, int]] = []
    asked = ModelParticipant.prepare

    def asking(self: ModelParticipant, plan: Plan, fence: Fence) -> Any:
        found.append((self.name, plan.number, fence.delivered))
        return asked(self, plan, fence)

    monkeypatch.setattr(ModelParticipant, "prepare", asking)
    return found


# --- what is noticed --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", ["db", "log"])
def test_nothing_becomes_visible_if_a_vote_finds_a_restored_sink(world: World, lost: str) -> None:
    deliver(world, 1)
    deliver(world, 2)
    world.systems[lost].last, world.systems[lost].rows = 1, [1]
    with raises(StoreBehindSinkError, "store_behind_sink", participant=lost):
        deliver(world, 3)
    assert world.store.checkpoint(PIPELINE, 3).state is S.STAGED
    assert all(3 not in system.rows for system in world.systems.values())
    assert world.store.pipeline(PIPELINE).halt_reason is HaltReason.STORE_BEHIND_SINK
    world.systems[lost].last, world.systems[lost].rows = 2, [1, 2]
    world.store.resume(PIPELINE, "the newer server is back")
    try_again(world, 3)
    world.check_exactly_once([1, 2, 3])


def test_a_restored_token_is_not_seeded_again(world: World) -> None:
    """A vanished token may have expired; an older one shows a loss."""
    deliver(world, 1)
    deliver(world, 2)
    log = world.systems["log"]
    log.expires, log.last, log.rows = True, 1, [1]
    with raises(TokenLostError, "token_lost"):
        deliver(world, 3)
    assert (log.last, log.rows, log.seeded_after) == (1, [1], None) and world.systems["db"].rows == [1, 2]
    assert world.store.pipeline(PIPELINE).halt_reason is HaltReason.TOKEN_LOST


def test_an_announced_vote_demands_the_same(world: World) -> None:
    deliver(world, 1)
    world.stage(1, run=run_of(2))
    acting = coordinator(world)
    [number] = acting.plan(world.delivery, 0)
    planned = world.store.checkpoint(PIPELINE, number).plan
    assert planned is not None
    assert acting._begin(planned, "log")[0].delivered == 1
    assert acting._fence(7).delivered == 0, "other steps demand nothing"


def test_an_old_vote_that_is_repeated_demands_it_too(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    deliver(world, 1)
    world.stage(1, run=run_of(2))
    for name in world.delivery.names:
        prepare(world, 2, name)
    world.systems["log"].last = 0
    monkeypatch.setattr("airflow_ft.protocol.coordinator.VOTES_LAST", timedelta(0))
    monkeypatch.setattr(ModelParticipant, "head", lambda self, pipeline: None)
    with raises(StoreBehindSinkError, "store_behind_sink"):
        commit_step(world.context(run=run_of(2)), "db")
    assert world.systems["db"].rows == [1]


def test_a_decision_that_is_made_meanwhile_is_not_demanded(world: World) -> None:
    """Between a vote's attempt and its demand another process may decide the number, and deliver it."""
    deliver(world, 1)
    deliver(world, 2)
    assert last_proven(world.store, PIPELINE, "log") == 2
    assert last_proven(world.store, PIPELINE, "log", through=1) == 1


def test_a_quarantined_number_is_not_proven(world: World) -> None:
    deliver(world, 1)
    world.stage(1, run=run_of(2))
    for name in world.delivery.names:
        prepare(world, 2, name)
    commit_step(world.context(run=run_of(2)), "db")
    resolver(world).quarantine(2)
    found = world.store.first_unproven(PIPELINE, 2, "log")
    assert found is not None and (found.number, found.state) == (2, S.QUARANTINED)
    assert last_proven(world.store, PIPELINE, "log") == 1 and last_proven(world.store, PIPELINE, "db") == 2


# --- what is not demanded ---------------------------------------------------------------------------------------------


def test_a_number_that_waits_elsewhere_is_not_demanded(world: World, demanded: list[tuple[str, int, int]]) -> None:
    deliver(world, 1)
    for number in (2, 3):
        world.stage(1, run=run_of(number))
        for name in world.delivery.names:
            prepare(world, number, name)
    commit_step(world.context(run=run_of(3)), "db")  # both are decided, and delivered in one sink
    assert world.systems["db"].last == 3 and world.systems["log"].last == 1
    world.stage(1, run=run_of(4))
    demanded.clear()
    for name in world.delivery.names:
        prepare(world, 4, name)
    assert demanded == [("db", 4, 3), ("log", 4, 1)]
    try_again(world, 4)
    world.check_exactly_once([1, 2, 3, 4])


def test_a_backlog_of_undecided_numbers_demands_what_is_proven(
    world: World, demanded: list[tuple[str, int, int]]
) -> None:
    numbers = deliver(world, 1)
    numbers += world.stage(1, run=run_of(2))
    for name in world.delivery.names:
        prepare(world, 2, name)
    numbers += world.stage(1, run=run_of(3))
    for name in world.delivery.names:
        prepare(world, 3, name)
    assert {least for _, number, least in demanded if number > 1} == {1}
    try_again(world, 3)
    world.check_exactly_once(numbers)


@pytest.mark.parametrize("after", list(AfterAbort))
def test_an_aborted_number_is_not_demanded(world: World, after: AfterAbort) -> None:
    deliver(world, 1)
    world.stage(1, run=run_of(2))
    for name in world.delivery.names:
        prepare(world, 2, name)
    resolver(world).abort(2, after)
    kept = [2] if after is AfterAbort.CARRIED else []
    later = deliver(world, 3) + deliver(world, 4)
    assert world.systems["db"].rows == world.systems["log"].rows == [1, *kept, *later]


def test_a_declined_number_is_retried_and_not_demanded(world: World) -> None:
    deliver(world, 1)
    world.systems["db"].declines_in_commit = True
    with pytest.raises(DeclinedError):
        deliver(world, 2)
    world.systems["db"].declines_in_commit = False
    deliver(world, 3)
    assert world.systems["db"].rows == world.systems["log"].rows == [1, 3]


@pytest.mark.parametrize("ending", ["commit", "abort"])
@pytest.mark.parametrize("is_decided", [True, False])
def test_a_number_that_was_quarantined_is_followed(world: World, ending: str, is_decided: bool) -> None:
    deliver(world, 1)
    world.stage(1, run=run_of(2))
    for name in world.delivery.names:
        prepare(world, 2, name)
    if is_decided:
        commit_step(world.context(run=run_of(2)), "db")
    resolver(world).quarantine(2)
    if ending == "abort" and not is_decided:
        resolver(world).abort(2, AfterAbort.CARRIED)
    else:
        resolver(world).commit(2)
    world.check_exactly_once([1, 2, *deliver(world, 3)])


def test_the_numbers_behind_a_rewind_follow_what_is_delivered(world: World) -> None:
    deliver(world, 1)
    world.stage(2, run=run_of(2))
    acting = coordinator(world)
    world.store.rewind(PIPELINE, acting.epoch, 2, None, "a test")
    deliver(world, 3)
    deliver(world, 4)
    assert world.systems["db"].rows == world.systems["log"].rows == [1, 4, 5]


def test_pruned_history_is_still_demanded(world: World, demanded: list[tuple[str, int, int]]) -> None:
    world.config = replace(world.config, num_retained=1)
    for number in range(1, 2 * MARKERS_TOGETHER + 2):
        deliver(world, number)
    assert 1 not in world.systems["db"].markers, "its markers were pruned"
    newest = 2 * MARKERS_TOGETHER + 1
    assert demanded[-2:] == [(name, newest, newest - 1) for name in ("db", "log")]
    world.systems["log"].last -= 1
    with raises(StoreBehindSinkError, "store_behind_sink"):
        deliver(world, newest + 1)


# --- changed sinks ----------------------------------------------------------------------------------------------------


def test_a_new_participant_has_nothing_to_lose(world: World, demanded: list[tuple[str, int, int]]) -> None:
    alone = world.deliver_into({"rows": "db"})
    deliver(world, 1, alone)
    deliver(world, 2)
    deliver(world, 3)
    assert [each for each in demanded if each[0] == "log"] == [("log", 2, 0), ("log", 3, 2)]


@pytest.mark.parametrize("waits", [True, False])
def test_a_participant_that_returns_owes_its_last_number(
    world: World, demanded: list[tuple[str, int, int]], waits: bool
) -> None:
    alone = world.deliver_into({"rows": "db"})
    deliver(world, 1)
    if waits:  # in the sink that is removed
        world.stage(1, run=run_of(2))
        for name in world.delivery.names:
            prepare(world, 2, name)
        world.systems["log"].away = True
        commit_step(world.context(run=run_of(2)), "db")
        with pytest.raises(SinkUnavailableError):
            commit_step(world.context(run=run_of(2)), "log")
        world.systems["log"].away = False
    else:
        deliver(world, 2)
    deliver(world, 3, alone)
    deliver(world, 4)
    deliver(world, 5)
    assert [each for each in demanded if each[0] == "log"][-2:] == [("log", 4, 2), ("log", 5, 4)]
    assert world.systems["log"].rows == [1, 2, 4, 5] and world.systems["db"].rows == [1, 2, 3, 4, 5]


def test_a_renamed_pipeline_demands_its_own_numbers(
    world: World, demanded: list[tuple[str, int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sink knows a pipeline by its name, so the new name starts there without a number."""
    deliver(world, 1)
    deliver(world, 2)
    worker, new = Worker("a test", 9), "shop"
    world.store.register(new)
    with (
        new_epoch(world.store, PIPELINE, worker, "test") as (held, _),
        new_epoch(world.store, new, worker, "test") as (epoch, _),
    ):
        world.store.rename(PIPELINE, held, 2, new, epoch, SparkPosition("file:///spark/7", 7), "a test")
    monkeypatch.setattr("tests.protocol.world.PIPELINE", new)
    world.systems = {name: System(each.promise, expires=False) for name, each in world.systems.items()}
    demanded.clear()
    numbers = deliver(world, 3) + deliver(world, 4)
    assert numbers == [3, 4]
    assert demanded == [("db", 3, 0), ("log", 3, 0), ("db", 4, 3), ("log", 4, 3)]


def test_a_plan_without_the_participant_does_not_answer_for_it(world: World) -> None:
    """The first number that waits is of other sinks alone."""
    world.systems["side"] = System(Promise.REDO, expires=False)
    both = world.deliver_into({"rows": "db", "copies": "log", "more": "side"})
    deliver(world, 1, both)
    context = world.context(run=run_of(2))
    world.stage(1, run=run_of(2))
    for name in world.delivery.names:
        prepare(world, 2, name)
    commit_step(context, "db")
    world.stage(1, run=run_of(3))
    for name in both.names:
        prepare(world, 3, name, both)
    found = world.store.first_unproven(PIPELINE, 3, "side")
    assert found is not None and found.number == 3
    assert world.store.first_unproven(PIPELINE, 2, "side") is None
    log = world.store.first_unproven(PIPELINE, 3, "log")
    assert log is not None and log.number == 2
    try_again(world, 3, both)


def test_numbers_without_a_marker_are_not_demanded(world: World, demanded: list[tuple[str, int, int]]) -> None:
    at_least = world.deliver_into(BOTH, mode=CheckpointingMode.AT_LEAST_ONCE)
    deliver(world, 1)
    deliver(world, 2, at_least)
    deliver(world, 3)
    deliver(world, 4)
    assert [each for each in demanded if each[0] == "log"] == [("log", 1, 0), ("log", 3, 1), ("log", 4, 3)]
    world.check_exactly_once([1, 2, 3, 4])


# --- adoption ---------------------------------------------------------------------------------------------------------


def test_an_adopted_sink_owes_what_it_had_then(world: World, demanded: list[tuple[str, int, int]]) -> None:
    for number in (1, 2, 3):
        deliver(world, number)
    world.systems["log"].last = 1
    with raises(StoreBehindSinkError, "store_behind_sink"):
        deliver(world, 4)
    adopt(world.store, PIPELINE, Systems(world.systems), "a test")
    demanded.clear()
    try_again(world, 4)
    deliver(world, 5)
    [carried] = {number for _, number, _ in demanded[:2]}
    assert demanded[:2] == [("db", carried, 3), ("log", carried, 1)]
    assert world.systems["db"].rows == [1, 2, 3, 4, demanded[-1][1]]
    assert world.systems["log"].rows == [1, 2, 3, 4, demanded[-1][1]], "the lost rows are not sent again"


def test_an_emptied_sink_that_was_adopted_begins_again(world: World, demanded: list[tuple[str, int, int]]) -> None:
    deliver(world, 1)
    deliver(world, 2)
    world.systems["log"] = System(Promise.REDO, expires=False, token_is_gone=True)
    with raises(TokenLostError, "token_lost"):
        deliver(world, 3)
    assert adopt(world.store, PIPELINE, Systems(world.systems), "a test").forgetful == ("log",)
    world.systems["log"].token_is_gone = False
    demanded.clear()
    try_again(world, 3)
    carried = demanded[0][1]
    deliver(world, 4)
    assert [each[2] for each in demanded if each[0] == "log"] == [0, carried]
    assert world.store.pipeline(PIPELINE).halt_reason is None


def test_a_sink_without_markers_is_not_called_forgetful(world: World) -> None:
    deliver(world, 1, world.deliver_into(BOTH, mode=CheckpointingMode.AT_LEAST_ONCE))
    world.store.halt(PIPELINE, HaltReason.STORE_BEHIND_SINK, "a test")
    assert adopt(world.store, PIPELINE, Systems(world.systems), "a test").forgetful == ()


def test_a_number_keeps_its_place_in_an_adoption(world: World) -> None:
    deliver(world, 1)
    world.stage(1, run=run_of(2))
    for name in world.delivery.names:
        prepare(world, 2, name)
    commit_step(world.context(run=run_of(2)), "db")
    world.systems["log"].last = 0  # a failover between vote and commit
    world.store.halt(PIPELINE, HaltReason.STORE_BEHIND_SINK, "a test")
    found = adopt(world.store, PIPELINE, Systems(world.systems), "a test")
    assert found.forgetful == ("log",) and world.systems["log"].last == 1
    assert not found.uneven, "the others are even"
    deliver(world, 3)
    world.check_exactly_once([1, 2, 3])


def test_a_late_adoption_does_not_resume_what_halted_since(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    deliver(world, 1)
    world.stage(1, run=run_of(2))
    for name in world.delivery.names:
        prepare(world, 2, name)
    commit_step(world.context(run=run_of(2)), "db")
    world.systems["log"].last = 0
    world.store.halt(PIPELINE, HaltReason.STORE_BEHIND_SINK, "a test")
    look = adoption._forgotten

    def overtaken(*args: Any) -> Any:
        monkeypatch.undo()
        found = look(*args)
        adopt(world.store, PIPELINE, Systems(world.systems), "a faster person")
        world.store.halt(PIPELINE, HaltReason.STORE_BEHIND_SINK, "once more")
        return found

    monkeypatch.setattr(adoption, "_forgotten", overtaken)
    with pytest.raises(StateConflictError):
        adopt(world.store, PIPELINE, Systems(world.systems), "a late person")
    assert world.store.pipeline(PIPELINE).status is PipelineStatus.HALTED


def test_a_restored_sink_is_adopted_behind_older_numbers(world: World) -> None:
    """With overlap: one sink still lacks a decided number that the restored one has delivered, and lost."""
    deliver(world, 1)
    world.stage(1, run=run_of(2))
    for name in world.delivery.names:
        prepare(world, 2, name)
    commit_step(world.context(run=run_of(2)), "db")  # `log` still lacks it
    world.stage(1, run=run_of(3))
    world.systems["db"].last = 1
    with raises(StoreBehindSinkError, "store_behind_sink", participant="db"):
        prepare(world, 3, "db")
    with raises(StateConflictError, "action_refused", checkpoint=2):
        adopt(world.store, PIPELINE, Systems(world.systems), "a test")
    world.store.resume(PIPELINE, "a test")
    with closing(coordinator(world)) as acting:
        assert acting.deliver(2).state is S.COMPLETED
    with raises(StoreBehindSinkError, "store_behind_sink", participant="db"):
        try_again(world, 3)
    adopt(world.store, PIPELINE, Systems(world.systems), "a test")
    world.steps(world.context(3, run=run_of(3)))
    assert world.systems["db"].rows == world.systems["log"].rows == [1, 2, 3]
