"""The kinds of the event log, and the pieces of its sentences."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from airflow_ft.protocol.model import Plan, RunKey, Segment
from airflow_ft.protocol.numbers import count_text, numbers_text
from airflow_ft.protocol.pipelines import Lease


class EventKind(StrEnum):
    """Kind of an event. Events of a transition have the name of the new state."""

    REGISTERED = "REGISTERED"
    EPOCH = "EPOCH"
    TURN = "TURN"
    RUN_ADOPTED = "RUN_ADOPTED"
    STAGE_BEGUN = "STAGE_BEGUN"
    STAGE_ENDED = "STAGE_ENDED"
    TRIGGERED = "TRIGGERED"
    STAGED = "STAGED"
    PLANNED = "PLANNED"
    SUBSUMED = "SUBSUMED"
    ATTEMPT = "ATTEMPT"
    VOTED = "VOTED"
    PREPARED = "PREPARED"
    COMMITTING = "COMMITTING"
    PROVEN = "PROVEN"
    COMPLETED = "COMPLETED"
    DELIVERED = "DELIVERED"
    FINALISED = "FINALISED"
    ABORTED = "ABORTED"
    ROLLED_BACK = "ROLLED_BACK"
    QUARANTINED = "QUARANTINED"
    REWOUND = "REWOUND"
    STATE_RESET = "STATE_RESET"
    SAVEPOINT = "SAVEPOINT"
    RESTORED = "RESTORED"
    HALTED = "HALTED"
    RESUMED = "RESUMED"
    RETIRED = "RETIRED"
    RENAMED = "RENAMED"
    ADOPTED = "ADOPTED"
    PRUNING = "PRUNING"
    REQUESTED = "REQUESTED"
    ANSWERED = "ANSWERED"
    BARRIER = "BARRIER"
    FAILED = "FAILED"
    WARNING = "WARNING"


LAST_TURN = (
    "SELECT id, detail FROM event WHERE pipeline = ? AND number = 0 AND kind = 'TURN' AND detail LIKE ? AND detail <> ?"
    " ORDER BY id DESC LIMIT 1"
)
"""Finds the newest event with which a run has got the turn (`HAS_TURN`), other than the run of these details."""
HAS_TURN = '%"has_turn":true%'


def bytes_text(count: int) -> str:
    """A size for people: `4.1 MB` (decimal units)."""
    if count < 1000:
        return f"{count} bytes"
    size = float(count)
    for unit in ("kB", "MB", "GB", "TB"):
        size /= 1000
        if size < 999.95 or unit == "TB":
            break
    return f"{size:,.1f} {unit}"


def segment_text(segment: Segment | None) -> str:
    """Return what a checkpoint published: `30,000 rows (orders 29,500; alerts 500), 4.1 MB`."""
    if segment is None:
        return "no rows of its own, it only carries earlier ones"
    by_sink = "; ".join(f"{sink} {rows:,}" for sink, rows in segment.rows.items())
    return f"{count_text(segment.total_rows, 'row')} ({by_sink}), {bytes_text(segment.bytes)}"


def plan_text(plan: Plan) -> str:
    """Return how a checkpoint will be delivered."""
    rows = sum(segment.total_rows for segment in plan.segments)
    systems = "; ".join(f"{p.name} ({p.promise.value}, {p.strategy}, after {p.predecessor})" for p in plan.participants)
    decided = "the store decides" if plan.commit_point is None else f"the transaction of {plan.commit_point} decides"
    if not plan.mode.waits:
        decided = "decided by this plan"
    which = "numbers" if len(plan.segments) != 1 else "number"
    numbers = numbers_text(segment.number for segment in plan.segments)
    return f"{count_text(rows, 'row')} of {which} {numbers} to {systems}; {decided}"


def run_detail(run: RunKey) -> dict[str, Any]:
    """A run, as the details of an event hold it."""
    detail: dict[str, Any] = {"dag_id": run.dag_id, "run_id": run.run_id}
    return {**detail, "map_index": run.map_index} if run.map_index >= 0 else detail


def run_in(detail: Mapping[str, Any]) -> RunKey:
    """The inverse of `run_detail`."""
    return RunKey(detail["dag_id"], detail["run_id"], detail.get("map_index", -1))


def lease_text(lease: Lease) -> str:
    """Describe the process that holds a lease."""
    return f"{lease.holder} ({lease.task}, try {lease.try_number})" if lease.task else lease.holder
