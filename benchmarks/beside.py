"""CPU time, noted beside the seconds that a comparison measures: other work on the machine hardly changes it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.measuring import Claim, Comparison, Contender
from tools.servers.processes import tree

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class Beside(Comparison):
    """Shows what was noted while another comparison ran its contenders, which have the same names; runs nothing.

    It must come after that one, with as many rounds. `noted` is filled by `note`, also while contenders warm up.
    """

    noted: dict[str, list[float]] = field(default_factory=dict)

    @classmethod
    def of(cls, other: Comparison, noted: dict[str, list[float]], wanted: Sequence[float | None] = ()) -> Beside:
        """CPU seconds for the claims of another comparison; nothing is wanted unless `wanted` says so for each."""
        aims = wanted or [None] * len(other.claims)
        claims = [
            Claim(f"{claim.label}, CPU time", claim.ours, claim.others, aim)
            for claim, aim in zip(other.claims, aims, strict=True)
        ]
        contenders = [Contender(contender.name, lambda: 0.0, warm_up=0) for contender in other.contenders]
        return cls(f"{other.name}, CPU", f"{other.title}: CPU time", contenders, claims, "s CPU", noted=noted)

    def measure(self, rounds: int, say: Callable[[str], None]) -> None:
        """Takes over what was noted."""
        self.costs = {contender.name: self.noted[contender.name][-rounds:] for contender in self.contenders}
        self.load = (os.getloadavg()[0], os.getloadavg()[0])


def used_by(pid: int) -> float:
    """Seconds of CPU that a process and its living descendants have used (Spark's Python and its JVM).

    This process counts alone: its descendants are servers and other contenders.
    """
    return sum(_used(each) for each in ([pid] if pid == os.getpid() else tree(pid)))


@contextmanager
def noting(noted: dict[str, list[float]], name: str, pid: int) -> Iterator[None]:
    """Note what a process uses in the block, for the contender of this name."""
    before = used_by(pid)
    yield
    noted.setdefault(name, []).append(used_by(pid) - before)


def _used(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS
