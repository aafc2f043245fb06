"""Random schedules from a printed seed; `make simulate SCHEDULES=1000000 SEED=7` plays more of them."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from tests.simulation.adapters import Running
from tests.simulation.explore import play, replaying, rolling
from tests.simulation.scenarios import ALL, BOTH, scenario_of
from tests.simulation.search import SEED_STEP, first_violation, report
from tests.tiers import content_number

SCHEDULES = 10_000 if os.environ.get("THOROUGH") else 200
SEED = int(os.environ.get("SEED") or content_number())  # other schedules for each state of the files


@pytest.mark.slow
def test_no_law_is_broken_by_random_schedules(running: Running) -> None:
    print(f"seed {SEED}")
    found = first_violation(running, SEED, range(SCHEDULES), scenario_of)
    if found is not None:
        pytest.fail(report(found, running))


def test_safety_does_not_rest_on_leases(running: Running) -> None:
    """Not a defect: with leases that keep nobody out, two runs fight for the pipeline, and every law holds (I5)."""
    impatient = replace(BOTH, name="no lease is respected", runs=(1, 2), concurrent=True, lease=0.0)
    found = first_violation(running, SEED, range(150), lambda _: impatient)
    if found is not None:
        pytest.fail(report(found, running))


def test_a_seed_gives_the_same_schedule_again(running: Running) -> None:
    for index in range(30):
        scenario = ALL[index % len(ALL)]
        one = play(scenario, rolling(scenario, SEED * SEED_STEP + index), running)
        again = play(scenario, rolling(scenario, SEED * SEED_STEP + index), running)
        replayed = play(scenario, replaying(one.schedule), running)
        assert one.schedule == again.schedule == replayed.schedule
        assert one.steps == again.steps == replayed.steps
