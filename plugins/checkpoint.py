"""How the page's API tells of a checkpoint: in a list, and with all that is known of it."""

from __future__ import annotations

from collections.abc import Iterable

from airflow_ft.core.lag import Lag
from airflow_ft.core.model import AbortReason, Checkpoint, Event, ParticipantPlan, Vote
from airflow_ft.core.set_aside import of_checkpoint
from airflow_ft.core.timing import Timing

from . import answers


def listed(checkpoint: Checkpoint) -> answers.CheckpointListed:
    """A line, and what opens below it."""
    plan = checkpoint.plan
    at = checkpoint.completed_at or checkpoint.decided_at or checkpoint.prepared_at or checkpoint.staged_at
    return {
        **timed(Timing.of(checkpoint)),
        "delivered_by": checkpoint.delivered_by or checkpoint.subsumed_by or 0,
        "dag_id": checkpoint.run.dag_id if checkpoint.run else "",
        "run_id": checkpoint.run.run_id if checkpoint.run else "",
        "map_index": checkpoint.run.map_index if checkpoint.run else -1,
        "rows_of": dict(checkpoint.segment.rows) if checkpoint.segment else {},
        "at": (at or checkpoint.triggered_at).isoformat(),
        "message": _message(checkpoint),
        **explained(checkpoint.reason),
        "delivers": [segment.number for segment in plan.segments] if plan else [],
        "reasons": list(plan.reasons) if plan else [],
        "spec": checkpoint.spec,
        "participants": [
            _participant(each, checkpoint.votes.get(each.name)) for each in (plan.participants if plan else ())
        ],
    }


def whole(checkpoint: Checkpoint, events: Iterable[Event]) -> answers.CheckpointWhole:
    """`listed`, and its place in the log, positions, votes and events."""
    segment, position = checkpoint.segment, checkpoint.position
    return {
        **listed(checkpoint),
        "epoch": checkpoint.epoch,
        "predecessor": checkpoint.predecessor,
        "log": segment.location if segment else "",
        "digest": segment.digest if segment else "",
        "location": f"{position.location}, batch {position.batch}" if position else "",
        "positions": dict(checkpoint.positions),
        "commit_point": checkpoint.plan.commit_point if checkpoint.plan else None,
        "events": [
            {"at": each.at.isoformat(), "epoch": each.epoch, "kind": each.kind, "message": each.message}
            for each in events
        ],
    }


def timed(timing: Timing) -> answers.Timed:
    """How long it took, in seconds."""
    return {
        "number": timing.number,
        "state": timing.state,
        "reason": timing.reason.value if timing.reason else "",
        "rows": timing.rows,
        "bytes": timing.bytes,
        "triggered_at": timing.triggered_at.isoformat(),
        "completed_at": timing.completed_at.isoformat() if timing.completed_at else "",
        "steps": dict(timing.steps),
        "seconds": timing.seconds,
        "lag": dict(timing.lag),
    }


def behind(lags: Iterable[Lag]) -> list[answers.SourceLag]:
    """How far a pipeline is behind its sources."""
    return [
        {
            "source": each.source,
            "unit": each.unit,
            "behind": each.behind,
            "rate": each.rate,
            "done": each.done,
            "expected": each.expected,
            "seconds_left": each.seconds_left,
            "at": each.at.isoformat() if each.at else "",
        }
        for each in lags
    ]


def explained(reason: AbortReason | None) -> answers.Explained:
    """Why it failed, what becomes of its rows, and what is to be done."""
    return {
        "cause": reason.cause if reason else "",
        "fate": reason.rows if reason else "",
        "remedy": reason.remedy if reason else "",
    }


def _message(checkpoint: Checkpoint) -> str:
    aside = (f"{each.text(sink)}." for sink, each in of_checkpoint(checkpoint).items())
    return " ".join(text for text in (checkpoint.message, *aside) if text)


def _participant(plan: ParticipantPlan, vote: Vote | None) -> answers.Participant:
    proof = vote.proof if vote else None
    return {
        "name": plan.name,
        "kind": plan.kind,
        "strategy": plan.strategy,
        "promise": plan.promise.value,
        "predecessor": plan.predecessor,
        "sinks": sorted(plan.sinks),
        "attempt": vote.attempt if vote else 0,
        "prepared": vote.prepared if vote else 0,
        "proof": proof is not None,
        "outcome": proof.outcome.value if proof else "",
        "counts": dict(proof.counts) if proof else {},
    }
