"""Rows of checkpoints and of their votes to the values of the protocol and back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_ft.protocol.formats import member, refuse_newer
from airflow_ft.protocol.model import PLAN_FORMAT, AfterAbort, Checkpoint, CheckpointState, Plan, Segment, StateSizes
from airflow_ft.protocol.reasons import Reason, reason_of
from airflow_ft.protocol.timing import Delivered, Timing
from airflow_ft.protocol.votes import Outcome, Proof, Vote
from airflow_ft.store.database import Row
from airflow_ft.store.rows import (
    json_object,
    json_text,
    run_key,
    stored,
    time_or_none,
    to_failure,
    to_position,
    to_time,
    uri_of,
)

_STATES = {state.value: state for state in CheckpointState}


@stored("checkpoint")
def to_timing(row: Row) -> Timing:
    """Return the times and sizes in a row of `checkpoint`."""
    return Timing(  # by position, since a page reads a thousand
        row["number"],
        _state(row),
        _reason(row),
        _total(row),
        row["segment_bytes"] or 0,
        to_time(row["triggered_at"]),
        time_or_none(row["staged_at"]),
        time_or_none(row["prepared_at"]),
        time_or_none(row["decided_at"]),
        time_or_none(row["completed_at"]),
        json_object(row["lag"]) if row["lag"] else {},
        _state_sizes(row),
    )


def _total(row: Row) -> int:
    """Rows over all sinks."""
    return sum(json_object(row["segment_rows"]).values()) if row["segment_rows"] else 0


@stored("checkpoint")
def to_delivered(row: Row) -> Delivered:
    """Return the rows and the time of a completed `checkpoint`."""
    return Delivered(row["number"], int(row["delivered_rows"]), to_time(row["completed_at"]))


def _state_sizes(row: Row) -> StateSizes | None:
    return None if row["state_sizes"] is None else StateSizes(**json_object(row["state_sizes"]))


def proof_text(proof: Proof) -> str:
    """A proof as the `vote` table holds it."""
    return json_text(
        {
            "participant": proof.participant,
            "number": proof.number,
            "outcome": proof.outcome.value,
            "digest": proof.digest,
            "epoch": proof.epoch,
            "counts": dict(proof.counts),
            "detail": dict(proof.detail),
        }
    )


def to_proof(text: str | None) -> Proof | None:
    """The inverse of `proof_text`."""
    if text is None:
        return None
    data = json_object(text)
    return Proof(**{**data, "outcome": member(Outcome, data["outcome"], "the outcome of a proof")})


@stored("vote")
def proof_of(row: Row) -> Proof | None:
    """The proof of a row of `vote`."""
    return to_proof(row["proof"])


@stored("checkpoint")
def rows_of(row: Row) -> Mapping[str, int]:
    """Return how many rows a row of `checkpoint` has, by sink."""
    return json_object(row["segment_rows"] or "{}")


def plan_of(text: str | None) -> Plan | None:
    """The plan as the `checkpoint` table holds it. ConfigurationError when a later release has made it."""
    if text is None:
        return None
    plan = json_object(text)
    refuse_newer(f"the plan of checkpoint {plan['number']} of {plan['pipeline']}", plan.get("format"), PLAN_FORMAT)
    return Plan.from_json(plan)


_VOTE = ("participant", "attempt", "prepared", "proof", "notes", "problem", "rolled_back")
# A checkpoint with its votes is read by one statement, so that both are of one moment; `{where}` is on `checkpoint`.
# A join would repeat the plan with each vote, and a plan is as long as there are participants.
SELECT_CHECKPOINTS = (
    f"SELECT c.*, (SELECT json_group_array(json_array({', '.join(_VOTE)})) FROM vote v"
    " WHERE v.pipeline = c.pipeline AND v.number = c.number) AS votes"
    " FROM (SELECT * FROM checkpoint WHERE {where}) c"
    " ORDER BY c.number {direction}"
)


def select_checkpoints(where: str, *, newest_first: bool = False) -> str:
    """The query for the checkpoints of `where` (text of this package, values as `?`)."""
    return SELECT_CHECKPOINTS.format(where=where, direction="DESC" if newest_first else "ASC")


def to_checkpoints(rows: Sequence[Row]) -> list[Checkpoint]:
    """The rows of `SELECT_CHECKPOINTS`, in their order."""
    return [_checkpoint(row, _votes(row)) for row in rows]


def change_vote(row: Row, participant: str, columns: Mapping[str, object]) -> None:
    """Change columns of one vote in a row of `SELECT_CHECKPOINTS`."""
    votes = _columns_of_votes(row)
    for vote in votes:
        if vote["participant"] == participant:
            vote.update(columns)
    row["votes"] = [[vote[name] for name in _VOTE] for vote in votes]


@stored("vote")
def _votes(row: Row) -> Mapping[str, Vote]:
    return {
        vote["participant"]: Vote(
            vote["participant"],
            vote["attempt"],
            vote["prepared"],
            to_proof(vote["proof"]),
            json_object(vote["notes"]),
            to_failure(vote["problem"]),
            bool(vote["rolled_back"]),
        )
        for vote in _columns_of_votes(row)
    }


def _columns_of_votes(row: Row) -> list[dict[str, Any]]:
    found = row["votes"]
    if isinstance(found, str):  # SQLite; PostgreSQL's client has read the JSON
        found = json.loads(found)
    return [dict(zip(_VOTE, vote, strict=True)) for vote in found or ()]  # NULL: no vote


def _reason(row: Row) -> Reason | None:
    return None if row["reason"] is None else reason_of(row["reason"])


def _after_abort(row: Row) -> AfterAbort | None:
    return None if row["after_abort"] is None else member(AfterAbort, row["after_abort"], "what becomes of its rows")


def _state(row: Row) -> CheckpointState:
    return _STATES.get(row["state"]) or member(CheckpointState, row["state"], "its state")


def _segment(row: Row) -> Segment | None:
    if row["segment_digest"] is None:
        return None
    return Segment(
        number=row["number"],
        digest=row["segment_digest"],
        location=uri_of(row["segment_location"]),
        rows=json_object(row["segment_rows"]),
        bytes=row["segment_bytes"],
    )


@stored("checkpoint")
def _checkpoint(row: Row, votes: Mapping[str, Vote]) -> Checkpoint:
    return Checkpoint(
        pipeline=row["pipeline"],
        number=row["number"],
        state=_state(row),
        epoch=row["epoch"],
        run=run_key(row["dag_id"], row["run_id"], row["map_index"]),
        predecessor=row["predecessor"],
        segment=_segment(row),
        position=to_position(row["spark_location"], row["spark_batch"]),
        plan=plan_of(row["plan"]),
        votes=votes,
        reason=_reason(row),
        message=row["message"],
        after_abort=_after_abort(row),
        subsumed_by=row["subsumed_by"],
        delivered_by=row["delivered_by"],
        rollback_pending=bool(row["rollback_pending"]),
        finalised=bool(row["finalised"]),
        positions=json_object(row["positions"]),
        triggered_at=to_time(row["triggered_at"]),
        staged_at=time_or_none(row["staged_at"]),
        prepared_at=time_or_none(row["prepared_at"]),
        decided_at=time_or_none(row["decided_at"]),
        completed_at=time_or_none(row["completed_at"]),
        spec=row["spec"],
        lag=json_object(row["lag"] or "{}"),
        application=row["application"],
        state_sizes=_state_sizes(row),
    )
