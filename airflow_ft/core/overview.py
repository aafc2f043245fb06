"""What a list of many pipelines says of each: how it stands."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple

from airflow_ft.core.model import RunKey


class Condition(StrEnum):
    """How a pipeline stands; in the order in which a person should look."""

    HALTED = "HALTED"
    QUARANTINED = "QUARANTINED"
    IN_DOUBT = "IN_DOUBT"
    LATE = "LATE"
    WAITING = "WAITING"
    RUNNING = "RUNNING"
    IDLE = "IDLE"
    RENAMED = "RENAMED"

    @property
    def told(self) -> str:
        """What that means, and what to do."""
        return _TOLD[self]


_TOLD = {
    Condition.HALTED: "Nothing is staged or delivered until somebody has looked, and resumes it.",
    Condition.QUARANTINED: "A sink refuses rows that are decided: nothing behind them is delivered until they are"
    " released, or set aside.",
    Condition.IN_DOUBT: "Rows are decided, not all sinks have them yet, and no run is at work: the next run, or a retry"
    " of the failed one, delivers them.",
    Condition.LATE: "Nothing was confirmed for longer than its late_after, and its sources were not read to their end.",
    Condition.WAITING: "Rows are staged that no sink has, and no run is at work: the next run delivers them.",
    Condition.RUNNING: "A run is at work.",
    Condition.IDLE: "All that was staged is delivered.",
    Condition.RENAMED: "It goes on under another name, and no run of it begins any more.",
}


class Overview(NamedTuple):  # a list makes a thousand at once, which dataclasses are slow at
    """A pipeline in few words.

    `halted`: the reason and what is said of it, or "". `renamed`: as which it goes on, or "".
    `dags` are the first and the last one, by name, of those that have made its checkpoints: none, one, or two of
    several. The numbers are of checkpoints that are open. `late`: for so long nothing was confirmed, where that is more
    than the pipeline's `late_after`; None: it is in time, or nobody has said when it is not (then that is None, too).
    `late_at`: from then on it is late, unless something is confirmed before.
    """

    name: str
    halted: str
    turn: RunKey | None
    dags: tuple[str, ...]
    quarantined: int = 0
    committing: int = 0
    undelivered: int = 0
    late: timedelta | None = None
    late_after: timedelta | None = None
    late_at: datetime | None = None
    renamed: str = ""

    @property
    def told(self) -> str:
        """What its condition means, and of this one pipeline, where somebody has said that."""
        return self.halted or self.renamed or self.condition.told

    @property
    def condition(self) -> Condition:
        """The most urgent that is true of it."""
        if self.renamed:
            return Condition.RENAMED
        if self.halted:
            return Condition.HALTED
        if self.quarantined:
            return Condition.QUARANTINED
        if self.committing and self.turn is None:
            return Condition.IN_DOUBT
        if self.late is not None:
            return Condition.LATE
        if self.turn is not None:
            return Condition.RUNNING
        return Condition.WAITING if self.undelivered else Condition.IDLE


@dataclass(frozen=True, slots=True)
class Tally:
    """How many checkpoints a pipeline has had, since its first one, by how they ended; and how often it was restored.

    `subsumed` were delivered with a later one. `failed` were aborted: rows that they had published were delivered with
    a later one too, or computed again.
    """

    in_progress: int
    completed: int
    subsumed: int
    failed: int
    restored: int

    @property
    def triggered(self) -> int:
        """All of them."""
        return self.in_progress + self.completed + self.subsumed + self.failed


@dataclass(frozen=True, slots=True)
class Origin:
    """Who has made a checkpoint ("": no run), and the digest of what it was made with ("": not known)."""

    dag_id: str
    spec: str


class Only(StrEnum):
    """Which checkpoints of a pipeline are asked for."""

    OPEN = "open"
    """Something is left to do for them."""
    COMPLETED = "completed"
    FAILED = "failed"


class Noted(StrEnum):
    """Events of a pipeline of which the newest one is looked for."""

    SAVEPOINT = "SAVEPOINT"
    RESTORED = "RESTORED"
