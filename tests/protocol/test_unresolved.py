"""What cannot be settled is neither lost nor tried for ever: it is kept for a person, and every gate stays closed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_ft.protocol import steps, unresolved
from airflow_ft.protocol.config import CheckpointConfig
from airflow_ft.protocol.doubt import Evidence
from airflow_ft.protocol.errors import NotDeliveredError, QuarantinedError, SinkUnavailableError
from airflow_ft.protocol.lease import Worker, new_epoch
from airflow_ft.protocol.model import CheckpointState, Fence
from airflow_ft.protocol.resolution import Resolver
from tests.protocol.systems import NoArchive, Systems
from tests.protocol.world import PIPELINE, World
from tests.raising import raises

S = CheckpointState
NOW = timedelta(0)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    with closing(world.store):
        yield world


def refused_after_the_decision(world: World) -> list[int]:
    """`db` has committed, and `log` refuses the rows."""
    numbers = world.stage(1)
    for name in world.delivery.names:
        steps.prepare_step(world.context(), world.delivery, world.config, name)
    world.systems["log"].declines_in_commit = True
    steps.commit_step(world.context(), "db")
    with raises(SinkUnavailableError, "refused_after_decision"):
        steps.commit_step(world.context(), "log")
    return numbers


def confirm(world: World, after: timedelta | None, try_number: int = 1) -> str:
    config = replace(world.config, quarantine_after=after)
    with pytest.raises(NotDeliveredError) as caught:
        steps.confirm_step(world.context(try_number), config, NoArchive())
    return str(caught.value)


def test_an_unknown_age_quarantines_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: clock() + 3600 * 10**9)
    refused_after_the_decision(world)
    monkeypatch.setattr(time, "time_ns", clock)
    assert "COMMITTING" in confirm(world, timedelta(minutes=10))


def test_it_is_kept_after_a_while_and_the_next_run_fails_at_once(world: World) -> None:
    numbers = refused_after_the_decision(world)
    assert "COMMITTING" in confirm(world, timedelta(days=1))
    text = confirm(world, NOW)
    assert "checkpoint 1 is QUARANTINED" in text and "log: it has delivered nothing" in text
    with raises(QuarantinedError, "checkpoint_quarantined", checkpoint=1):
        steps.recover_step(world.context(2))
    world.systems["log"].declines_in_commit = False
    Resolver(world.store, PIPELINE, Systems(world.systems), "ada", Worker(), 0.03).commit(1)
    world.check_exactly_once(numbers)


def test_an_unreachable_sink_never_needs_a_person(world: World) -> None:
    """I7: when it can be reached again, recovery ends the case."""
    numbers = refused_after_the_decision(world)

    def participants(plan: Any) -> Any:
        raise SinkUnavailableError("no answer.")

    assert unresolved.quarantine_unresolved(world.store, PIPELINE, participants, NOW) is None
    world.systems["log"].declines_in_commit = False
    world.steps(world.context(2))
    world.check_exactly_once(numbers)


def test_a_sink_that_has_just_come_back_gets_a_try_first(world: World) -> None:
    numbers = world.stage(1)
    for name in world.delivery.names:
        steps.prepare_step(world.context(), world.delivery, world.config, name)
    steps.commit_step(world.context(), "db")
    assert "COMMITTING" in confirm(world, NOW), "no try at `log` is known"
    world.systems["log"].away = True
    with raises(SinkUnavailableError, "sink_unavailable"):
        steps.commit_step(world.context(), "log")
    world.systems["log"].away = False
    assert "COMMITTING" in confirm(world, NOW)
    world.steps(world.context(2))
    world.check_exactly_once(numbers)


def test_foreign_exceptions_are_refusals(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a MemoryError, or an error in the code of a sink, the next try most likely fails, too."""
    numbers = world.stage(1)
    for name in world.delivery.names:
        steps.prepare_step(world.context(), world.delivery, world.config, name)
    steps.commit_step(world.context(), "db")

    def fail(fence: Fence) -> None:
        raise MemoryError("secret-7")

    with monkeypatch.context() as patch:
        patch.setattr(world.systems["log"], "raise_head", fail)
        with pytest.raises(MemoryError):
            steps.commit_step(world.context(), "log")
    problem = world.store.checkpoint(PIPELINE, 1).problem_of("log")
    assert problem is not None and problem.kind == "MemoryError" and "secret-7" not in problem.text
    assert "checkpoint 1 is QUARANTINED" in confirm(world, NOW)
    Resolver(world.store, PIPELINE, Systems(world.systems), "ada", Worker(), 0.03).commit(1)
    world.check_exactly_once(numbers)


def test_never_means_never(world: World) -> None:
    refused_after_the_decision(world)
    assert "COMMITTING" in confirm(world, None)


def test_what_only_waits_to_be_recorded_is_not_kept(world: World) -> None:
    numbers = refused_after_the_decision(world)
    world.systems["log"].declines_in_commit = False
    plan = world.store.checkpoint(PIPELINE, 1).plan
    assert plan is not None
    with new_epoch(world.store, PIPELINE, Worker("dag/run-1/step", 2), "a test", 0.03) as (epoch, _):
        attempt = world.store.begin_attempt(PIPELINE, epoch, 1, "log")
        fence = Fence(PIPELINE, world.store.installation, epoch, attempt)
        Systems(world.systems)(plan.participant("log")).commit(plan, fence)
    assert unresolved.quarantine_unresolved(world.store, PIPELINE, Systems(world.systems), NOW) is None
    world.steps(world.context(3))
    world.check_exactly_once(numbers)


def test_nothing_is_kept_while_somebody_is_at_work(world: World) -> None:
    refused_after_the_decision(world)
    with new_epoch(world.store, PIPELINE, Worker("dag/run-1/step", 2), "a test", 0.03):
        assert unresolved.quarantine_unresolved(world.store, PIPELINE, Systems(world.systems), NOW) is None


@pytest.mark.parametrize("joins", [False, True])
def test_a_process_that_begins_meanwhile_is_left_alone(
    joins: bool, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes or joins an epoch while the sinks are asked, so it would meet a checkpoint that needs a person."""
    refused_after_the_decision(world)
    ask, worker = unresolved.read_evidence, Worker("dag/run-1/step", 2)
    with ExitStack() as stack:

        def begin(*given: Any) -> Evidence:
            found = ask(*given)
            if joins:
                world.store.hold_lease(PIPELINE, world.store.pipeline(PIPELINE).epoch, worker.lease())
            else:
                stack.enter_context(new_epoch(world.store, PIPELINE, worker, "a test", 0.03))
            return found

        monkeypatch.setattr(unresolved, "read_evidence", begin)
        assert unresolved.quarantine_unresolved(world.store, PIPELINE, Systems(world.systems), NOW) is None
    assert world.store.checkpoint(PIPELINE, 1).state is S.COMMITTING


def test_the_setting_survives_json() -> None:
    assert CheckpointConfig.from_json(CheckpointConfig().to_json()) == CheckpointConfig()
    for after in (None, timedelta(0), timedelta(hours=3)):
        config = CheckpointConfig(quarantine_after=after)
        assert CheckpointConfig.from_json(config.to_json()) == config
