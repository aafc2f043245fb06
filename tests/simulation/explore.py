"""Schedules: replayed, exhaustive, random, shrunk to the shortest that still breaks the law, and told as a story."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tests.simulation.adapters import Running
from tests.simulation.kernel import FAULTS, Chooser, Deviation, DeviationKind, Kernel, Line, Process, Violation
from tests.simulation.tracing import as_text, is_plain_read
from tests.simulation.world import Scenario, World

MOST_DEVIATIONS = 6
MOST_LINES = 400


@dataclass(frozen=True)
class Outcome:
    """How a schedule ended: the deviations that took place, and the law that broke (None: all held)."""

    scenario: Scenario
    schedule: tuple[Deviation, ...]
    violation: Violation | None
    steps: int
    story: tuple[Line, ...] = ()


def play(
    scenario: Scenario, choose: Chooser, running: Running, *, tracing: bool = False, real_store: bool = False
) -> Outcome:
    """Plays one schedule to its end, or to the first violation."""
    world = World(scenario, choose, running, tracing=tracing, real_store=real_store)
    violation: Violation | None = None
    try:
        world.play()
    except Violation as met:
        violation = met
    kernel = world.kernel
    return Outcome(scenario, tuple(kernel.done), violation, kernel.steps, tuple(kernel.story))


def replaying(schedule: Sequence[Deviation]) -> Chooser:
    """Chooses what a schedule says; what cannot take place any more is left out."""
    places = {(deviation.process, deviation.call): deviation for deviation in schedule}

    def choose(kernel: Kernel, process: Process, writes: bool) -> tuple[DeviationKind, str] | None:
        deviation = places.get((process.name, process.calls))
        if deviation is None or (deviation.kind is DeviationKind.DELAY and not writes):
            return None
        if deviation.kind is DeviationKind.YIELD and deviation.to not in {other.name for other in kernel.others()}:
            return None
        return deviation.kind, deviation.to

    return choose


# --- exhaustive ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Call:
    """A call of a quiet run."""

    process: str
    number: int
    writes: bool


def calls_of(scenario: Scenario, running: Running, schedule: Sequence[Deviation] = ()) -> list[Call]:
    """All calls of a schedule, in order, without those of the last run that heals."""
    calls: list[Call] = []
    choose = replaying(schedule)

    def record(kernel: Kernel, process: Process, writes: bool) -> tuple[DeviationKind, str] | None:
        chosen = choose(kernel, process, writes)
        calls.append(Call(process.name, process.calls, writes))
        return chosen

    outcome = play(scenario, record, running)
    if outcome.violation is not None:
        raise outcome.violation
    return calls


def every_crash(scenario: Scenario, running: Running) -> Iterator[tuple[Deviation, ...]]:
    """Every fault at every call of a run: before it, after it, request lost, reply lost, request late, asleep; or one
    thread stands still."""
    stalls = (DeviationKind.STALL,) if scenario.begins else ()
    for call in calls_of(scenario, running):
        for kind in (*FAULTS, DeviationKind.SLEEP, *stalls):
            if call.writes or kind in (
                DeviationKind.DIE_BEFORE,
                DeviationKind.LOSE_REQUEST,
                DeviationKind.SLEEP,
                *stalls,
            ):
                yield (Deviation(call.process, call.number, kind),)


def zombie_and_successor(
    scenario: Scenario, running: Running, before: tuple[Deviation, ...] = ()
) -> Iterator[tuple[Deviation, ...]]:
    """The process falls asleep before any write, and wakes before any write of its successor; after `before`."""
    for first in calls_of(scenario, running, before):
        if not first.writes:
            continue
        asleep = (*before, Deviation(first.process, first.number, DeviationKind.SLEEP))
        for second in calls_of(scenario, running, asleep):
            if second.writes and second.process != first.process:
                yield *asleep, Deviation(second.process, second.number, DeviationKind.YIELD, first.process)


# --- random -------------------------------------------------------------------------------------------------------

_WEIGHTS = {
    DeviationKind.DIE_BEFORE: 2,
    DeviationKind.DIE_AFTER: 3,
    DeviationKind.LOSE_REQUEST: 1,
    DeviationKind.LOSE_REPLY: 2,
    DeviationKind.DELAY: 3,
    DeviationKind.SLEEP: 4,
    DeviationKind.YIELD: 6,
}


def rolling(scenario: Scenario, seed: int) -> Chooser:
    """Some deviations at random places; the same seed chooses the same ones."""
    dice = random.Random(seed)
    weights = {**_WEIGHTS, DeviationKind.EVENT: scenario.event_weight if scenario.events else 0}
    if scenario.begins:
        weights[DeviationKind.STALL] = 3
    left = dice.randint(1, MOST_DEVIATIONS)
    mean = dice.choice((8, 40, 120))
    following = dice.randint(1, 200)

    def choose(kernel: Kernel, process: Process, writes: bool) -> tuple[DeviationKind, str] | None:
        nonlocal left, following
        if kernel.steps < following or not left:
            return None
        if not writes and dice.random() < 0.7:  # at the next write
            return None
        others = kernel.others()
        possible = [
            kind
            for kind in weights
            if not (kind is DeviationKind.DELAY and not writes)
            and not (kind is DeviationKind.YIELD and not others)
            and not (kind is DeviationKind.EVENT and not scenario.events)
            and not ("~" in process.name and kind is not DeviationKind.YIELD)
        ]
        if not possible:
            return None
        left -= 1
        following = kernel.steps + 1 + int(dice.expovariate(1 / mean))
        kind = dice.choices(possible, [weights[kind] for kind in possible])[0]
        if kind is DeviationKind.YIELD:
            return kind, dice.choice(others).name
        return kind, dice.choice(scenario.events) if kind is DeviationKind.EVENT else ""

    return choose


# --- a violation ------------------------------------------------------------------------------------------------


def shrink(outcome: Outcome, running: Running) -> Outcome:
    """The shortest schedule found that still breaks the same law: deviations are taken away, then made earlier."""
    assert outcome.violation is not None
    law = outcome.violation.law
    best = outcome

    def breaks(schedule: Sequence[Deviation]) -> Outcome | None:
        tried = play(outcome.scenario, replaying(schedule), running)
        return tried if tried.violation is not None and tried.violation.law == law else None

    shorter = True
    while shorter:
        shorter = False
        for size in range(len(best.schedule), 0, -1):
            for start in range(len(best.schedule) - size + 1):
                left = best.schedule[:start] + best.schedule[start + size :]
                found = breaks(left)
                if found is not None and len(found.schedule) < len(best.schedule):
                    best, shorter = found, True
                    break
            if shorter:
                break
    return best


def story(outcome: Outcome, running: Running, replay: str = "") -> str:
    """The schedule as numbered lines: who called what, and what was answered. Plain reads are left out."""
    played = play(outcome.scenario, replaying(outcome.schedule), running, tracing=True)
    lines = [f"scenario: {outcome.scenario.name}", f"schedule: {' '.join(map(str, outcome.schedule)) or 'no fault'}"]
    if replay:
        lines.append(f"again:    {replay}")
    numbered = []
    for number, line in enumerate(played.story, 1):
        if is_plain_read(line.what, line.answer):
            continue
        answer = "" if line.answer == "" else f" -> {as_text(line.answer)}"
        numbered.append(f"{number:4}. {line.process:6} {line.what}{answer}")
    if len(numbered) > MOST_LINES:
        numbered[MOST_LINES // 2 : -MOST_LINES // 2] = ["      ..."]
    lines += numbered
    lines.append(f"      {played.violation or 'no law was broken'}")
    return "\n".join(lines)
