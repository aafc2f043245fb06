"""Dies at every call of a run, before and after it took effect, and lets zombies wake up beside their successors."""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path

import pytest

from airflow_ft.protocol.errors import AirflowFtError, DeclinedError, NotDeliveredError, TransientError
from airflow_ft.protocol.model import CheckpointState, Promise, RunKey
from airflow_ft.protocol.steps import recover_step
from tests.protocol.systems import System
from tests.protocol.world import PIPELINE, Crash, Fault, World, crash

pytestmark = pytest.mark.release  # the simulation plays these schedules, and more, over the sinks' own code

PAIRS = 60
A, R, T = Promise.ATOMIC, Promise.REDO, Promise.TWO_PHASE
MIXES = {
    "atomic and redo": {"db": A, "log": R},
    "two-phase and redo": {"db": T, "log": R},
    "atomic and two-phase": {"db": A, "log": T},
    "two-phase alone": {"db": T, "log": T},
}


def systems(mix: str) -> dict[str, System]:
    return {name: System(promise) for name, promise in MIXES[mix].items()}


def calls_of_a_quiet_run(folder: Path, mix: str = "atomic and redo") -> int:
    """How many calls a run without faults makes."""
    world = World(folder, systems=systems(mix))
    world.stage(2)
    fault = Fault(at=0, when="before", action=crash)
    world.steps(world.context(fault=fault))
    return fault.calls


def finish(world: World, try_number: int = 2) -> None:
    """Retries as Airflow would, with a growing try number, until nothing fails."""
    for later in range(try_number, try_number + 5):
        try:
            world.steps(world.context(try_number=later))
            return
        except TransientError as error:
            last = error
    raise AssertionError(f"did not settle: {last}")


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("max_rows", [0, 1000])
@pytest.mark.parametrize("mix", MIXES)
def test_a_death_at_any_call_is_made_good_by_the_next_try(tmp_path: Path, when: str, max_rows: int, mix: str) -> None:
    total = calls_of_a_quiet_run(tmp_path, mix)
    for at in range(1, total + 1):
        world = World(tmp_path / f"{at}", max_rows=max_rows, systems=systems(mix))
        numbers = world.stage(2)
        fault = Fault(at, when, crash)
        with pytest.raises(Crash):
            world.steps(world.context(fault=fault))
            raise Crash  # fewer calls than in the quiet run: nothing struck
        finish(world)
        world.check_exactly_once(numbers)


@pytest.mark.parametrize("when", ["before", "after"])
def test_two_deaths_in_a_row_are_made_good(tmp_path: Path, when: str) -> None:
    total = calls_of_a_quiet_run(tmp_path)
    dice = random.Random(7)
    for pair in range(PAIRS):
        first, second = dice.randint(1, total), dice.randint(1, total)
        world = World(tmp_path / f"{pair}")
        numbers = world.stage(2)
        for try_number, at in ((1, first), (2, second)):
            with pytest.raises((Crash, AirflowFtError)):
                world.steps(world.context(try_number, Fault(at, when, crash)))
                raise Crash
        finish(world, 3)
        world.check_exactly_once(numbers)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("mix", MIXES)
def test_a_zombie_that_wakes_after_its_successor_changes_nothing(tmp_path: Path, when: str, mix: str) -> None:
    """I5: at each call the process is stopped, a newer try finishes everything, then the old one goes on."""
    total = calls_of_a_quiet_run(tmp_path, mix)
    for at in range(1, total + 1):
        world = World(tmp_path / f"{at}", systems=systems(mix))
        numbers = world.stage(2)
        fault = Fault(at, when, lambda world=world: finish(world))  # type: ignore[misc]
        try:
            world.steps(world.context(fault=fault))
        except AirflowFtError as error:
            assert isinstance(error, TransientError), f"{fault.struck}: {error!r}"
        finish(world, 9)
        world.check_exactly_once(numbers)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_zombie_of_one_run_beside_the_next_run(tmp_path: Path, when: str) -> None:
    """The next run takes a new epoch, stages more and delivers everything while the old task sleeps."""
    total = calls_of_a_quiet_run(tmp_path)
    for at in range(1, total + 1, 2):
        world = World(tmp_path / f"{at}")
        numbers = world.stage(2)
        other = RunKey("dag", "run-2")

        def next_run(world: World = world, numbers: list[int] = numbers, other: RunKey = other) -> None:
            recover_step(world.context(2, run=other))
            numbers += world.stage(1, run=other, try_number=2)
            world.steps(world.context(3, run=other))

        fault = Fault(at, when, next_run)
        try:
            world.steps(world.context(fault=fault))
        except AirflowFtError as error:
            assert isinstance(error, TransientError), f"{fault.struck}: {error!r}"
        world.steps(world.context(2))
        world.check_exactly_once(numbers)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("mix", ["two-phase and redo", "atomic and two-phase", "two-phase alone"])
def test_a_death_at_any_call_of_an_abort_leaves_nothing_prepared(tmp_path: Path, when: str, mix: str) -> None:
    """A sink refuses after the other has prepared; whoever comes next rolls back, then the rows are computed again."""
    at = 0
    while True:
        at += 1
        world = World(tmp_path / f"{at}", systems=systems(mix))
        world.stage(1)
        world.systems["log"].declines_in_prepare = True
        fault = Fault(at, when, crash)
        with suppress(Crash, DeclinedError, NotDeliveredError):
            world.steps(world.context(fault=fault))
        if not fault.struck:
            break
        with suppress(DeclinedError, NotDeliveredError):  # refused again, unless the abort was written
            world.steps(world.context(try_number=2))
        recover_step(world.context(try_number=3, run=RunKey("dag", "run-2")))
        state = world.store.checkpoint(PIPELINE, 1)
        assert state.state is CheckpointState.ABORTED, fault.struck
        assert not state.rollback_pending, fault.struck
        for name, system in world.systems.items():
            assert not system.prepared, f"{name}: {fault.struck}"
            assert not system.rows, f"{name}: {fault.struck}"
        world.systems["log"].declines_in_prepare = False
        numbers = world.stage(1, run=RunKey("dag", "run-2"), try_number=4)
        world.steps(world.context(try_number=4, run=RunKey("dag", "run-2")))
        world.check_exactly_once(numbers)
