"""A person's acts on what is in doubt die at every call: nothing is lost, and nothing doubled."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_ft.protocol.errors import StateConflictError, TransientError
from airflow_ft.protocol.lease import Worker
from airflow_ft.protocol.model import AfterAbort, CheckpointState
from airflow_ft.protocol.resolution import Resolver
from tests.protocol.systems import Systems
from tests.protocol.test_doubt import decided, resolver, state
from tests.protocol.world import PIPELINE, Crash, Fault, World, crash
from tests.through import Through

S = CheckpointState


@pytest.mark.slow
@pytest.mark.sampled
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("action", ["commit", "abort", "quarantine", "redeliver", "dead_letter"])
@pytest.mark.parametrize("lead", ["prepared", "decided", "quarantined", "quarantined and decided"])
def test_an_act_that_dies_at_any_call_loses_or_doubles_nothing(
    tmp_path: Path, lead: str, action: str, when: str
) -> None:
    for at in range(1, 60):
        world = World(tmp_path / f"{at}")
        numbers = decided(world, 2) if "decided" in lead else world.prepared(2)
        if "quarantined" in lead:
            resolver(world).quarantine(1)
        world.systems["log"].declines_in_commit = action == "dead_letter"
        fault = Fault(at, when, crash)
        dying: Any = Resolver(
            Through(world.store, fault, "store"),  # type: ignore[arg-type]
            PIPELINE,
            lambda plan, world=world, fault=fault: Through(Systems(world.systems)(plan), fault, plan.name),  # type: ignore
            "a test by ada",
            Worker("", 1),
            lease_seconds=0.03,
        )
        try:
            dying.abort(1, AfterAbort.CARRIED) if action == "abort" else getattr(dying, action)(1)
        except Crash:
            pass
        except StateConflictError:
            assert not fault.struck
        if not fault.struck:
            world.store.close()
            assert at > 1
            return
        if action == "dead_letter" and state(world, 1) in (S.COMMITTING, S.QUARANTINED):
            with suppress(StateConflictError):  # it is not decided
                resolver(world).dead_letter(1)
        world.systems["log"].declines_in_commit = False
        if action == "abort" and lead == "quarantined":
            assert state(world, 1) in (S.QUARANTINED, S.ABORTED), fault.struck
        finish(world)
        rows = [system.rows for system in world.systems.values()]
        assert rows == [numbers, numbers], f"{fault.struck}: {rows}"
        world.store.close()
    raise AssertionError("an act has more calls than this test looks at")


def finish(world: World) -> None:
    """What a person and the next runs do after that."""
    for later in range(3, 9):
        if state(world, 1) is S.QUARANTINED:
            resolver(world).commit(1)
        try:
            # The dead one's lease stands still; this one does not wait long to see that.
            world.steps(replace(world.context(try_number=later), lease_seconds=0.03))
            return
        except TransientError as error:
            last = error
    raise AssertionError(f"did not settle: {last}")
