"""Contenders that do the same work in turns, and ratios between them: what every figure of the harness is."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any


class MeasurementError(Exception):
    """A contender did not do its work, or not exactly: it has no figure."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, smallest and largest of some measurements."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of at least one value."""
        return cls(statistics.median(values), min(values), max(values))


@dataclass(frozen=True)
class Contender:
    """One way to do the work.

    `run` does it once, checks that the result is exact (else MeasurementError), and returns its cost: seconds, or what
    the comparison's unit says; less is better. `warm_up`: how often it is run before, uncounted.
    """

    name: str
    run: Callable[[], float]
    warm_up: int = 1


@dataclass(frozen=True)
class Claim:
    """Ours against the best of some others: cost of the others / our cost.

    `wanted` is the least ratio (None: it is only shown). `label` says what is compared, for the table.
    """

    label: str
    ours: str
    others: tuple[str, ...]
    wanted: float | None


@dataclass(frozen=True)
class Verdict:
    """A claim and what was found: `best` of the others (by its median), and the ratio over the rounds."""

    claim: Claim
    best: str
    ratio: Spread

    @property
    def is_reached(self) -> bool | None:
        """Whether the median ratio is as wanted; None when nothing is wanted."""
        return None if self.claim.wanted is None else self.ratio.median >= self.claim.wanted


@dataclass
class Comparison:
    """Some contenders over the same rows, and the claims about them.

    unit: of a cost ("s", "ms", "MB"). rows: of one run, to show rows per second (0: not shown).
    """

    name: str
    title: str
    contenders: Sequence[Contender]
    claims: Sequence[Claim]
    unit: str = "s"
    rows: int = 0
    costs: dict[str, list[float]] = field(default_factory=dict)
    load: tuple[float, float] = (0.0, 0.0)

    def measure(self, rounds: int, say: Callable[[str], None]) -> None:
        """Runs each contender `rounds` times, in turns; each round begins with another one."""
        before = os.getloadavg()[0]
        self.costs = {contender.name: [] for contender in self.contenders}
        for contender in self.contenders:
            for _ in range(contender.warm_up):
                contender.run()
        for number in range(rounds):
            first = number % len(self.contenders)
            for contender in [*self.contenders[first:], *self.contenders[:first]]:
                cost = contender.run()
                self.costs[contender.name].append(cost)
                say(f"  {self.name}, round {number + 1} of {rounds}: {contender.name} {cost:.3f} {self.unit}")
        self.load = (before, os.getloadavg()[0])

    def spread(self, contender: str) -> Spread:
        """What a contender cost."""
        return Spread.of(self.costs[contender])

    def verdicts(self) -> list[Verdict]:
        """Each claim, judged round by round against the one that is best over all."""
        found = []
        for claim in self.claims:
            best = min(claim.others, key=lambda name: self.spread(name).median)
            pairs = zip(self.costs[best], self.costs[claim.ours], strict=True)
            found.append(Verdict(claim, best, Spread.of([theirs / ours for theirs, ours in pairs])))
        return found

    def to_json(self) -> dict[str, Any]:
        """Everything that was measured."""
        return {
            "name": self.name,
            "title": self.title,
            "unit": self.unit,
            "rows": self.rows,
            "load": list(self.load),
            "costs": self.costs,
            "claims": [
                {
                    "label": verdict.claim.label,
                    "ours": verdict.claim.ours,
                    "against": verdict.best,
                    "wanted": verdict.claim.wanted,
                    "median": verdict.ratio.median,
                    "min": verdict.ratio.low,
                    "max": verdict.ratio.high,
                }
                for verdict in self.verdicts()
            ],
        }


def timed(work: Callable[[], object]) -> float:
    """Seconds that it takes."""
    began = time.monotonic()
    work()
    return time.monotonic() - began
