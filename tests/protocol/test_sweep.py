"""Recovery of all pipelines at once: what it settles, what it leaves alone, and what it measures."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from airflow_ft.protocol import steps
from airflow_ft.protocol.errors import SinkUnavailableError, StoreUnavailableError
from airflow_ft.protocol.lease import Worker, new_epoch
from airflow_ft.protocol.model import CheckpointState, Promise, RunKey
from airflow_ft.protocol.pipelines import HaltReason
from airflow_ft.protocol.resolution import Resolver
from airflow_ft.protocol.steps import prepare_step
from airflow_ft.protocol.sweep import Swept, health, recover_all
from tests.protocol.systems import System, Systems
from tests.protocol.world import PIPELINE, RUN, Crash, Fault, World, crash

S = CheckpointState


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    with closing(world.store):
        yield world


def sweep(world: World, participants: Any = None, age: float = 0, lease_seconds: float = 0.03) -> dict[str, Swept]:
    swept = recover_all(
        world.store,
        participants or Systems(world.systems),
        Worker(),
        orphan_age=timedelta(seconds=age),
        lease_seconds=lease_seconds,
    )
    return {each.pipeline: each for each in swept}


def test_it_settles_what_is_old_and_leaves_what_is_young(world: World) -> None:
    numbers = world.prepared(2)
    epoch = world.store.pipeline(PIPELINE).epoch
    assert sweep(world, age=3600)[PIPELINE].recovery.settled == ()
    assert world.store.pipeline(PIPELINE).epoch == epoch, "a healthy run between two of its tasks is not fenced"
    assert sweep(world)[PIPELINE].recovery.settled == ((1, S.COMPLETED), (2, S.COMPLETED))
    world.check_exactly_once(numbers)


def test_a_clock_that_was_put_back_stops_no_recovery(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: clock() + 3600 * 10**9)
    numbers = world.prepared(2)
    steps.commit_step(world.context(), "db")
    monkeypatch.setattr(time, "time_ns", clock)
    assert health(world.store, PIPELINE).undelivered == timedelta(0)
    assert sweep(world, age=7200)[PIPELINE].recovery.settled == (), "they may be of a moment ago"
    assert sweep(world, age=600)[PIPELINE].recovery.completed == (1, 2)
    world.check_exactly_once(numbers)
    found = health(world.store, PIPELINE)
    assert found.since_confirmed is not None and found.since_confirmed < timedelta(minutes=5)


def test_staged_checkpoints_are_left_to_their_run(world: World) -> None:
    world.stage(2)
    epoch = world.store.pipeline(PIPELINE).epoch
    sweep(world)
    assert world.store.checkpoint(PIPELINE, 1).state is S.STAGED
    assert world.store.pipeline(PIPELINE).epoch == epoch


@pytest.mark.slow
def test_the_sweep_ends_prepared_rows_of_a_try_that_died(tmp_path: Path) -> None:
    """Wherever a run dies before its last vote: what it has prepared is ended by the sweep, and by nobody too early."""
    held_after = []
    for at in count(1):
        folder = tmp_path / str(at)
        folder.mkdir()
        world = World(folder, systems={"db": System(Promise.TWO_PHASE), "log": System(Promise.TWO_PHASE)})
        with closing(world.store):
            numbers = world.stage(2)
            fault = Fault(at, "after", crash)
            with suppress(Crash):
                for name in world.delivery.names:
                    prepare_step(world.context(fault=fault), world.delivery, world.config, name)
            if not fault.struck:
                break
            held = any(system.prepared for system in world.systems.values())
            sweep(world, age=3600)
            assert any(system.prepared for system in world.systems.values()) == held, "it may be at work still"
            sweep(world)
            assert not any(system.prepared for system in world.systems.values()), fault.struck
            if held:
                held_after.append(fault.struck)
                db, log = (system.rows for system in world.systems.values())
                assert db == log == numbers[: len(db)] != [], fault.struck
    assert any("db.prepare" in place for place in held_after), held_after


def test_a_prepared_checkpoint_waits_behind_a_quarantined_one(tmp_path: Path) -> None:
    world = World(tmp_path, max_rows=20, systems={"db": System(Promise.TWO_PHASE), "log": System(Promise.REDO)})
    with closing(world.store):
        world.stage(1)
        for name in world.delivery.names:
            prepare_step(world.context(), world.delivery, world.config, name)
        world.stage(1, RunKey("dag", "run-2"))
        prepare_step(world.context(run=RunKey("dag", "run-2")), world.delivery, world.config, "db")
        world.store.quarantine(PIPELINE, world.store.pipeline(PIPELINE).epoch, 1, "somebody looks at it.")
        assert sweep(world)[PIPELINE] == Swept(PIPELINE)


def test_whoever_is_at_work_is_left_alone(world: World) -> None:
    world.prepared()
    with new_epoch(world.store, PIPELINE, Worker("dag/run/step"), "at work", 0.3):
        assert "dag/run/step" in sweep(world, lease_seconds=5)[PIPELINE].left_alone
    assert world.store.checkpoint(PIPELINE, 1).state is S.PREPARED


def test_one_that_fails_or_is_halted_does_not_keep_the_others(world: World) -> None:
    world.prepared()
    for name in ("halted", "new"):
        world.store.register(name)
    world.store.halt("halted", HaltReason.TOKEN_LOST, "it is gone.")

    def participants(plan: Any) -> Any:
        raise SinkUnavailableError("no answer.")

    swept = sweep(world, participants)
    assert isinstance(swept[PIPELINE].error, SinkUnavailableError)
    assert "HALTED" in swept["halted"].left_alone
    assert swept["new"] == Swept("new")
    assert sweep(world)[PIPELINE].recovery.completed == (1,)


def test_without_the_decision_log_nothing_is_touched(world: World) -> None:
    """I8: a store that cannot be reached means 'leave alone'."""
    world.prepared()
    touched: list[str] = []

    class Gone:
        def __getattr__(self, name: str) -> Any:
            if name in ("pipelines", "open_checkpoints", "now"):
                return getattr(world.store, name)

            def fails(*_: Any, **__: Any) -> Any:
                raise StoreUnavailableError("the server is gone.")

            return fails

    def participants(plan: Any) -> Any:
        touched.append(plan.name)
        return Systems(world.systems)(plan)

    with pytest.raises(StoreUnavailableError):
        recover_all(Gone(), participants, Worker(), orphan_age=timedelta(0), lease_seconds=0.03)  # type: ignore[arg-type]
    assert touched == []


def test_many_pipelines_are_settled_side_by_side(tmp_path: Path) -> None:
    """100 branches in doubt: 50 numbers in two systems each, over ten pipelines in one log."""
    world = World(tmp_path)
    systems: dict[str, dict[str, System]] = {}
    for i in range(10):
        name = f"p{i}"
        systems[name] = {conn: replace(system, markers={}, rows=[]) for conn, system in world.systems.items()}
        _prepare_as(world, name, systems[name], 5)

    def participants(plan: Any) -> Any:
        # Each pipeline has systems of its own; the predecessor tells nothing, so the sink's name does.
        return Systems(systems[next(iter(plan.sinks)).partition("-")[0]])(plan)

    began = time.monotonic()
    swept = recover_all(world.store, participants, Worker(), orphan_age=timedelta(0), lease_seconds=0.03)
    print(f"100 branches settled in {time.monotonic() - began:.2f} s")
    assert {each.pipeline: len(each.recovery.completed) for each in swept} == {f"p{i}": 5 for i in range(10)}
    world.store.close()


def _prepare_as(world: World, pipeline: str, systems: dict[str, System], count: int) -> None:
    from airflow_ft.protocol.model import Segment, SparkPosition

    store = world.store
    store.register(pipeline)
    store.enter_turn(pipeline, RUN, None)
    delivery = world.deliver_into({f"{pipeline}-rows": "db", f"{pipeline}-copies": "log"})
    with new_epoch(store, pipeline, Worker("a"), "stage", 3600) as (epoch, _):
        store.begin_stage(pipeline, epoch, RUN)
        for _ in range(count):
            number = store.trigger(pipeline, epoch, RUN)
            rows = {f"{pipeline}-rows": 1, f"{pipeline}-copies": 1}
            segment = Segment(number, f"{number:064x}", f"file:///wal/{pipeline}/{number}", rows, 1)
            store.publish(pipeline, epoch, number, number - 1, segment, SparkPosition("file:///spark", number), {})
        store.end_stage(pipeline, epoch, RUN, None)
    context = replace(world.context(), pipeline=pipeline, participants=Systems(systems))
    for name in delivery.names:
        steps.prepare_step(context, delivery, world.config, name)


# --- how it stands ------------------------------------------------------------------------------------------------


def test_a_settled_pipeline_is_well(world: World) -> None:
    world.store.register(PIPELINE)
    fresh = health(world.store, PIPELINE, timedelta(0))
    assert (fresh.undecided, fresh.undelivered, fresh.since_confirmed, fresh.needs) == (timedelta(0),) * 2 + (None, "")
    world.stage(1)
    world.steps(world.context())
    done = health(world.store, PIPELINE, timedelta(0))
    assert (done.undecided, done.undelivered, done.in_doubt, done.needs) == (timedelta(0), timedelta(0), 0, "")
    assert done.since_confirmed is not None and timedelta(0) <= done.since_confirmed < timedelta(minutes=5)


@pytest.mark.parametrize(
    ("lead", "undecided", "in_doubt"),
    [(lambda w: w.stage(1), True, 0), (World.prepared, True, 1), (lambda w: decide(w), False, 1)],
)
def test_ages_grow_until_it_is_decided_and_delivered(
    world: World, lead: Callable[[World], Any], undecided: bool, in_doubt: int
) -> None:
    lead(world)
    found = health(world.store, PIPELINE)
    assert (found.undecided > timedelta(0), found.undelivered > timedelta(0)) == (undecided, True)
    assert (found.in_doubt, found.needs) == (in_doubt, "")
    assert "checkpoint 1 was published" in health(world.store, PIPELINE, timedelta(0)).needs


def decide(world: World) -> None:
    world.prepared()
    steps.commit_step(world.context(), "db")


def test_what_waits_for_a_person_says_so(world: World) -> None:
    decide(world)
    Resolver(world.store, PIPELINE, Systems(world.systems), "ada", Worker(), 0.03).quarantine(1)
    assert "checkpoint 1 is QUARANTINED: ada" in health(world.store, PIPELINE).needs
    assert health(world.store, PIPELINE).in_doubt == 1
    world.store.halt(PIPELINE, HaltReason.STORE_BEHIND_SINK, "its last number is 7.")
    assert "HALTED (STORE_BEHIND_SINK)" in health(world.store, PIPELINE).needs
