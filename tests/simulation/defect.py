"""How a rule of the protocol is switched off, and where that must show."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from tests.simulation.kernel import Deviation
from tests.simulation.scenarios import ALL
from tests.simulation.world import Scenario

Change = Callable[[Any, str, Any], None]
NAMED = {scenario.name: scenario for scenario in ALL}


@dataclass(frozen=True)
class Defect:
    """A rule switched off; `scenario` is where that shows, within some thousand random schedules of a `seed`.

    A seed other than 1 is one that shows it early: others do, too, but take their time.
    With `pairs` the schedules are those of a zombie beside its successor, all of them, after `before`.
    `at` is the schedule that showed it last, where it takes many: there the search begins. `schedule` is the schedule
    itself, where chance takes too long.
    """

    name: str
    scenario: Scenario
    laws: frozenset[str]
    make: Callable[[Change], None]
    real_store: bool
    at: int
    pairs: bool
    before: tuple[Deviation, ...]
    seed: int
    schedule: tuple[str, ...]

    @contextmanager
    def made(self) -> Iterator[None]:
        """The defect is there inside this block."""
        with ExitStack() as stack:
            self.make(lambda target, name, value: stack.enter_context(patch.object(target, name, value)))
            yield


DEFECTS: list[Defect] = []


def defect(
    scenario: Scenario,
    laws: str,
    *,
    real_store: bool = False,
    at: int = 0,
    pairs: bool = False,
    before: tuple[Deviation, ...] = (),
    seed: int = 1,
    schedule: tuple[str, ...] = (),
) -> Callable[[Callable[[Change], None]], Callable[[Change], None]]:
    """Registers a defect under its function's name."""

    def register(make: Callable[[Change], None]) -> Callable[[Change], None]:
        name = make.__name__.replace("_", " ")
        found_by = frozenset(laws.split())
        DEFECTS.append(Defect(name, scenario, found_by, make, real_store, at, pairs, before, seed, schedule))
        return make

    return register


def everywhere(change: Change, function: Callable[..., Any], other: Any) -> None:
    """Replaces a function of the product in every module that has imported it."""
    known = str(getattr(function, "__name__", ""))
    for name, module in list(sys.modules.items()):
        if name.startswith("airflow_ft.") and getattr(module, known, None) is function:
            change(module, known, other)
