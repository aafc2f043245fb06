"""Every rule that is switched off is detected within some thousand schedules, and the schedule is played with the rule.

So the schedules that are known to be hard are played with each commit, over the product as it is: a mistake like one of
these does not depend on chance to be noticed.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

import tests.simulation.branch_defects
import tests.simulation.defects
import tests.simulation.folder_defects
import tests.simulation.held_defects
import tests.simulation.later_defects
import tests.simulation.mode_defects
import tests.simulation.person_defects
import tests.simulation.savepoint_defects
import tests.simulation.state_defects
import tests.simulation.stream_defects
import tests.simulation.transaction_defects  # noqa: F401  they register what they hold
from tests.simulation.adapters import Running
from tests.simulation.defect import DEFECTS, Defect
from tests.simulation.explore import play, replaying
from tests.simulation.kernel import Deviation
from tests.simulation.search import Found, first_pair, first_violation, tell

SCHEDULES = 4_000


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name.replace(" ", "_"))
def test_a_schedule_breaks_a_law_without_the_rule_and_none_with_it(running: Running, defect: Defect) -> None:
    with defect.made():
        if defect.told:
            outcome = play(defect.scenario, replaying([Deviation.parse(word) for word in defect.told]), running)
            found = Found(outcome, 0, 0) if outcome.violation is not None else None
        elif defect.pairs:
            found = first_pair(running, defect.scenario, defect.before, at=defect.at)
        else:
            indices = [*range(defect.at, SCHEDULES), *range(defect.at)]
            scenario = defect.scenario
            found = first_violation(running, defect.seed, indices, lambda _: scenario, real_store=defect.real_store)
        assert found is not None, f"no schedule of {defect.scenario.name!r} shows it"
        assert found.outcome.violation is not None
        print(f"schedule {found.index}: {found.outcome.violation}")
        assert found.outcome.violation.law in defect.laws, tell(found, running)
    outcome = play(defect.scenario, replaying(found.outcome.schedule), running, real_store=defect.real_store)
    assert outcome.violation is None, tell(replace(found, outcome=outcome), running)


def test_there_are_enough_of_them() -> None:
    assert len({defect.name for defect in DEFECTS}) == len(DEFECTS) >= 20
