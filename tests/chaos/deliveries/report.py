"""What the deliveries showed: fault by fault, as a table of faults and sinks, and as JSON."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

OUTCOMES = ("hit", "not counted", "exact", "lost", "duplicated", "stuck", "other")


@dataclass(frozen=True)
class Struck:
    """One fault that was carried out.

    `counted`: it hit an unfinished checkpoint. `outcome`: "exact", "lost", "duplicated", "stuck", or "other" for any
    other violation. `recovery`: seconds from the fault until all was confirmed again. `ends`: how the processes ended.
    """

    number: int
    fault: str
    target: str
    store: str
    moment: str
    state: str
    counted: bool
    outcome: str
    recovery: float
    ends: Sequence[str] = ()


@dataclass
class Report:
    """Grows while the faults go on. `violations` are sentences; none: exact."""

    seed: int
    wanted: int
    disk: str = ""
    struck: list[Struck] = field(default_factory=list)
    checkpoints: int = 0
    rows: int = 0
    looks: int = 0
    violations: list[str] = field(default_factory=list)
    died: list[str] = field(default_factory=list)
    judged: bool = False
    interrupted: bool = False
    seconds: float = 0.0

    @property
    def counted(self) -> list[Struck]:
        """Those that hit unfinished work."""
        return [one for one in self.struck if one.counted]

    @property
    def exact(self) -> bool:
        """All faults were carried out, everything was judged, and nobody found anything wrong."""
        done = len(self.counted) == self.wanted and all(one.outcome == "exact" for one in self.struck)
        return done and self.judged and not self.violations and not self.interrupted

    def data(self) -> dict[str, Any]:
        """Plain JSON: the sums by fault and sink, and each fault."""
        return {
            "exact": self.exact,
            **asdict(self),
            "by_fault": self._sums(lambda one: one.fault),
            "by_sink": self._sums(lambda one: one.target),
            "by_fault_and_sink": self._sums(lambda one: f"{one.fault} | {one.target}"),
        }

    def _sums(self, key: Callable[[Struck], str]) -> dict[str, dict[str, Any]]:
        groups: dict[str, list[Struck]] = {}
        for one in self.struck:
            groups.setdefault(key(one), []).append(one)
        return {name: _sum(group) for name, group in sorted(groups.items())}

    def __str__(self) -> str:
        sums = ["", *OUTCOMES, "median s", "worst s"]
        by_fault = _table([["fault", *sums[1:]], *_lines(self._sums(lambda one: one.fault))])
        by_sink = _table([["sink", *sums[1:]], *_lines(self._sums(lambda one: one.target))])
        text = [
            ("faults", f"{len(self.counted)} of {self.wanted} hit an unfinished checkpoint"),
            ("checkpoints", f"{self.checkpoints:,} confirmed, {self.rows:,} rows"),
            ("full disk", f"by {self.disk}"),
            *([("looks meanwhile", f"{self.looks:,}")] if self.looks else []),
            *([("died by itself", ", ".join(self.died))] if self.died else []),
            ("seconds", f"{self.seconds:.0f}"),
            ("seed", str(self.seed)),
        ]
        rule = "-" * 110
        lines = "\n".join(f"  {name:<16} {value}" for name, value in text)
        if self.exact:
            result = "EXACT: nothing lost, nothing duplicated, all sinks or none, nothing left prepared."
        else:
            why = "interrupted" if self.interrupted else "not all faults were carried out and judged"
            found = self.violations or [why]
            result = "NOT EXACT:\n" + "\n".join(f"  - {violation}" for violation in found[:20])
        return "\n".join([rule, self._matrix(), rule, by_fault, rule, by_sink, rule, lines, rule, result])

    def _matrix(self) -> str:
        """Faults by sinks: how many were exact of how many that hit."""
        targets = sorted({one.target for one in self.struck})
        names = {target: chr(ord("A") + index) for index, target in enumerate(targets)}
        exact = Counter((one.fault, one.target) for one in self.counted if one.outcome == "exact")
        hit = Counter((one.fault, one.target) for one in self.counted)
        rows: list[Sequence[str]] = [["exact of hit", *(names[target] for target in targets)]]
        for fault in sorted({one.fault for one in self.struck}):
            cells = [(exact[fault, target], hit[fault, target]) for target in targets]
            rows.append([fault, *(f"{right}/{all}" if all else "." for right, all in cells)])
        legend = "   ".join(f"{letter}: {target}" for target, letter in names.items())
        return f"{_table(rows)}\n{legend}"


def _sum(group: Sequence[Struck]) -> dict[str, Any]:
    counted = [one for one in group if one.counted]
    times = [one.recovery for one in counted if one.outcome == "exact"]
    outcomes = Counter(one.outcome for one in counted)
    return {
        "hit": len(counted),
        "not counted": len(group) - len(counted),
        **{name: outcomes[name] for name in OUTCOMES[2:]},
        "median": round(statistics.median(times), 2) if times else None,
        "worst": round(max(times), 2) if times else None,
    }


def _lines(sums: dict[str, dict[str, Any]]) -> Iterable[list[str]]:
    for name, values in sums.items():
        yield [name, *("-" if value is None else str(value) for value in values.values())]


def _table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        first, *rest = (
            cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        lines.append("  ".join([first, *rest]))
    return "\n".join(lines)
