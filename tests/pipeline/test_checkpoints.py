"""The gate opens on confirmed checkpoints only (I9)."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from airflow_ft.pipeline.checkpoints import BEGINNING, Gate, confirmed_as_of
from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.protocol.lease import Worker, new_epoch
from airflow_ft.protocol.model import RunKey, Segment, SparkPosition
from airflow_ft.protocol.steps import commit_step, prepare_step
from tests.protocol.world import PIPELINE, RUN, World

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
GATES = [Gate(number=2), Gate(run=RUN), Gate(as_of=LONG_AGO), Gate(after=LONG_AGO)]
LATER = RunKey("dag", "run-2")


@pytest.mark.parametrize("gate", GATES, ids=str)
def test_nothing_but_the_last_proof_opens_it(gate: Gate, tmp_path: Path) -> None:
    world = World(tmp_path, max_rows=1_000)
    assert gate.is_open(world.store, "no-such-pipeline") is None
    world.stage(2)
    context = world.context()
    assert gate.is_open(world.store, PIPELINE) is None, "staged"
    for name in world.delivery.names:
        prepare_step(context, world.delivery, world.config, name)
    assert gate.is_open(world.store, PIPELINE) is None, "prepared"
    first, second = world.delivery.names
    commit_step(context, first)
    assert gate.is_open(world.store, PIPELINE) is None, "decided, in one sink"
    commit_step(context, second)
    assert gate.is_open(world.store, PIPELINE) == {"pipeline": PIPELINE, "number": 2}


def test_a_number_waits_for_every_earlier_one(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.stage(2)
    world.steps(world.context())
    assert Gate(number=1).is_open(world.store, PIPELINE)
    assert Gate(number=3).is_open(world.store, PIPELINE) is None


def test_a_run_that_did_not_stage_keeps_it_closed(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.stage(1)
    world.steps(world.context())
    assert Gate(run=RunKey("dag", "another")).is_open(world.store, PIPELINE) is None


def test_a_run_that_staged_nothing_new_opens_it(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.stage(0)
    assert Gate(run=RUN).is_open(world.store, PIPELINE) == {"pipeline": PIPELINE, "number": 0}


def test_a_late_delivery_of_older_rows_opens_no_as_of_gate(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.stage(1)
    at = world.store.now()
    world.steps(world.context())  # delivered after `at`, read before it
    assert Gate(after=at).is_open(world.store, PIPELINE), "which says no more than that"
    assert Gate(as_of=at).is_open(world.store, PIPELINE) is None
    world.stage(2, LATER)
    assert Gate(as_of=at).is_open(world.store, PIPELINE) is None, "read, not delivered"
    world.steps(world.context(run=LATER))
    assert Gate(as_of=at).is_open(world.store, PIPELINE) == {"pipeline": PIPELINE, "number": 3}


@pytest.mark.parametrize("ahead", [timedelta(hours=1), timedelta(days=400)], ids=str)
def test_a_stage_on_a_fast_clock_opens_no_later_gate(
    ahead: timedelta, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, clock = World(tmp_path), time.time_ns
    fast = ahead // timedelta(microseconds=1) * 1_000
    world.stage(1)
    before = world.store.now()
    monkeypatch.setattr(time, "time_ns", lambda: clock() + fast)
    world.steps(world.context())
    world.stage(1, LATER)
    stamped = world.store.now()
    monkeypatch.undo()
    now = world.store.now()
    assert Gate(after=now).is_open(world.store, PIPELINE) is None
    assert confirmed_as_of(world.store, PIPELINE, now) is None, "the stamp is in the future"
    world.steps(world.context(run=LATER))  # its writes contradict the stamp
    monkeypatch.setattr(time, "time_ns", lambda: clock() + 2 * fast)
    for at in (now, now + ahead / 2, stamped):
        assert confirmed_as_of(world.store, PIPELINE, at) is None
    assert confirmed_as_of(world.store, PIPELINE, before - timedelta(seconds=1)) == 1
    read = world.store.read_as_of(PIPELINE, 2)
    assert read is not None and before - timedelta(seconds=1) < read < now


def test_an_empty_run_opens_the_gate_after_earlier_deliveries(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.stage(1)
    world.store.leave_turn(PIPELINE, RUN)
    at = world.store.now()
    world.stage(0, LATER)
    assert Gate(as_of=at).is_open(world.store, PIPELINE) is None, "what it found published is not delivered"
    assert Gate(run=LATER).is_open(world.store, PIPELINE) is None
    world.steps(world.context(run=LATER))
    assert Gate(as_of=at).is_open(world.store, PIPELINE) and Gate(run=LATER).is_open(world.store, PIPELINE)


def test_a_stage_that_read_a_part_only_does_not_open_it(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.store.register(PIPELINE)
    with new_epoch(world.store, PIPELINE, Worker("t"), "stage", 1) as (epoch, _):
        world.store.begin_stage(PIPELINE, epoch, RUN)
        world.store.end_stage(PIPELINE, epoch, RUN, None, complete=False)
    assert Gate(as_of=LONG_AGO).is_open(world.store, PIPELINE) is None
    assert Gate(run=RUN).is_open(world.store, PIPELINE), "all of its own is delivered"


def test_a_gate_stays_closed_until_rewound_rows_are_delivered(tmp_path: Path) -> None:
    """A rewound number counts as settled; its rows are delivered by later ones, and perhaps by several of them."""
    world = World(tmp_path)
    began = world.store.now()
    world.stage(1)
    world.steps(world.context())
    world.stage(1, LATER)
    gates = [Gate.published(world.store, PIPELINE), Gate(as_of=began), Gate(run=LATER)]
    assert gates[0] == Gate(number=2)

    def are_open() -> list[bool]:
        return [gate.is_open(world.store, PIPELINE) is not None for gate in gates]

    epoch = world.store.pipeline(PIPELINE).epoch
    world.store.rewind(PIPELINE, epoch, 2, None, "a test")
    assert are_open() == [False, True, False], "as of its begin the first run has read everything"
    with new_epoch(world.store, PIPELINE, Worker("t"), "stage", 1) as (epoch, _):
        world.store.begin_stage(PIPELINE, epoch, LATER)
        for last in (2, 3):
            number = world.store.trigger(PIPELINE, epoch, LATER)
            segment = Segment(number, f"{number:064x}", f"file:///wal/{number}", {"rows": 10, "copies": 10}, 100)
            position = SparkPosition("file:///spark/x", number)
            before = world.store.pipeline(PIPELINE).last_published
            world.store.publish(PIPELINE, epoch, number, before, segment, position, {})
            if last == 2:  # the first half is delivered while the second one is computed
                world.store.adopt_run(PIPELINE, epoch, LATER)
                for name in world.delivery.names:
                    prepare_step(world.context(run=LATER), world.delivery, world.config, name)
                for name in world.delivery.names:
                    commit_step(world.context(run=LATER), name)
                assert world.store.checkpoint(PIPELINE, number).is_confirmed
                assert are_open() == [False, True, False]
        world.store.end_stage(PIPELINE, epoch, LATER, None)
    assert are_open() == [False, True, False]
    world.steps(world.context(run=LATER))
    assert are_open() == [True] * 3


def test_a_gate_on_published_checkpoints_ignores_later_ones(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.stage(2)
    gate = Gate.published(world.store, PIPELINE)
    assert gate.is_open(world.store, PIPELINE) is None
    world.steps(world.context())
    world.stage(1, LATER)
    assert gate.is_open(world.store, PIPELINE)
    assert Gate.published(world.store, PIPELINE).is_open(world.store, PIPELINE) is None


def test_with_nothing_published_the_gate_waits_for_a_whole_run(tmp_path: Path) -> None:
    world = World(tmp_path)
    gate = Gate.published(world.store, "no-such-pipeline")
    assert gate == Gate.published(world.store, PIPELINE) == Gate(as_of=BEGINNING)
    assert gate.is_open(world.store, PIPELINE) is None
    world.stage(0)
    assert gate.is_open(world.store, PIPELINE) == {"pipeline": PIPELINE, "number": 0}


def test_a_run_is_meant_whichever_map_index_it_has(tmp_path: Path) -> None:
    world = World(tmp_path)
    mapped = RunKey("dag", "mapped", 3)
    gate = Gate(run=RunKey("dag", "mapped"))
    world.stage(1, mapped)
    assert gate.is_open(world.store, PIPELINE) is None
    world.steps(world.context(run=mapped))
    assert gate.is_open(world.store, PIPELINE)
    assert Gate(run=RunKey("dag", "mapped", 2)).is_open(world.store, PIPELINE) is None


def test_a_time_that_has_not_come_keeps_it_closed(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.stage(1)
    world.steps(world.context())
    assert Gate(after=world.store.now() + timedelta(seconds=1)).is_open(world.store, PIPELINE) is None


@pytest.mark.parametrize("gate", GATES, ids=str)
def test_it_survives_the_way_to_the_triggerer(gate: Gate) -> None:
    assert Gate.from_json(gate.to_json()) == gate


def test_it_has_one_condition_with_a_zone() -> None:
    for wrong in ({}, {"number": 1, "run": RUN}, {"after": datetime(2020, 1, 1)}, {"as_of": datetime(2020, 1, 1)}):
        with pytest.raises(ConfigurationError):
            Gate(**wrong)
