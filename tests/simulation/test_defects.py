"""Every rule that is switched off is detected within some thousand schedules."""

from __future__ import annotations

import pytest

import tests.simulation.branch_defects
import tests.simulation.defects
import tests.simulation.held_defects  # noqa: F401  they register what they hold
from tests.simulation.adapters import Running
from tests.simulation.defect import DEFECTS, Defect
from tests.simulation.search import first_pair, first_violation, tell


@pytest.mark.rotating
@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name.replace(" ", "_"))
def test_a_rule_that_is_switched_off_is_detected(running: Running, defect: Defect) -> None:
    with defect.made():
        if defect.pairs:
            found = first_pair(running, defect.scenario, defect.before)
        else:
            found = first_violation(
                running, defect.seed, range(defect.schedules), lambda _: defect.scenario, real_store=defect.real_store
            )
        assert found is not None, f"no schedule of {defect.scenario.name!r} shows it"
        assert found.outcome.violation is not None
        print(f"schedule {found.index}: {found.outcome.violation}")
        assert found.outcome.violation.law in defect.laws, tell(found, running)


def test_there_are_enough_of_them() -> None:
    assert len({defect.name for defect in DEFECTS}) == len(DEFECTS) >= 20
