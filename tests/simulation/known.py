"""The schedule of each seeded defect that is known to show it: to play one takes no search.

`python -m tests.simulation.known` searches those that show nothing any more, since the product makes other calls, and
writes them down, each as short as it gets. `python -m tests.simulation.known DEFECT...` searches these anew.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import tests.simulation.beginning_defects
import tests.simulation.branch_defects
import tests.simulation.defects
import tests.simulation.folder_defects
import tests.simulation.held_defects
import tests.simulation.later_defects
import tests.simulation.mapped_defects
import tests.simulation.mode_defects
import tests.simulation.person_defects
import tests.simulation.prepared_defects
import tests.simulation.request_defects
import tests.simulation.savepoint_defects
import tests.simulation.slot_defects
import tests.simulation.source_defects
import tests.simulation.state_defects
import tests.simulation.stream_defects
import tests.simulation.transaction_defects  # noqa: F401  they register what they hold
from tests.simulation.adapters import Running, product_over_models
from tests.simulation.defect import DEFECTS, Defect
from tests.simulation.explore import play, replaying, shrink
from tests.simulation.kernel import Deviation
from tests.simulation.search import Found, first_pair, first_violation

RECORDED = Path(__file__).with_name("known.json")
SCHEDULES = 4_000


def known() -> dict[str, list[str]]:
    """The deviations of the schedule, by the defect's name."""
    return dict(json.loads(RECORDED.read_text()))


def replay(running: Running, defect: Defect, words: Sequence[str]) -> Found | None:
    """Plays one schedule with the defect, which is made; None when it breaks none of its laws."""
    schedule = replaying([Deviation.parse(word) for word in words])
    outcome = play(defect.scenario, schedule, running, real_store=defect.real_store)
    shows = outcome.violation is not None and outcome.violation.law in defect.laws
    return Found(outcome, 0, 0) if shows else None


def search(running: Running, defect: Defect) -> Found | None:
    """The first of some thousand schedules that breaks a law, whichever; the defect is made."""
    if defect.schedule:
        return replay(running, defect, defect.schedule)
    if defect.pairs:
        return first_pair(running, defect.scenario, defect.before, at=defect.at)
    indices = [*range(defect.at, SCHEDULES), *range(defect.at)]
    return first_violation(running, defect.seed, indices, lambda _: defect.scenario, real_store=defect.real_store)


def shown(running: Running, defect: Defect, words: Sequence[str] | None) -> list[str]:
    """The schedule that is known, if it shows the defect, which is made; else another, as short as it gets."""
    if words is not None and replay(running, defect, words):
        return list(words)
    found = search(running, defect)
    assert found is not None, f"no schedule of {defect.scenario.name!r} shows {defect.name!r}"
    shortest = found.outcome if defect.real_store else shrink(found.outcome, running)
    print(f"{defect.name}: {' '.join(map(str, shortest.schedule)) or 'no fault'}", flush=True)
    return [str(deviation) for deviation in shortest.schedule]


def main(arguments: Sequence[str]) -> None:
    before = known() if RECORDED.exists() else {}
    found: dict[str, list[str]] = {}
    for defect in DEFECTS:
        with product_over_models() as running, defect.made():
            found[defect.name] = shown(running, defect, None if defect.name in arguments else before.get(defect.name))
    lines = [f"{json.dumps(name)}: {json.dumps(words)}" for name, words in sorted(found.items())]
    RECORDED.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
