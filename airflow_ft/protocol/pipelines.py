"""Values of a pipeline as a whole: its row, runs, lease, requests, barriers and events. All frozen, all plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from airflow_ft.protocol.failure import Halt
from airflow_ft.protocol.model import Former, ParticipantPlan, RunKey, SparkPosition


class HaltReason(StrEnum):
    """Why a pipeline is halted until `airflow ft resume` (or `adopt`)."""

    STORE_BEHIND_SINK = "STORE_BEHIND_SINK"
    TOKEN_LOST = "TOKEN_LOST"
    FOREIGN_OWNER = "FOREIGN_OWNER"
    HEURISTIC_COMMIT = "HEURISTIC_COMMIT"

    @property
    def code(self) -> str:
        """Return the code of the class of errors that halts for it."""
        return self.value.lower()


class PipelineStatus(StrEnum):
    """ACTIVE, HALTED with a `HaltReason`, or RENAMED (another name continues it). Only ACTIVE pipelines stage or
    deliver.
    """

    ACTIVE = "ACTIVE"
    HALTED = "HALTED"
    RENAMED = "RENAMED"


LEASE_SECONDS = 30.0
"""How long a lease holds without a renewal, by default."""


@dataclass(frozen=True, slots=True)
class Lease:
    """Claim of a process on a pipeline.

    `counter` grows at each renewal. A challenger watches it over its own monotonic clock. `task` names the Airflow
    task instance without its try ("" outside Airflow). `doing` shows people the progress of a long delivery. `seconds`
    is how long the lease holds without a renewal. The decision log shows people by it whether the holder is alive.
    """

    holder: str
    epoch: int
    task: str
    try_number: int
    counter: int
    doing: str = ""
    seconds: float = LEASE_SECONDS


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Row of a pipeline in the store.

    `base` is Spark's position of the newest published (or, after a rewind, delivered) checkpoint. `base_is_clean` says
    that the process that wrote it ended properly, so its location may be continued in place. `turn` is the run between
    its `recover` and its `confirmed` (politeness, not safety). `last_published` is the highest number ever published,
    the predecessor of the next publication (0: none). `last_attempt` is the highest attempt. `former` is the pipeline
    that this one replaces.

    `halt` says why it is HALTED (None: it is not), `renamed_to` which pipeline continues a RENAMED one. `newer` is a
    status or halt reason that a newer release wrote and this one does not know (""). The pipeline then counts as
    HALTED, and every action refuses it (`errors.require_understood`).
    """

    name: str
    epoch: int
    next_number: int
    status: PipelineStatus
    halt: Halt | None
    base: SparkPosition | None
    base_is_clean: bool
    turn: RunKey | None
    last_published: int = 0
    last_attempt: int = 0
    former: Former | None = None
    renamed_to: str = ""
    newer: str = ""

    @property
    def halt_reason(self) -> HaltReason | None:
        """Return why it is HALTED; None: it is not, or for a reason of a newer release."""
        return None if self.halt is None or self.newer else HaltReason(self.halt.reason)

    @property
    def was_taken_back(self) -> bool:
        """Return whether it is RENAMED and has published nothing: another pipeline may get this name again."""
        return self.status is PipelineStatus.RENAMED and not self.last_published


@dataclass(frozen=True, slots=True)
class Run:
    """Row of a run. `epoch` is the one its delivery tasks share (0: none yet); `staged`: its stage ended.

    `stage_task` is the task that staged it ("": unknown), `stage_began` when its newest attempt began. `through` is
    the highest published number when its stage ended. `complete`: the stage read everything that its sources held when
    it began, and no number up to `through` was rewound since. `spec` is the digest of its specification (`spec`;
    "": unknown). `restored_from` is the savepoint that it started from ("": none).
    """

    pipeline: str
    key: RunKey
    epoch: int
    staged: bool
    interval_end: datetime | None
    stage_task: str = ""
    stage_began: datetime | None = None
    through: int = 0
    complete: bool = False
    spec: str = ""
    restored_from: str = ""


class RequestKind(StrEnum):
    """Request that a person may make of a running stream."""

    STOP = "STOP"


@dataclass(frozen=True, slots=True)
class Request:
    """A request to the process that runs the pipeline; `id` counts within a pipeline.

    `kind` is plain text where only a newer release knows it; this release does not answer it. `outcome` is the answer
    ("": no answer yet), and `missing` names the arguments that it did not fulfil. Times are UTC by the store's clock.
    """

    pipeline: str
    id: int
    kind: RequestKind | str
    arguments: Mapping[str, Any]
    asked_by: str
    asked_at: datetime
    answered_at: datetime | None
    outcome: str
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Filling:
    """A plan of another pipeline: it has delivered into these participants, or is about to (`number` 0)."""

    pipeline: str
    status: str
    number: int
    participants: tuple[ParticipantPlan, ...]
    dags: frozenset[str] = frozenset()
    """The first and the last one, by name, of the DAGs that have made its checkpoints."""


@dataclass(frozen=True, slots=True)
class Barrier:
    """A barrier in one pipeline: what was in its sources at `injected_at` (UTC, by the store's clock) is before it."""

    id: str
    pipeline: str
    injected_at: datetime
    injected_by: str


@dataclass(frozen=True, slots=True)
class Event:
    """One line of the append-only event log; `number` is 0 for what concerns the whole pipeline."""

    pipeline: str
    number: int
    at: datetime
    epoch: int
    kind: str
    message: str
    detail: Mapping[str, Any] = field(default_factory=dict)
