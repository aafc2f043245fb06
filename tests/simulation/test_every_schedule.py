"""Exhaustive: every fault at every call of one process, and every zombie beside its successor."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from unittest.mock import patch

import pytest

from airflow_ft.sinks.mysql.xa import XaParticipant
from tests.simulation.adapters import Running
from tests.simulation.explore import calls_of, every_crash, play, replaying, shrink, story, zombie_and_successor
from tests.simulation.kernel import Deviation, DeviationKind
from tests.simulation.scenarios import ALL, BOTH, HELD, KAFKA, ONE_ITEM, STREAM, TWO_PHASE, XA_MARIA, XA_MYSQL
from tests.simulation.world import Scenario

by_turns = pytest.mark.sampled("of all schedules")
slowly = pytest.mark.sampled(among="slow checks")

NAMED = {scenario.name: scenario for scenario in ALL}
SHORT = replace(STREAM, runs=(2,), begins=1)
SAVED = replace(NAMED["savepoints, two restores at once"], runs=(1, 2), sinks=KAFKA.sinks)
CRASHED = [
    BOTH,
    KAFKA,
    replace(TWO_PHASE, runs=(1,)),
    XA_MYSQL,
    replace(XA_MARIA, runs=(1,)),
    HELD,
    SHORT,
    SAVED,
]


def play_all(scenario: Scenario, schedules: Iterable[tuple[Deviation, ...]], running: Running) -> int:
    """Plays them all; the number, or the story of the first that breaks a law."""
    played = 0
    for schedule in schedules:
        outcome = play(scenario, replaying(schedule), running)
        played += 1
        if outcome.violation is not None:
            pytest.fail(story(shrink(outcome, running), running))
    print(f"{scenario.name}: {played:,} schedules")
    return played


@by_turns
@pytest.mark.parametrize("scenario", CRASHED, ids=lambda scenario: scenario.name)
def test_every_fault_at_every_call_is_made_good(running: Running, scenario: Scenario) -> None:
    assert play_all(scenario, every_crash(scenario, running), running) > 200


@by_turns
def test_every_fault_is_made_good_over_the_real_decision_log(running: Running) -> None:
    """As above, with the product's own decision log in place of its model."""
    played = 0
    for schedule in every_crash(ONE_ITEM, running):
        outcome = play(ONE_ITEM, replaying(schedule), running, real_store=True)
        assert outcome.violation is None, story(outcome, running)
        played += 1
    assert played > 300


@slowly
@pytest.mark.parametrize(
    "scenario, parallel",
    [(BOTH, False), (BOTH, True), (TWO_PHASE, True)],
    ids=["one task", "a task for each step and sink", "two-phase, a task for each step and sink"],
)
def test_a_zombie_and_its_successor_in_every_order_of_two_turns(
    running: Running, scenario: Scenario, parallel: bool
) -> None:
    """The zombie sleeps before any of its writes, and wakes before any write of its successor."""
    small = replace(scenario, runs=(1,), parallel=parallel)
    assert play_all(small, zombie_and_successor(small, running), running) > 1000


@slowly
@pytest.mark.parametrize("scenario", [XA_MARIA, HELD], ids=lambda scenario: scenario.name)
def test_a_zombie_and_its_successor_where_rows_wait_in_the_sink(running: Running, scenario: Scenario) -> None:
    small = replace(scenario, runs=(1,))
    assert play_all(small, zombie_and_successor(small, running), running) > 500


@slowly
def test_a_zombie_does_no_harm_where_prepared_branches_are_lost(running: Running) -> None:
    """They are lost after the decision, so the commit delivers them from the log."""
    small = replace(NAMED["xa that loses its branches"], runs=(1,))

    def is_redelivered(before: tuple[Deviation, ...]) -> bool:
        with patch.object(XaParticipant, "_deliver_branches") as delivering:
            play(small, replaying(before), running)
        return delivering.called

    calls = reversed(calls_of(small, running))
    losses = ((Deviation(call.process, call.number, DeviationKind.EVENT, small.events[0]),) for call in calls)
    lost = next(filter(is_redelivered, losses))
    assert play_all(small, zombie_and_successor(small, running, lost), running) > 500


@slowly
def test_a_zombies_late_refusal_does_no_harm_to_its_successor(running: Running) -> None:
    """A late refusal must not abort what another try has prepared or delivered."""
    refused = (Deviation("A1", 1, DeviationKind.EVENT, "prepare declines item 1"),)
    assert play_all(ONE_ITEM, zombie_and_successor(ONE_ITEM, running, refused), running) > 1000
