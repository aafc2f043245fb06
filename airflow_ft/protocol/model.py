"""The values of a checkpoint: its states, segment, plan and row. All frozen, all plain data."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from airflow_ft.protocol.failure import Failure
from airflow_ft.protocol.reasons import Reason
from airflow_ft.protocol.votes import Proof, Vote


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


class Promise(StrEnum):
    """Guarantee that a participant can give."""

    TWO_PHASE = "TWO_PHASE"
    ATOMIC = "ATOMIC"
    REDO = "REDO"
    IDEMPOTENT = "IDEMPOTENT"
    AT_LEAST_ONCE = "AT_LEAST_ONCE"
    """It keeps no marker. A delivery without a recorded end is repeated, and its rows may arrive twice."""


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

    `attempt` comes from a counter of the pipeline, so within an epoch a later step has a larger one. In a vote,
    `delivered` is a number that the sink has delivered, by a proof in the decision log. A sink that has delivered less
    must refuse the vote: it has lost a delivery. 0 demands nothing.
    """

    pipeline: str
    installation: str
    epoch: int
    attempt: int
    delivered: int = 0

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

    @property
    def names(self) -> tuple[str, ...]:
        """The participants' names in commit order."""
        return tuple(participant.name for participant in self.participants)

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
            "segments": [asdict(each) for each in self.segments],
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
class Checkpoint:
    """Row of a checkpoint in the store, with its votes.

    `delivered_by` is the COMPLETED number whose plan contained this one's segment. `after_abort` is set on ABORTED
    only. `rollback_pending`: it was aborted, and a TWO_PHASE participant may still hold prepared rows of it.
    `positions` are the source positions by source name (plain JSON). Times are UTC by the store's clock. `spec` is the
    digest of its specification (`QueryLog.spec`; "": unknown).

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
    def participants(self) -> tuple[ParticipantPlan, ...]:
        """Return the participants of its plan in commit order; none without a plan."""
        return self.plan.participants if self.plan else ()

    def proof_of(self, participant: str) -> Proof | None:
        """Return the proof of a participant's outcome; None: the log has none yet."""
        vote = self.votes.get(participant)
        return vote.proof if vote else None

    def problem_of(self, participant: str) -> Failure | None:
        """Return the last error of a participant; None: it has a proof, or no error is known."""
        vote = self.votes.get(participant)
        return vote.problem if vote and vote.proof is None else None

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
