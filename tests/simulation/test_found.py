"""Schedules that broke a law once, before the product was mended: what is not found again by chance stays found."""

from __future__ import annotations

import pytest

from tests.simulation.adapters import Running
from tests.simulation.explore import play, replaying, story
from tests.simulation.kernel import Deviation
from tests.simulation.scenarios import ALL

NAMED = {scenario.name: scenario for scenario in ALL}
FOUND = {
    # One server refused the rows of the first checkpoint before the other had ever seen the pipeline.
    "an_abort_at_a_server_that_was_never_prepared_halts_nothing": (
        "xa on two servers",
        ["A1:98:EVENT:maria refuses item 1", "A1:104:SLEEP"],
    ),
    # It slept between reading the head and looking for the marker, which was delivered before and pruned meanwhile.
    "a_late_prepare_whose_marker_was_pruned_halts_nothing": (
        "two runs, one after the other",
        ["B1:10:SLEEP", "B2:41:DELAY", "B3:21:YIELD:B1", "B1:88:SLEEP", "B3:27:SLEEP"],
    ),
}


@pytest.mark.parametrize("name", list(FOUND))
def test_what_was_found_once_is_mended(running: Running, name: str) -> None:
    scenario, words = FOUND[name]
    schedule = [Deviation.parse(word) for word in words]
    outcome = play(NAMED[scenario], replaying(schedule), running)
    assert outcome.violation is None, story(outcome, running)
    assert list(outcome.schedule) == schedule, "it does not take place any more: find it again"
