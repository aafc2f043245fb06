"""What a chaos run found: a line for each kill, the sums, and the same as JSON."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Kill:
    """A kill that counted, and what became of the run. `recovery`: seconds from it until all that was loaded before
    was delivered by the decision log's word, with the work that the run had still to do anyway."""

    fault: str
    moment: str
    state: str
    step: str
    outcome: str
    recovery: float
    repeats: int


@dataclass
class Report:
    """Grows while the kills go on. `violations` are sentences; none: exact."""

    seed: int
    wanted: int
    undisturbed: float | None = None
    kills: list[Kill] = field(default_factory=list)
    hazards: list[tuple[str, str]] = field(default_factory=list)
    missed: int = 0
    flights: int = 0
    lost: int = 0
    duplicated: int = 0
    foreign: int = 0
    judged: bool = False
    checkpoints: int = 0
    deliveries: int = 0
    violations: list[str] = field(default_factory=list)
    interrupted: bool = False
    seconds: float = 0.0

    @property
    def exact(self) -> bool:
        """All kills were done, the judge has seen everything, and nobody found anything wrong."""
        return self.judged and not self.violations and not self.interrupted and len(self.kills) == self.wanted

    def data(self) -> dict[str, Any]:
        """Plain JSON."""
        return {
            "exact": self.exact,
            **asdict(self),
            "recovery_median_seconds": self._recovery(statistics.median),
            "recovery_worst_seconds": self._recovery(max),
        }

    def _recovery(self, which: Any) -> float | None:
        return round(which([kill.recovery for kill in self.kills]), 1) if self.kills else None

    def __str__(self) -> str:
        rows: list[Sequence[str]] = [("", "fault", "state hit", "moment", "outcome", "recovery")]
        for number, kill in enumerate(self.kills, 1):
            rows.append((str(number), kill.fault, kill.state, kill.moment, kill.outcome, f"{kill.recovery:.1f} s"))
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        table = "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
        lines = [
            ("kills", f"{len(self.kills)} of {self.wanted} hit unfinished work; {self.missed} others did not count"),
            ("flights loaded", f"{self.flights:,}"),
            ("checkpoints", f"{self.checkpoints} confirmed in {self.deliveries} deliveries"),
            ("lost", f"{self.lost:,}"),
            ("duplicated", f"{self.duplicated:,}"),
            ("foreign", f"{self.foreign:,}"),
            ("recovery", f"median {self._recovery(statistics.median)} s, worst {self._recovery(max)} s"),
            ("seconds", f"{self.seconds:.0f}"),
            ("seed", str(self.seed)),
        ]
        if self.undisturbed is not None:
            lines.insert(7, ("undisturbed run", f"{self.undisturbed:.1f} s"))
        text = "\n".join(f"  {name:<16} {value}" for name, value in lines)
        hazards = "".join(f"  {name:<34} {outcome}\n" for name, outcome in self.hazards)
        rule = "-" * 110
        if self.exact:
            result = "EXACT: nothing lost, nothing duplicated, invariants I1 to I6 hold."
        else:
            found = list(self.violations) or ["not all kills were done" if not self.interrupted else "interrupted"]
            result = "NOT EXACT:\n" + "\n".join(f"  - {violation}" for violation in found[:20])
        return f"{rule}\n{table}\n{rule}\n{text}\n{hazards}{rule}\n{result}"
