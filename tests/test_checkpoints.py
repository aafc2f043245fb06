"""The gate opens on confirmed checkpoints only (I9)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from airflow_ft.checkpoints import Gate
from airflow_ft.core.errors import ConfigurationError
from airflow_ft.core.model import RunKey
from airflow_ft.core.steps import commit_step, prepare_step
from tests.core.world import PIPELINE, RUN, World

GATES = [Gate(number=2), Gate(run=RUN), Gate(after=datetime(2020, 1, 1, tzinfo=UTC))]


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


def test_a_time_that_has_not_come_keeps_it_closed(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.stage(1)
    world.steps(world.context())
    assert Gate(after=world.store.now() + timedelta(seconds=1)).is_open(world.store, PIPELINE) is None


@pytest.mark.parametrize("gate", GATES, ids=str)
def test_it_survives_the_way_to_the_triggerer(gate: Gate) -> None:
    assert Gate.from_json(gate.to_json()) == gate


def test_it_has_one_condition_with_a_zone() -> None:
    for wrong in ({}, {"number": 1, "run": RUN}, {"after": datetime(2020, 1, 1)}):
        with pytest.raises(ConfigurationError):
            Gate(**wrong)
