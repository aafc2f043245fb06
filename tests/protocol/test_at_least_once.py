"""AT_LEAST_ONCE: decided as soon as it is planned; what keeps no marker may get rows twice, and never loses one."""

from __future__ import annotations

from contextlib import suppress
from itertools import groupby
from pathlib import Path

import pytest

from airflow_ft.protocol.coordinator import Coordinator
from airflow_ft.protocol.doubt import Finding, read_evidence
from airflow_ft.protocol.errors import (
    AirflowFtError,
    ConfigurationError,
    NotDeliveredError,
    SinkUnavailableError,
    StateConflictError,
)
from airflow_ft.protocol.lease import Worker, new_epoch
from airflow_ft.protocol.model import CheckpointingMode, CheckpointState, Promise, RunKey
from airflow_ft.protocol.planning import plan_delivery
from airflow_ft.protocol.resolution import Resolver
from airflow_ft.protocol.set_aside import of_proof
from airflow_ft.protocol.steps import commit_step, prepare_step, recover_step
from airflow_ft.sinks.kafka import KafkaSink
from airflow_ft.sinks.mysql.spec import MySqlSink
from tests.protocol.systems import Systems
from tests.protocol.world import PIPELINE, Crash, Fault, World, crash
from tests.raising import raises

BOTH = {"rows": "db", "copies": "log"}
ONCE, AT_LEAST = CheckpointingMode.EXACTLY_ONCE, CheckpointingMode.AT_LEAST_ONCE
S = CheckpointState


def a_world(folder: Path) -> World:
    world = World(folder)
    world.delivery = world.deliver_into(BOTH, mode=AT_LEAST)
    return world


def require_each(world: World, numbers: list[int]) -> None:
    """Once under the marker of the one; at least once, and in order, in the other; all confirmed."""
    assert world.systems["db"].rows == numbers
    assert [number for number, _ in groupby(world.systems["log"].rows)] == numbers
    assert all(world.store.checkpoint(PIPELINE, number).is_confirmed for number in numbers)


def test_it_is_decided_by_its_plan_and_nobody_votes(tmp_path: Path) -> None:
    world = a_world(tmp_path)
    numbers = world.stage(2)

    [one, two] = prepare_step(world.context(), world.delivery, world.config, "db")

    assert (one.state, two.state) == (S.COMMITTING, S.COMMITTING)
    assert one.decided_at is not None and one.prepared_at is None
    assert {name: vote.prepared for name, vote in one.votes.items()} == {"db": 0, "log": 0}
    assert one.plan is not None and one.plan.commit_point is None and one.plan.mode is AT_LEAST
    world.steps(world.context())
    require_each(world, numbers)
    assert world.systems["log"].rows == numbers  # nothing was interrupted


def test_a_sink_does_not_wait_for_another_that_is_away(tmp_path: Path) -> None:
    world = a_world(tmp_path)
    numbers = world.stage(2)
    world.systems["db"].away = True
    with new_epoch(world.store, PIPELINE, Worker("t"), "a test", 3600.0) as (epoch, _):
        coordinator = Coordinator(world.store, PIPELINE, epoch, Systems(world.systems))
        for number in coordinator.plan(world.delivery, 0):
            with pytest.raises((SinkUnavailableError, StateConflictError)):
                coordinator.deliver(number)

    assert world.systems["log"].rows == numbers and not world.systems["db"].rows
    world.systems["db"].away = False
    world.steps(world.context(2))
    require_each(world, numbers)
    assert world.systems["log"].rows == numbers  # what was recorded is not repeated


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_death_at_any_call_loses_nothing(tmp_path: Path, when: str) -> None:
    quiet, fault = a_world(tmp_path), Fault(at=0, when="before", action=crash)
    quiet.stage(2)
    quiet.steps(quiet.context(fault=fault))
    twice = 0
    for at in range(1, fault.calls + 1):
        world = a_world(tmp_path / f"{at}")
        numbers = world.stage(2)
        with pytest.raises(Crash):
            world.steps(world.context(fault=Fault(at, when, crash)))
            raise Crash
        world.steps(world.context(2))
        require_each(world, numbers)
        twice += world.systems["log"].rows != numbers
    # After the rows, and before the decision log knows of them: there, and nowhere else, they come twice.
    assert twice > 0


@pytest.mark.slow
def test_a_zombie_beside_its_successor_loses_nothing(tmp_path: Path) -> None:
    for at in range(1, 60):
        world = a_world(tmp_path / f"{at}")
        numbers = world.stage(2)
        fault = Fault(at, "before", lambda world=world: world.steps(world.context(2)))  # type: ignore[misc]
        with suppress(AirflowFtError):
            world.steps(world.context(fault=fault))
        if not fault.struck:
            break
        with suppress(NotDeliveredError):
            world.steps(world.context(3))
        assert world.systems["db"].rows == numbers
        assert set(world.systems["log"].rows) == set(numbers)
        assert all(world.store.checkpoint(PIPELINE, number).is_confirmed for number in numbers)
    assert at > 10


def test_sinks_with_markers_continue_when_the_mode_changes(tmp_path: Path) -> None:
    world = World(tmp_path)
    runs = [
        (RunKey("dag", f"run-{number}"), mode) for number, mode in enumerate([ONCE, AT_LEAST, AT_LEAST, ONCE, ONCE])
    ]
    numbers = []
    for run, mode in runs:
        numbers += world.stage(1, run)
        world.steps(world.context(run=run), world.deliver_into(BOTH, mode=mode))

    world.check_exactly_once(numbers)
    plans = [world.store.checkpoint(PIPELINE, number).plan for number in numbers]
    before = {name: [plan.participant(name).predecessor for plan in plans if plan] for name in ("db", "log")}
    assert before == {"db": [0, *numbers[:-1]], "log": [0, 0, 0, numbers[0], numbers[3]]}  # what each remembers
    assert world.store.last_delivered(PIPELINE, "log") == numbers[-1]


def test_what_was_prepared_before_the_mode_changed_goes_first(tmp_path: Path) -> None:
    """I4: a plan of AT_LEAST_ONCE is a decision, and nothing is decided before what comes before it."""
    world = World(tmp_path)
    [first] = world.prepared(1)
    run = RunKey("dag", "run-2")
    [second] = world.stage(1, run)
    delivery = world.deliver_into(BOTH, mode=AT_LEAST)
    with new_epoch(world.store, PIPELINE, Worker("t"), "a test", 0.03) as (epoch, _):
        coordinator = Coordinator(world.store, PIPELINE, epoch, Systems(world.systems))
        assert coordinator.plan(delivery, 0) == [first]
        assert world.store.checkpoint(PIPELINE, second).state is S.STAGED
        coordinator.deliver(first)
        assert coordinator.plan(delivery, 0) == [second]
        coordinator.deliver(second)

    world.check_exactly_once([first, second])


def test_a_planned_checkpoint_keeps_its_mode_after_a_mode_change(tmp_path: Path) -> None:
    world = a_world(tmp_path)
    [first] = world.stage(1)
    prepare_step(world.context(), world.delivery, world.config, "db")
    run = RunKey("dag", "run-2")
    world.systems["log"].rows.append(first)  # sent, and not recorded
    later = world.context(2, run=run)
    recover_step(later)
    [second] = world.stage(1, run, 2)
    world.steps(world.context(3, run=run), world.deliver_into(BOTH))

    assert world.systems["db"].rows == [first, second]
    assert world.systems["log"].rows == [first, first, second]


def test_what_keeps_no_marker_says_so_in_doubt(tmp_path: Path) -> None:
    world = a_world(tmp_path)
    [number] = world.stage(1)
    prepare_step(world.context(), world.delivery, world.config, "db")
    commit_step(world.context(), "db")
    plan = world.store.checkpoint(PIPELINE, number).plan
    assert plan is not None

    found = read_evidence(plan, "log", Systems(world.systems))

    assert found.finding is Finding.ABSENT and "keeps no markers" in found.text


def test_strategies_that_hold_rows_back_are_refused() -> None:
    for sink in (KafkaSink(topic="t", strategy="held"), MySqlSink(table="s.t", strategy="xa")):
        with pytest.raises(ConfigurationError) as error:
            plan_delivery({"rows": sink}, mode=AT_LEAST)
        assert "EXACTLY_ONCE" in error.value.remedy
    with raises(ConfigurationError, "arguments_conflict", arguments=["commit_point", "mode"]):
        plan_delivery({"rows": MySqlSink(table="s.t", conn_id="shop")}, "shop", AT_LEAST)


def test_each_sink_promises_what_it_can() -> None:
    sinks = {"rows": MySqlSink(table="s.t", conn_id="shop"), "copies": KafkaSink(topic="t", conn_id="bus")}

    delivery = plan_delivery(sinks, mode=AT_LEAST)

    assert {p.name: p.promise for p in delivery.participants} == {
        "shop": Promise.ATOMIC,
        "bus": Promise.AT_LEAST_ONCE,
    }
    assert delivery.commit_point is None and not delivery.mode.waits
    assert any("may arrive twice" in reason for reason in delivery.reasons)


def test_rows_that_prepare_refuses_are_set_aside(tmp_path: Path) -> None:
    """It ran before the delivery that was to leave them out, and refused them again, for ever."""
    world = a_world(tmp_path)
    [number] = world.stage(1)
    system = world.systems["db"]
    system.declines_in_prepare = system.declines_in_commit = True
    prepare_step(world.context(), world.delivery, world.config, "db")
    with raises(SinkUnavailableError, "refused_after_decision"):
        commit_step(world.context(), "db")

    resolver = Resolver(world.store, PIPELINE, Systems(world.systems), "someone", Worker("someone", 1), 0.03)
    found = resolver.dead_letter(number)

    assert found.state is S.COMPLETED and system.rows == [number]
    proof = found.proof_of("db")
    assert proof is not None and of_proof(proof)["rows"].rows == 1
