"""Answers of the page's API about a checkpoint: in a list, and in full."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from datetime import UTC, datetime
from typing import cast
from urllib.parse import quote

from airflow_ft.protocol.errors import filled
from airflow_ft.protocol.failure import Failure, Halt
from airflow_ft.protocol.lag import Lag
from airflow_ft.protocol.model import Checkpoint, ParticipantPlan, StateSizes
from airflow_ft.protocol.pipelines import Event
from airflow_ft.protocol.reasons import Reason
from airflow_ft.protocol.set_aside import of_checkpoint
from airflow_ft.protocol.timing import Timing
from airflow_ft.protocol.votes import Vote
from airflow_ft.protocol.warning import PipelineWarning
from airflow_ft.store.events import EventKind

from . import answers

APPLICATION = "{application_id}"


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
        **explained(checkpoint.reason, checkpoint.pipeline),
        "delivers": [segment.number for segment in plan.segments] if plan else [],
        "reasons": list(plan.reasons) if plan else [],
        "spec": checkpoint.spec,
        "participants": [_participant(each, checkpoint.votes.get(each.name)) for each in checkpoint.participants],
    }


def whole(checkpoint: Checkpoint, events: Iterable[Event], task: str, spark: str) -> answers.CheckpointWhole:
    """`listed`, and its place in the log, positions, votes and events; `task` has staged it.

    spark: the address of Spark's history, with places to fill in; "": there is none.
    """
    segment, position, plan = checkpoint.segment, checkpoint.position, checkpoint.plan
    listed_events = list(events)
    return {
        **listed(checkpoint),
        "markers": [_marker(each.name, checkpoint.votes.get(each.name)) for each in checkpoint.participants],
        "task": task,
        "application": checkpoint.application,
        "spark": _filled(spark, checkpoint, task),
        "plan": plan.digest if plan else "",
        "finalised_at": next((each.at.isoformat() for each in listed_events if each.kind == EventKind.FINALISED), ""),
        "epoch": checkpoint.epoch,
        "predecessor": checkpoint.predecessor,
        "log": segment.location if segment else "",
        "digest": segment.digest if segment else "",
        "location": f"{position.location}, batch {position.batch}" if position else "",
        "positions": dict(checkpoint.positions),
        "commit_point": plan.commit_point if plan else None,
        "events": [event(each) for each in listed_events],
    }


def _filled(address: str, checkpoint: Checkpoint, task: str) -> str:
    """Return the filled address; "" if it names an application and the checkpoint's is unknown."""
    if APPLICATION in address and not checkpoint.application:
        return ""
    run = checkpoint.run
    places = {
        "{pipeline}": checkpoint.pipeline,
        "{dag_id}": run.dag_id if run else "",
        "{run_id}": run.run_id if run else "",
        "{task_id}": task,
        "{number}": str(checkpoint.number),
        APPLICATION: checkpoint.application,
    }
    for place, value in places.items():
        address = address.replace(place, quote(value, safe=""))
    return address


def event(found: Event) -> answers.Event:
    """A line of the event log."""
    return {"at": found.at.isoformat(), "epoch": found.epoch, "kind": found.kind, "message": found.message}


def timed(timing: Timing) -> answers.Timed:
    """Return how long it took, in seconds."""
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
        "state_sizes": _sizes(timing.state_sizes),
    }


def _sizes(of: StateSizes | None) -> answers.StateSizes | None:
    return None if of is None else cast("answers.StateSizes", asdict(of))


def behind(lags: Iterable[Lag]) -> list[answers.SourceLag]:
    """Return how far a pipeline is behind its sources."""
    return [
        cast(
            "answers.SourceLag",
            {**asdict(each), "seconds_left": each.seconds_left, "at": each.at.isoformat() if each.at else ""},
        )
        for each in lags
    ]


def explained(reason: Reason | None, pipeline: str) -> answers.Explained:
    """Explain why it failed, what happens to its rows, and what to do."""
    return {
        "cause": reason.cause if reason else "",
        "fate": reason.rows if reason else "",
        "remedy": filled(reason.remedy, pipeline) if reason else "",
    }


def _message(checkpoint: Checkpoint) -> str:
    aside = (f"{each.text(sink)}." for sink, each in of_checkpoint(checkpoint).items())
    return " ".join(text for text in (checkpoint.message, *aside) if text)


def _marker(participant: str, vote: Vote | None) -> answers.Marker:
    proof = vote.proof if vote else None
    return {
        "participant": participant,
        "digest": proof.digest if proof else "",
        "epoch": proof.epoch if proof else 0,
        "notes": dict(vote.notes) if vote else {},
        "detail": dict(proof.detail) if proof else {},
    }


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
        "problem": failure(vote.problem) if vote and vote.problem and proof is None else None,
    }


def failure(found: Failure) -> answers.Failure:
    """An error, as it was stored."""
    at = datetime.fromtimestamp(found.at / 1e6, UTC).isoformat() if found.at else ""
    return cast("answers.Failure", {**asdict(found), "at": at})


def halt(found: Halt) -> answers.Halt:
    """The error that halted a pipeline."""
    return cast("answers.Halt", asdict(found))


def warned(warnings: Iterable[PipelineWarning]) -> list[answers.Warned]:
    """Warnings, as they were stored."""
    return [cast("answers.Warned", {**asdict(each), "at": each.at.isoformat() if each.at else ""}) for each in warnings]
