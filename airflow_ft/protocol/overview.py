"""Summaries of pipelines for lists: condition, figures and times of each."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import NamedTuple

from airflow_ft.protocol.failure import Failure, Halt
from airflow_ft.protocol.model import RunKey

NEVER = datetime(1970, 1, 1, tzinfo=UTC)


class Condition(StrEnum):
    """Condition of a pipeline, in the order in which a person should look."""

    HALTED = "HALTED"
    QUARANTINED = "QUARANTINED"
    IN_DOUBT = "IN_DOUBT"
    FAILED = "FAILED"
    NOT_RUNNING = "NOT_RUNNING"
    LATE = "LATE"
    WAITING = "WAITING"
    RUNNING = "RUNNING"
    IDLE = "IDLE"
    RENAMED = "RENAMED"

    @property
    def description(self) -> str:
        """Return what that means, and what to do."""
        return _DESCRIPTIONS[self]

    @property
    def words(self) -> str:
        """As people read it: `IN DOUBT`."""
        return self.value.replace("_", " ")


_DESCRIPTIONS = {
    Condition.HALTED: "Nothing is staged or delivered until a person removes the cause and resumes the pipeline.",
    Condition.QUARANTINED: "A checkpoint is quarantined. Nothing later is delivered until a person settles it.",
    Condition.IN_DOUBT: "A checkpoint is decided, but not all sinks have its rows, and no run is active.",
    Condition.FAILED: "The last run failed.",
    Condition.NOT_RUNNING: "The stream does not run.",
    Condition.LATE: "Nothing was confirmed for longer than its late_after, and its sources were not read to their end.",
    Condition.WAITING: "No sink has the staged rows yet, and no run is active. The next run delivers them.",
    Condition.RUNNING: "A run is active.",
    Condition.IDLE: "No staged rows wait for delivery.",
    Condition.RENAMED: "The pipeline was renamed. No run uses the old name.",
}
NEED_A_PERSON = (
    Condition.HALTED,
    Condition.QUARANTINED,
    Condition.IN_DOUBT,
    Condition.FAILED,
    Condition.NOT_RUNNING,
    Condition.LATE,
)
"""The conditions in which a person should look; the page explains them in the list."""
SILENT_AFTER = timedelta(seconds=90)
"""A stream holds no lease between two attempts. Without a write for this long it is dead, or stuck."""


class Overview(NamedTuple):  # a list makes a thousand at once, which dataclasses are slow at
    """Summary of a pipeline.

    `halt`: why it is HALTED; None: it is not. `renamed_to`: the name that continues it, or "". `dags` are the first and
    the last by name of the DAGs that made its checkpoints: none, one, or two of several. The numbers count open
    checkpoints. `late`: time since the last confirmation, if longer than the pipeline's `late_after`; None: in time,
    or no `late_after`. `late_at`: when it becomes late unless a checkpoint is confirmed before.

    `failure`: why the newest run failed. `streaming`: its newest stage is one of a stream. `retired`: a person retired
    it since. `leases`: processes that hold one. `renewed_at`: when one of these was last renewed, `expires_at`: when
    the last one expires; None: no lease. `changed_at`: time of the last write of any kind. A stream without a lease is
    silent if that is longer ago than `silent_after`. `now`: time of this summary. All times are by the store's clock.

    Airflow knows the state of DAGs and their runs, the decision log does not (`airflow_ft.admin.dag_runs.judged`).
    `ended`: the run that has the turn and cannot continue. `paused`: each of its DAGs is paused or deleted, so none
    begins a run.
    """

    name: str
    halt: Halt | None
    turn: RunKey | None
    dags: tuple[str, ...]
    quarantined: int = 0
    committing: int = 0
    undelivered: int = 0
    late: timedelta | None = None
    late_after: timedelta | None = None
    late_at: datetime | None = None
    renamed_to: str = ""
    failure: Failure | None = None
    streaming: bool = False
    retired: bool = False
    leases: int = 0
    renewed_at: datetime | None = None
    expires_at: datetime | None = None
    changed_at: datetime = NEVER
    now: datetime = NEVER
    silent_after: timedelta = SILENT_AFTER
    ended: RunKey | None = None
    paused: bool = False

    @property
    def description(self) -> str:
        """Return what its condition means for this pipeline, as far as known."""
        condition = self.condition
        if condition in (Condition.FAILED, Condition.NOT_RUNNING):
            return self.text_of(condition)
        if condition is Condition.WAITING and (self.paused or self.retired):
            why = "the pipeline is retired" if self.retired else "its DAG is paused or deleted"
            return f"No sink has the staged rows yet, and {why}. No run delivers them."
        if condition is Condition.HALTED and self.halt is not None:
            return self.halt.text
        return f"It continues as {self.renamed_to}." if condition is Condition.RENAMED else condition.description

    def text_of(self, condition: Condition) -> str:
        """Return the explanation if this pipeline is FAILED or NOT_RUNNING (`trouble`)."""
        return self._failed if condition is Condition.FAILED else self._not_running

    @property
    def silent_at(self) -> datetime | None:
        """Return when the run that has the turn counts as silent, unless it renews a lease before; None: never.

        Between two tasks no process holds a lease. Then Airflow alone knows whether the run is over.
        """
        if self.turn is None:
            return None
        if self.expires_at is not None:
            return self.expires_at
        return self.changed_at + self.silent_after if self.streaming else None

    @property
    def is_silent(self) -> bool:
        """Return whether a run has the turn, and none of its processes renewed its lease within its own lease time."""
        return (at := self.silent_at) is not None and self.now > at

    @property
    def alive_at(self) -> datetime | None:
        """Return the last sign of life of a silent run; None: no run is silent."""
        return (self.renewed_at or self.changed_at) if self.is_silent else None

    @property
    def is_at_work(self) -> bool:
        """Return whether a run is active, as far as known."""
        return self.turn is not None and not self.is_silent

    @property
    def is_held(self) -> bool:
        """Return whether an active process keeps the epoch, so that actions of a person are refused."""
        return self.is_at_work and self.leases > 0

    @property
    def is_stopped(self) -> bool:
        """A stream that ended as asked, or whose DAG is paused, without an error: on purpose, so no person must act."""
        return self.streaming and self.turn is None and self.failure is None and (self.paused or self.ended is None)

    @property
    def condition(self) -> Condition:
        """Return its most urgent condition. The page, its API, the command line and notifications all use it."""
        if self.renamed_to:
            return Condition.RENAMED
        if self.halt is not None:
            return Condition.HALTED
        if self.quarantined:
            return Condition.QUARANTINED
        if self.committing and not self.is_at_work:
            return Condition.IN_DOUBT
        if (found := self.trouble) is not None:
            return found
        if self.late is not None:
            return Condition.LATE
        if self.is_at_work:
            return Condition.RUNNING
        return Condition.WAITING if self.undelivered else Condition.IDLE

    @property
    def trouble(self) -> Condition | None:
        """FAILED or NOT_RUNNING; None: a run is active, the last one succeeded, or it was retired or renamed since."""
        if self.retired or self.renamed_to or self.is_at_work:
            return None
        if self.failure is not None and self.turn is None:
            return Condition.FAILED
        if self.streaming:
            return Condition.NOT_RUNNING
        died = self.ended is not None or self.is_silent
        return Condition.FAILED if died else None

    @property
    def no_run_follows(self) -> str:
        """Say that its DAG is paused or deleted; "": it is not, as far as known."""
        return " Its DAG is paused or deleted, so no run follows." if self.paused else ""

    @property
    def _failed(self) -> str:
        if self.failure is not None:
            return failed_text(self.failure, self.no_run_follows)
        if self.turn is not None:
            return (
                f"{self._silence}: it was killed, or it hangs.{self.no_run_follows}"
                "\nFix: Look at its log. If it does not continue, clear its tasks in Airflow, trigger a new run, or"
                " start the program again."
            )
        return (
            f"Run {self.ended} ended before it was confirmed, without an error: its process was"
            f" killed, or a person ended it.{self.no_run_follows}"
            "\nFix: Look at its log. Then clear its tasks in Airflow, trigger a new run, or start the program again."
        )

    @property
    def _silence(self) -> str:
        return f"No process of run {self.turn} has renewed its lease since {self.alive_at:%Y-%m-%d %H:%M:%S} UTC"

    @property
    def _not_running(self) -> str:
        last = f" Its last error: {failed_text(self.failure)}" if self.failure is not None else ""
        if self.paused:
            return (
                "Its DAG is paused or deleted, so the stream does not run."
                f"\nFix: Unpause the DAG, or bring it back, and trigger a run.{last}"
            )
        if self.turn is not None:
            return (
                f"{self._silence}: it was killed, or waits for its retry."
                f"\nFix: Look at the log of its task in Airflow.{last}"
            )
        if self.ended is not None:
            return (
                f"Run {self.ended} ended without an error: its process was killed, or a person ended it."
                "\nFix: Look at the log of its task in Airflow, and trigger a new run."
            )
        return "The stream was stopped.\nFix: Trigger a run of its DAG. Retire the pipeline if it should not run."


def failed_text(failure: Failure, then: str = "") -> str:
    """Say which run failed, in which task, and why; `then`: what follows from that, before the fix."""
    of = f"Run {RunKey(failure.dag_id, failure.run_id, failure.map_index)} failed" if failure.run_id else "It failed"
    task = f" in {failure.task_id} (try {failure.try_number})" if failure.task_id else ""
    return f"{of}{task}: {replace(failure, message=failure.message + then).text}"


@dataclass(frozen=True, slots=True)
class CheckpointCounts:
    """Number of checkpoints of a pipeline by their end, since its first one; and how often it was restored.

    `subsumed` were delivered with a later one. `failed` were aborted; their published rows were delivered with a later
    one or computed again.
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
    """The DAG that made a checkpoint ("": no run), and the digest of its specification ("": unknown)."""

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
    HALTED = "HALTED"
    ADOPTED = "ADOPTED"
