"""Every rule that is switched off is detected by a schedule, which is played with the rule, too.

So the schedules that are known to be hard are played with each commit, over the product as it is: a mistake like one of
these does not depend on chance to be noticed. One that shows nothing any more is replaced by the first of some thousand
others that does, as `make test-all` looks for them all.
"""

from __future__ import annotations

import os
import warnings
from dataclasses import replace

import pytest

from tests.simulation import known
from tests.simulation.adapters import Running
from tests.simulation.defect import DEFECTS, Defect
from tests.simulation.explore import play, replaying
from tests.simulation.search import Found, report

KNOWN = {} if os.environ.get("THOROUGH") else known.known()


def _shown(running: Running, defect: Defect) -> Found | None:
    if defect.name not in KNOWN:
        return known.search(running, defect)
    if (found := known.replay(running, defect, KNOWN[defect.name])) is None:
        warnings.warn(
            f"{known.RECORDED.name}: {defect.name} is not shown any more: python -m {known.__name__}", stacklevel=1
        )
        return known.search(running, defect)
    return found


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name.replace(" ", "_"))
def test_a_schedule_breaks_a_law_only_without_the_rule(running: Running, defect: Defect) -> None:
    with defect.made():
        found = _shown(running, defect)
        assert found is not None, f"no schedule of {defect.scenario.name!r} shows it"
        assert found.outcome.violation is not None
        print(f"schedule {found.index}: {found.outcome.violation}")
        assert found.outcome.violation.law in defect.laws, report(found, running)
    outcome = play(defect.scenario, replaying(found.outcome.schedule), running, real_store=defect.real_store)
    assert outcome.violation is None, report(replace(found, outcome=outcome), running)


def test_at_least_twenty_defects_each_have_a_known_schedule() -> None:
    names = {defect.name for defect in DEFECTS}
    assert len(names) == len(DEFECTS) >= 20
    assert names == known.known().keys()
