"""What the doctor says of a sink's memory, compared with the decision log."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from airflow_ft.pipeline import sink_doctor
from airflow_ft.protocol.doctor import Check, Verdict
from airflow_ft.protocol.model import CheckpointState
from airflow_ft.protocol.steps import commit_step, prepare_step
from airflow_ft.wal import open_wal
from tests.protocol.systems import Systems
from tests.protocol.world import PIPELINE, World
from tests.sinks.delta.world import world_of


def memory_of(world: World, name: str) -> Sequence[Check]:
    plan = world.store.checkpoint(PIPELINE, 1).plan
    assert plan is not None
    opener = Systems(world.systems)
    return sink_doctor._memory(name, PIPELINE, plan.participant(name), opener, world.store)  # type: ignore[arg-type]


def test_a_refused_row_of_a_dry_run_names_no_file(tmp_path: Path) -> None:
    """The files are deleted before a person reads the result."""
    world = world_of(tmp_path, partition_by=["day"])
    days = pa.array([0, 14_600_000], pa.date32())
    world.deliver(world.plan(pa.table({"id": [1, 2], "day": days.take([0, 0])})))
    plan = world.plan(pa.table({"id": [1, 2], "day": days}))
    rows = [open_wal().open(each) for each in plan.segments]
    [participant] = plan.participants
    [check] = sink_doctor._values("sink rows", world.pipeline, participant, lambda _: world.participant(plan), rows)
    assert check.code == "row_refused" and "row 2" in check.text and "'day'" in check.text
    assert ".parquet" not in check.text + check.remedy and check.remedy


def test_a_decided_checkpoint_that_waits_is_not_lost(tmp_path: Path) -> None:
    """A process died between two sinks: the second has not delivered what was decided."""
    world = World(tmp_path)
    world.systems["log"].expires = False
    world.stage(1)
    world.steps(world.context(), world.delivery)
    world.stage(1)
    for name in ("db", "log"):
        prepare_step(world.context(2), world.delivery, world.config, name)
    commit_step(world.context(2), "db")
    assert world.store.checkpoint(PIPELINE, 2).state is CheckpointState.COMMITTING
    [check] = memory_of(world, "log")
    assert check.verdict is Verdict.OK and "newest checkpoint is 1" in check.text
    world.systems["log"].last = 0
    [check] = memory_of(world, "log")
    assert check.verdict is Verdict.PROBLEM and "has checkpoint 1 as delivered" in check.text
