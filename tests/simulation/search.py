"""Playing many random schedules, and telling the first one that breaks a law."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tests.simulation.adapters import Running
from tests.simulation.explore import Outcome, play, replaying, rolling, shrink, story, zombie_and_successor
from tests.simulation.kernel import Deviation
from tests.simulation.world import Scenario

SEED_STEP = 1_000_003  # so that neighbouring seeds have no schedule in common


@dataclass(frozen=True)
class Found:
    """A schedule that breaks a law, and where it was met."""

    outcome: Outcome
    seed: int
    index: int


@dataclass
class Count:
    """How much was played."""

    schedules: int = 0
    calls: int = 0


def first_violation(
    running: Running,
    seed: int,
    indices: Iterable[int],
    scenario_of: Callable[[int], Scenario],
    count: Count | None = None,
    *,
    real_store: bool = False,
) -> Found | None:
    """Plays the schedules of a seed until one breaks a law; None: none did."""
    for index in indices:
        scenario = scenario_of(index)
        outcome = play(scenario, rolling(scenario, seed * SEED_STEP + index), running, real_store=real_store)
        if count is not None:
            count.schedules += 1
            count.calls += outcome.steps
        if outcome.violation is not None:
            return Found(outcome, seed, index)
    return None


def first_pair(
    running: Running, scenario: Scenario, before: tuple[Deviation, ...] = (), *, at: int = 0
) -> Found | None:
    """The first schedule of a zombie beside its successor that breaks a law; those before `at` are played last."""
    schedules = list(enumerate(zombie_and_successor(scenario, running, before)))
    for index, schedule in schedules[at:] + schedules[:at]:
        outcome = play(scenario, replaying(schedule), running)
        if outcome.violation is not None:
            return Found(outcome, 0, index)
    return None


def report(found: Found, running: Running) -> str:
    """The shortest schedule that breaks the same law, as a story, with the command that tells it again."""
    shortest = shrink(found.outcome, running)
    words = " ".join(f"'{deviation}'" for deviation in shortest.schedule)
    again = f"python -m tests.simulation --replay '{shortest.scenario.name}' {words}"
    return f"A law was broken by schedule {found.index} of seed {found.seed}.\n{story(shortest, running, again)}"
