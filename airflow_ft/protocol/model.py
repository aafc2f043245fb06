"""The values of the protocol: checkpoints, plans, votes, proofs. All frozen, all plain data."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from airflow_ft.protocol.failure import Failure, Halt
from airflow_ft.protocol.reasons import AbortReason as AbortReason
from airflow_ft.protocol.reasons import Reason as Reason


class CheckpointState(StrEnum):
    """State of a checkpoint. `airflow_ft.protocol.transitions` lists the allowed transitions."""

    TRIGGERED = "TRIGGERED"
    STAGED = "STAGED"
    PREPARED = "PREPARED"
    COMMITTING = "COMMITTING"
    COMPLETED = "COMPLETED"
    SUBSUMED = "SUBSUMED"
    ABORTED = "ABORTED"
    QUARANTINED = "QUARANTINED"


class CheckpointingMode(StrEnum):
    """Delivery guarantee for each row after a failure. Flink has the first two.

    EXACTLY_ONCE: once, in all sinks or in none. AT_LEAST_ONCE: once or more often, never lost. AT_MOST_ONCE: once, or
    lost with a process that died before it published the row, as in Flink's jobs without checkpoints.
    """

    EXACTLY_ONCE = "EXACTLY_ONCE"
    AT_LEAST_ONCE = "AT_LEAST_ONCE"
    AT_MOST_ONCE = "AT_MOST_ONCE"

    @property
    def waits(self) -> bool:
        """Return whether the decision waits for votes."""
        return self is not CheckpointingMode.AT_LEAST_ONCE


class AfterAbort(StrEnum):
    """Handling of the rows of an aborted, published checkpoint."""

    CARRIED = "carried"  # delivered by the next number, before that one's own rows
    REWOUND = "rewound"  # computed again: the next attempt starts from the last delivered checkpoint


class ExternalizedRetention(StrEnum):
    """Which confirmed checkpoints remain after a stream ended (Flink: ExternalizedCheckpointRetention)."""

    RETAIN_ON_CANCELLATION = "RETAIN_ON_CANCELLATION"  # all that `num_retained` keeps
    DELETE_ON_CANCELLATION = "DELETE_ON_CANCELLATION"  # nothing when it was asked to stop; all when it has failed
    NO_EXTERNALIZED_CHECKPOINTS = "NO_EXTERNALIZED_CHECKPOINTS"  # nothing


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


class Promise(StrEnum):
    """Guarantee that a participant can give."""

    TWO_PHASE = "TWO_PHASE"
    ATOMIC = "ATOMIC"
    REDO = "REDO"
    IDEMPOTENT = "IDEMPOTENT"
    AT_LEAST_ONCE = "AT_LEAST_ONCE"
    """It keeps no marker. A delivery without a recorded end is repeated, and its rows may arrive twice."""


class Outcome(StrEnum):
    """Outcome of a checkpoint according to the sink's own marker."""

    COMMITTED = "committed"
    ABORTED = "aborted"


def canonical_json(value: Any) -> str:
    """JSON with sorted keys and no blanks, so that equal values have equal text (digests, comparisons)."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


PLAIN = "python:"
"""Before a pipeline's name: what a run outside of Airflow has for a DAG's id; no DAG has such a one."""


@dataclass(frozen=True, slots=True, order=True)
class RunKey:
    """The Airflow run that staged a checkpoint; outside Airflow any two strings that are stable over retries.

    `map_index` distinguishes the expansions of a mapped task (or of a task in a mapped group); -1: not mapped.
    """

    dag_id: str
    run_id: str
    map_index: int = -1

    @property
    def is_plain(self) -> bool:
        """Return whether no DAG has made it, but a program (`airflow_ft.run`)."""
        return self.dag_id.startswith(PLAIN)

    def __str__(self) -> str:
        return f"{self.dag_id}/{self.run_id}" + (f"[{self.map_index}]" if self.map_index >= 0 else "")


@dataclass(frozen=True, slots=True)
class Fence:
    """Fencing token: newer (epoch, attempt) pairs shut older ones out of the store and of every sink (I5).

    `attempt` comes from a counter of the pipeline, so within an epoch a later step has a larger one.
    """

    pipeline: str
    installation: str
    epoch: int
    attempt: int

    @property
    def rank(self) -> tuple[int, int]:
        """Return what is compared with the head of a sink."""
        return (self.epoch, self.attempt)


@dataclass(frozen=True, slots=True)
class SparkPosition:
    """Position of Spark's state of a published checkpoint: checkpoint location (URI) and micro-batch."""

    location: str
    batch: int


@dataclass(frozen=True, slots=True)
class Segment:
    """The rows one checkpoint published into the write-ahead log: frozen from then on (I1).

    `digest` is the SHA-256 of the manifest at `location` (URI of the folder); `rows` counts by sink name;
    `bytes` is the size of all files.
    """

    number: int
    digest: str
    location: str
    rows: Mapping[str, int]
    bytes: int

    @property
    def total_rows(self) -> int:
        """Rows over all sinks."""
        return sum(self.rows.values())


@dataclass(frozen=True, slots=True)
class StateSizes:
    """State after one micro-batch, over all operators and partitions.

    `changes`: bytes that this micro-batch changed. `snapshot`: bytes of the newest full snapshots in the location (0:
    no snapshot). `replayed`: micro-batches since the oldest of these snapshots. Loading the state replays their
    changes.
    """

    changes: int
    snapshot: int
    replayed: int

    def __str__(self) -> str:
        return f"{self.changes} bytes of changes; full snapshot {self.snapshot} bytes, {self.replayed} batches before"


def plan_digest(segments: tuple[Segment, ...]) -> str:
    """SHA-256 (hex) over the ordered (number, manifest digest): what marker and token hold."""
    text = canonical_json([[segment.number, segment.digest] for segment in segments])
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Former:
    """A pipeline that continues under another name. `number` was delivered last, in all sinks. All its numbers are
    lower than `below`, the first number of the new name.
    """

    pipeline: str
    number: int
    below: int


@dataclass(frozen=True, slots=True)
class ParticipantPlan:
    """One transactional system in a plan: everything needed to reach and settle it without the DAG.

    `name` is the Airflow connection id, or the name of a sink without a connection. `kind` names the system
    (`airflow_ft.sinks.registry`). `sinks` maps a sink's name to its settings (plain JSON, never a secret), in the
    declared order, in which rows are sent. `predecessor` is the number that this system must have delivered last (0:
    none yet). `former` is the pipeline that this one replaces there when it begins (None: no pipeline).
    """

    name: str
    kind: str
    strategy: str
    promise: Promise
    predecessor: int
    sinks: Mapping[str, Mapping[str, Any]]
    former: Former | None = None

    @property
    def keeps_markers(self) -> bool:
        """Return whether the sink itself remembers what it was given."""
        return self.promise is not Promise.AT_LEAST_ONCE

    def to_json(self) -> dict[str, Any]:
        """Plain data for the store."""
        return {
            "name": self.name,
            "kind": self.kind,
            "strategy": self.strategy,
            "promise": self.promise.value,
            "predecessor": self.predecessor,
            "sinks": {name: dict(settings) for name, settings in self.sinks.items()},
            **({"order": list(self.sinks)} if list(self.sinks) != sorted(self.sinks) else {}),
            **({"former": asdict(self.former)} if self.former else {}),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ParticipantPlan:
        """The inverse of `to_json`. Stored objects lose their order; without "order" it is that of the names."""
        return cls(
            name=data["name"],
            kind=data["kind"],
            strategy=data["strategy"],
            promise=Promise(data["promise"]),
            predecessor=data["predecessor"],
            sinks={name: data["sinks"][name] for name in data.get("order") or sorted(data["sinks"])},
            former=Former(**data["former"]) if "former" in data else None,
        )


PLAN_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Plan:
    """Plan of one checkpoint's delivery; immutable once stored.

    `segments` are in delivery order: carried ones, subsumed ones, its own. `participants` are in commit order.
    `commit_point` is the participant whose own transaction decides, or None when the store decides. With the mode
    AT_LEAST_ONCE storing the plan is the decision. `reasons` explain the plan to people.
    """

    pipeline: str
    installation: str
    number: int
    segments: tuple[Segment, ...]
    participants: tuple[ParticipantPlan, ...]
    commit_point: str | None
    reasons: tuple[str, ...] = ()
    mode: CheckpointingMode = CheckpointingMode.EXACTLY_ONCE

    @property
    def digest(self) -> str:
        """The plan digest that marker and token hold."""
        return plan_digest(self.segments)

    def participant(self, name: str) -> ParticipantPlan:
        """The participant of that name; KeyError when the plan has none."""
        for participant in self.participants:
            if participant.name == name:
                return participant
        raise KeyError(name)

    def to_json(self) -> dict[str, Any]:
        """Plain data for the store."""
        return {
            "format": PLAN_FORMAT,
            "pipeline": self.pipeline,
            "installation": self.installation,
            "number": self.number,
            "segments": [
                {
                    "number": s.number,
                    "digest": s.digest,
                    "location": s.location,
                    "rows": dict(s.rows),
                    "bytes": s.bytes,
                }
                for s in self.segments
            ],
            "participants": [p.to_json() for p in self.participants],
            "commit_point": self.commit_point,
            "reasons": list(self.reasons),
            "mode": self.mode.value,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Plan:
        """The inverse of `to_json`."""
        return cls(
            pipeline=data["pipeline"],
            installation=data["installation"],
            number=data["number"],
            segments=tuple(Segment(**segment) for segment in data["segments"]),
            participants=tuple(ParticipantPlan.from_json(p) for p in data["participants"]),
            commit_point=data["commit_point"],
            reasons=tuple(data["reasons"]),
            mode=CheckpointingMode(data["mode"]),
        )


@dataclass(frozen=True, slots=True)
class Proof:
    """Outcome read from a sink's own marker or token (I6), never guessed.

    `counts` are what the server returned inside the delivering transaction, by sink name: affected rows, or
    acknowledged records. `detail` is plain JSON for people: attempts, connection, slow path taken, reason of an abort
    marker.
    """

    participant: str
    number: int
    outcome: Outcome
    digest: str
    epoch: int
    counts: Mapping[str, int] = field(default_factory=dict)
    detail: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SinkHead:
    """A sink's own memory of a pipeline: its owner, its newest epoch and the number it delivered last."""

    installation: str
    epoch: int
    number: int


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


@dataclass(frozen=True, slots=True)
class Vote:
    """A participant's newest attempt at a checkpoint's step, numbered before the sink was touched.

    `prepared` is the attempt that voted yes (0: none). `notes` are that vote's plain JSON, from which another process
    can finish a TWO_PHASE participant. `proof` is set once its outcome was read. `problem`, only for people, is the
    error of the newest attempt (None: no error).
    """

    participant: str
    attempt: int
    prepared: int
    proof: Proof | None
    notes: Mapping[str, Any] = field(default_factory=dict)
    problem: Failure | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Row of a checkpoint in the store, with its votes.

    `delivered_by` is the COMPLETED number whose plan contained this one's segment. `after_abort` is set on ABORTED
    only. `rollback_pending`: it was aborted, and a TWO_PHASE participant may still hold prepared rows of it.
    `positions` are the source positions by source name (plain JSON). Times are UTC by the store's clock. `spec` is the
    digest of its specification (`SpecLog.spec`; "": unknown).

    Only for people: `lag`, what each source had beyond this checkpoint while it was the newest one (empty: not
    measured). Also `application`, Spark's id of the application that computed it ("": unknown), and `state_sizes`, the
    size of the state after it (None: not measured, or no state).
    """

    pipeline: str
    number: int
    state: CheckpointState
    epoch: int
    run: RunKey | None
    predecessor: int
    segment: Segment | None
    position: SparkPosition | None
    plan: Plan | None
    votes: Mapping[str, Vote]
    reason: Reason | None
    message: str
    after_abort: AfterAbort | None
    subsumed_by: int | None
    delivered_by: int | None
    rollback_pending: bool
    finalised: bool
    positions: Mapping[str, Any]
    triggered_at: datetime
    staged_at: datetime | None
    prepared_at: datetime | None
    decided_at: datetime | None
    completed_at: datetime | None
    spec: str = ""
    lag: Mapping[str, int] = field(default_factory=dict)
    application: str = ""
    state_sizes: StateSizes | None = None

    @property
    def drained(self) -> SparkPosition | None:
        """The state that it has drained: its rows are what was open there. None: it is none that drains."""
        found = self.positions.get(DRAINED)
        return None if found is None else SparkPosition(**found)

    @property
    def is_confirmed(self) -> bool:
        """Its rows are proven to be in every sink (I9: what gates may open on)."""
        return self.state is CheckpointState.COMPLETED or self.delivered_by is not None

    @property
    def is_settled(self) -> bool:
        """Nothing is left to do for it: confirmed, or aborted with its rows never published or computed again."""
        if self.state is CheckpointState.ABORTED:
            return self.is_confirmed or self.segment is None or self.after_abort is AfterAbort.REWOUND
        return self.is_confirmed or self.after_abort is AfterAbort.REWOUND

    @property
    def in_doubt_since(self) -> datetime:
        """Since when its outcome is open, if it is."""
        return self.decided_at or self.prepared_at or self.triggered_at

    @property
    def is_undelivered(self) -> bool:
        """It has published rows that some number still has to deliver (and that were not rewound)."""
        if self.segment is None or self.delivered_by is not None:
            return False
        return self.after_abort is not AfterAbort.REWOUND


DRAINED = "*drained"
"""Among the positions of a checkpoint that drains, beside those of its sources; no source has such a name."""


class RequestKind(StrEnum):
    """Request that a person may make of a running stream."""

    STOP = "STOP"


@dataclass(frozen=True, slots=True)
class Request:
    """A request to the process that runs the pipeline; `id` counts within a pipeline.

    `kind` is plain text where only a newer release knows it; this release does not answer it. `outcome` is the answer
    ("": no answer yet). Times are UTC by the store's clock.
    """

    pipeline: str
    id: int
    kind: RequestKind | str
    arguments: Mapping[str, Any]
    asked_by: str
    asked_at: datetime
    answered_at: datetime | None
    outcome: str


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
