"""`make simulate SCHEDULES=number SEED=number`: random schedules, on all cores when there are many.

A schedule depends on seed, number and ONLY alone. So `ARGS="--from 100000"` continues where a run of 100,000 schedules
ended. The last line counts what was played, and names the numbers.

It goes on behind a schedule that breaks a law, with the next 2,000. ONLY=text leaves out scenarios in whose names it
does not stand.

`python -m tests.simulation --replay SCENARIO DEVIATION...` tells one schedule as a story.
"""

from __future__ import annotations

import argparse
import gc
import os
import resource
import sys
import time
from concurrent.futures import ProcessPoolExecutor

from airflow_ft.spark.process import die_with_parent
from tests.simulation.adapters import product_over_models
from tests.simulation.explore import play, replaying, story
from tests.simulation.kernel import Deviation
from tests.simulation.scenarios import ALL
from tests.simulation.search import Count, first_violation, report
from tests.simulation.world import Scenario

MANY = 50_000
CHUNK = 2_000


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--schedules", type=int, default=int(os.environ.get("SCHEDULES") or 10_000))
    parser.add_argument("--seed", type=int, default=int(os.environ.get("SEED") or 1))
    parser.add_argument("--from", type=int, default=0, dest="first", metavar="NUMBER", help="of the first schedule")
    parser.add_argument("--only", default=os.environ.get("ONLY") or "", help="scenarios with this in their names")
    parser.add_argument("--replay", nargs="+", metavar="WORD", help="scenario's name, then deviations (A1:107:SLEEP)")
    given = parser.parse_args()
    if given.replay:
        return replay(given.replay[0], given.replay[1:])
    scenarios = len(_named(given.only))
    if not scenarios:
        parser.error(f"no scenario has {given.only!r} in its name")
    if given.first < 0 or given.schedules < 1:
        parser.error("--schedules is at least 1, and --from at least 0")
    end = given.first + given.schedules
    of = f"{given.first:,} to {end - 1:,} of seed {given.seed}"
    print(f"schedules {of}, {scenarios} scenarios", flush=True)
    began = time.monotonic()
    firsts = range(given.first, end, CHUNK)
    orders = [(given.seed, first, min(first + CHUNK, end), given.only) for first in firsts]
    total, broken = Count(), 0
    with ProcessPoolExecutor(os.cpu_count() if given.schedules > MANY else 1, initializer=_begin) as pool:
        for number, (count, story) in enumerate(pool.map(_chunk, orders), 1):
            total = Count(total.schedules + count.schedules, total.calls + count.calls)
            if story:  # what is left of its chunk is not played
                broken += 1
                print(story, flush=True)
            if number % 25 == 0:
                print(f"  {total.schedules:,} schedules, {time.monotonic() - began:,.0f} s", flush=True)
    seconds = time.monotonic() - began
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(
        f"{total.schedules:,} schedules, {total.calls:,} calls, {broken or 'no'} law{'s' * (broken > 1)} broken;"
        f" numbers {of}; {seconds:,.0f} s, {children.ru_utime + children.ru_stime:,.0f} s of CPU"
    )
    return 1 if broken else 0


def _named(only: str) -> list[Scenario]:
    return [scenario for scenario in ALL if only in scenario.name]


def _begin() -> None:
    """A worker ends with the command. Without fewer looks for garbage, they would take a sixth of its time."""
    die_with_parent()
    gc.freeze()
    gc.set_threshold(200_000, 20, 50)


def _chunk(order: tuple[int, int, int, str]) -> tuple[Count, str]:
    """Plays some schedules; how many, and the story of the first violation."""
    seed, first, end, only = order
    scenarios = _named(only)
    count = Count()
    with product_over_models() as running:
        found = first_violation(
            running, seed, range(first, end), lambda index: scenarios[index % len(scenarios)], count
        )
        return count, report(found, running) if found is not None else ""


def replay(name: str, words: list[str]) -> int:
    """Tells one schedule as a story."""
    scenario = next((scenario for scenario in ALL if scenario.name == name), None)
    if scenario is None:
        print(f"there is no scenario {name!r}; there are: {', '.join(repr(s.name) for s in ALL)}")
        return 2
    with product_over_models() as running:
        outcome = play(scenario, replaying([Deviation.parse(word) for word in words]), running)
        print(story(outcome, running))
    return 1 if outcome.violation is not None else 0


if __name__ == "__main__":
    sys.exit(main())
