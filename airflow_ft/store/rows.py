"""Rows of the store to the values of the protocol and back. Nothing else knows the columns' names."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from airflow_ft.protocol.damaged import SENSELESS
from airflow_ft.protocol.errors import AirflowFtError, NewerReleaseError, StoreCorruptError
from airflow_ft.protocol.failure import Failure
from airflow_ft.protocol.formats import is_word, member, refuse_newer
from airflow_ft.protocol.lag import Lag, Unit
from airflow_ft.protocol.model import (
    PLAN_FORMAT,
    AfterAbort,
    Checkpoint,
    CheckpointState,
    Event,
    Former,
    HaltReason,
    Lease,
    Outcome,
    Pipeline,
    PipelineStatus,
    Plan,
    Proof,
    Reason,
    Run,
    RunKey,
    Segment,
    SparkPosition,
    StateSizes,
    Vote,
    canonical_json,
    halted_text,
)
from airflow_ft.protocol.overview import Overview
from airflow_ft.protocol.reasons import reason_of
from airflow_ft.protocol.timing import Delivered, Timing
from airflow_ft.protocol.warning import PipelineWarning
from airflow_ft.store.database import Row

P = ParamSpec("P")
T = TypeVar("T")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
EVENTS_OF_ONE = "SELECT * FROM event WHERE pipeline = ? AND number = ? ORDER BY id DESC LIMIT ?"
_DECODE = json.JSONDecoder().raw_decode
_UNITS = frozenset(Unit)
_STATES = {state.value: state for state in CheckpointState}


def stored(table: str) -> Callable[[Callable[Concatenate[Row, P], T]], Callable[Concatenate[Row, P], T]]:
    """For what reads a row of this table: StoreCorruptError names the row that cannot be read."""

    def decorate(read: Callable[Concatenate[Row, P], T]) -> Callable[Concatenate[Row, P], T]:
        @wraps(read)
        def converted(row: Row, /, *args: P.args, **kwargs: P.kwargs) -> T:
            try:
                return read(row, *args, **kwargs)
            except NewerReleaseError as error:
                raise error.located(**_place(row)) from error.__cause__
            except AirflowFtError:
                raise
            except SENSELESS as error:
                raise StoreCorruptError(
                    f"a row of the table {table} cannot be read ({error!r})", table=table, **_place(row)
                ) from error

        return converted

    return decorate


def _place(row: Row) -> dict[str, Any]:
    return {
        "pipeline": str(row.get("pipeline") or row.get("name") or ""),
        "checkpoint": int(row.get("number") or 0),
    }


def json_object(text: str) -> dict[str, Any]:
    """The inverse of `json_text` for a mapping; ValueError for any other text.

    A page reads thousands, and `json.loads` looks for blanks around each, of which a decision log has none.
    """
    try:
        found, end = _DECODE(text)
    except ValueError:
        end = -1
    if end != len(text):
        found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError(f"{text[:40]!r} is no JSON object")
    return found


def clean_text(text: str) -> str:
    """The text without what a database cannot hold: NUL, and half characters as in undecodable file names."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8").replace("\0", "\\0")


def json_text(value: Any) -> str:
    """Canonical JSON that every database can hold."""
    return clean_text(canonical_json(value))


def to_time(microseconds: int) -> datetime:
    """A stored time; exact, unlike a float of seconds."""
    return _EPOCH + timedelta(0, 0, microseconds)  # by name it takes twice as long, and pages read thousands


def from_time(time: datetime) -> int:
    """The inverse; a time without a zone is refused by the subtraction (TypeError)."""
    # Not `time - _EPOCH`: Airflow hands over times of pendulum, whose differences cannot be divided by a timedelta.
    difference: timedelta = datetime.__sub__(time, _EPOCH)
    return difference // _MICROSECOND


def _time(microseconds: int | None) -> datetime | None:
    return None if microseconds is None else to_time(microseconds)


def to_position(location: str | None, batch: int | None) -> SparkPosition | None:
    """The two columns of a position of Spark's."""
    return None if location is None or batch is None else SparkPosition(_uri(location), batch)


def _uri(text: str) -> str:
    if "\0" in text:
        raise ValueError(f"{text[:80]!r} names no place")
    return text


def key_of(run: RunKey) -> tuple[str, str, int]:
    """The three columns of a run's key."""
    return run.dag_id, run.run_id, run.map_index


def _run_key(dag_id: str | None, run_id: str | None, map_index: int) -> RunKey | None:
    return None if dag_id is None or run_id is None else RunKey(dag_id, run_id, map_index)


@stored("pipeline")
def to_pipeline(row: Row) -> Pipeline:
    """A row of `pipeline`."""
    newer = _newer(row)
    return Pipeline(
        name=row["name"],
        epoch=row["epoch"],
        next_number=row["next_number"],
        status=PipelineStatus.HALTED if newer else PipelineStatus(row["status"]),
        halt_reason=None if newer or row["halt_reason"] is None else HaltReason(row["halt_reason"]),
        halt_message=row["halt_message"],
        base=to_position(row["base_location"], row["base_batch"]),
        base_is_clean=bool(row["base_clean"]),
        turn=_run_key(row["turn_dag_id"], row["turn_run_id"], row["turn_map_index"]),
        last_published=row["published"],
        last_attempt=row["next_attempt"] - 1,
        former=to_former(row),
        newer=newer,
    )


@stored("pipeline")
def to_former(row: Row) -> Former | None:
    """Return the pipeline that the pipeline of this row replaces."""
    return None if row["former"] is None else Former(**json.loads(row["former"]))


def _newer(row: Row) -> str:
    """Return what of a row of `pipeline` only a newer release knows ("": nothing); ValueError for what none does."""
    for kind, text in ((PipelineStatus, row["status"]), (HaltReason, row["halt_reason"])):
        if text is not None and text not in kind.__members__:
            if not is_word(text):
                raise ValueError(f"{text!r} is no {kind.__name__}")
            return str(text)
    return ""


@stored("pipeline")
def to_overview(row: Row, now: int) -> Overview:
    """Return what of a row of `pipeline` a list says (`standing.LISTED`); a thousand of these are read at once."""
    first, last = row["first_dag"], row["last_dag"]
    found = Overview(
        row["name"],
        "" if row["status"] in ("ACTIVE", "RENAMED") else _halted(row),
        _run_key(row["turn_dag_id"], row["turn_run_id"], row["turn_map_index"]),
        () if first is None else (first,) if first == last else (first, last),
        row["quarantined"],
        row["committing"],
        row["undelivered"],
        renamed=row["halt_message"] if row["status"] == "RENAMED" else "",
        failure=to_failure(row["failure"]),
        streaming=bool(row["streaming"]),
        retired=bool(row["retired"]),
        leases=row["leases"],
        changed_at=to_time(row["changed_at"]),
        renewed_at=_time(row["renewed_at"]),
        expires_at=_time(row["expires_at"]),
        now=to_time(now),
    )
    if (after := row["late_after"]) is None or (row["late_default"] and found.turn is None):
        return found
    late_at = _late_at(row)
    return found._replace(
        late=None if now <= late_at else (now - late_at + after) * _MICROSECOND,
        late_after=after * _MICROSECOND,
        late_at=to_time(late_at),
    )


def _halted(row: Row) -> str:
    newer = _newer(row)
    return halted_text(newer or row["halt_reason"], row["halt_message"], newer=bool(newer))


def _late_at(row: Row) -> int:
    """When it becomes late, unless something is confirmed before. To have read all that there was counts as much."""
    read = () if row["undelivered"] else (row["read_at"], row["complete_at"])
    since: int = max(at for at in (row["created_at"], row["confirmed_at"], *read) if at is not None)
    return since + int(row["late_after"])


@stored("source_lag")
def to_lag(row: Row) -> Lag:
    """A row of `source_lag`."""
    return Lag(
        source=row["source"],
        unit=Unit(row["unit"]) if row["unit"] in _UNITS else row["unit"],
        behind=row["behind"],
        rate=row["rate"],
        done=row["done"],
        expected=row["expected"],
        at=to_time(row["at"]),
    )


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
        _time(row["staged_at"]),
        _time(row["prepared_at"]),
        _time(row["decided_at"]),
        _time(row["completed_at"]),
        json_object(row["lag"]) if row["lag"] else {},
        _state_sizes(row),
    )


def _total(row: Row) -> int:
    """Rows over all sinks."""
    return sum(json_object(row["segment_rows"]).values()) if row["segment_rows"] else 0


@stored("checkpoint")
def to_delivered(row: Row) -> Delivered:
    """Return the rows and the time of a completed `checkpoint`."""
    return Delivered(row["number"], _total(row), to_time(row["completed_at"]))


def _state_sizes(row: Row) -> StateSizes | None:
    return None if row["state_sizes"] is None else StateSizes(**json_object(row["state_sizes"]))


@stored("lease")
def to_lease(row: Row) -> Lease:
    """A row of `lease`."""
    return Lease(
        row["holder"],
        row["epoch"],
        row["task"],
        row["try_number"],
        row["counter"],
        row["doing"],
        row["lease_time"] / 1e6,
    )


@stored("run")
def to_run(row: Row) -> Run:
    """A row of `run`."""
    return Run(
        pipeline=row["pipeline"],
        key=RunKey(row["dag_id"], row["run_id"], row["map_index"]),
        epoch=row["epoch"],
        staged=bool(row["staged"]),
        interval_end=_time(row["interval_end"]),
        stage_task=row["stage_task"],
        stage_began=_time(row["stage_began"]),
        through=row["published_through"],
        complete=bool(row["complete"]),
        spec=row["spec"],
        restored_from=row["restored_from"],
    )


@stored("event")
def to_event(row: Row) -> Event:
    """A row of `event`."""
    return Event(
        pipeline=row["pipeline"],
        number=row["number"],
        at=to_time(row["at"]),
        epoch=row["epoch"],
        kind=row["kind"],
        message=row["message"],
        detail=json_object(row["detail"]),
    )


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


@stored("spec")
def spec_of(row: Row) -> Mapping[str, Any]:
    """A row of `spec`."""
    return json_object(row["text"])


def plan_of(text: str | None) -> Plan | None:
    """The plan as the `checkpoint` table holds it. ConfigurationError when a later release has made it."""
    if text is None:
        return None
    plan = json_object(text)
    refuse_newer(f"the plan of checkpoint {plan['number']} of {plan['pipeline']}", plan.get("format"), PLAN_FORMAT)
    return Plan.from_json(plan)


# A checkpoint with its votes is read by one statement, so that both are of one moment; `{where}` is on `checkpoint`.
SELECT_CHECKPOINTS = (
    "SELECT c.*, v.participant AS vote_participant, v.attempt AS vote_attempt, v.prepared AS vote_prepared,"
    " v.proof AS vote_proof, v.notes AS vote_notes, v.problem AS vote_problem"
    " FROM (SELECT * FROM checkpoint WHERE {where}) c"
    " LEFT JOIN vote v ON v.pipeline = c.pipeline AND v.number = c.number"
    " ORDER BY c.number {direction}"
)


def select_checkpoints(where: str, *, newest_first: bool = False) -> str:
    """The query for the checkpoints of `where` (text of this package, values as `?`)."""
    return SELECT_CHECKPOINTS.format(where=where, direction="DESC" if newest_first else "ASC")


def to_checkpoints(rows: Sequence[Row]) -> list[Checkpoint]:
    """The rows of `SELECT_CHECKPOINTS`, one for each vote, in their order."""
    grouped: dict[int, tuple[Row, dict[str, Vote]]] = {}
    for row in rows:
        _, votes = grouped.setdefault(row["number"], (row, {}))
        if row["vote_participant"] is not None:
            votes[row["vote_participant"]] = _vote(row)
    return [_checkpoint(row, votes) for row, votes in grouped.values()]


@stored("vote")
def _vote(row: Row) -> Vote:
    return Vote(
        row["vote_participant"],
        row["vote_attempt"],
        row["vote_prepared"],
        to_proof(row["vote_proof"]),
        json_object(row["vote_notes"]),
        to_failure(row["vote_problem"]),
    )


def to_failure(text: str | None) -> Failure | None:
    """A failure as `pipeline` and `vote` hold it."""
    return None if text is None else Failure.from_json(json_object(text))


@stored("pipeline_warning")
def to_warning(row: Row) -> PipelineWarning:
    """A row of `pipeline_warning`."""
    return PipelineWarning(row["code"], row["subject"], row["message"], row["remedy"], to_time(row["at"]))


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
        location=_uri(row["segment_location"]),
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
        run=_run_key(row["dag_id"], row["run_id"], row["map_index"]),
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
        staged_at=_time(row["staged_at"]),
        prepared_at=_time(row["prepared_at"]),
        decided_at=_time(row["decided_at"]),
        completed_at=_time(row["completed_at"]),
        spec=row["spec"],
        lag=json_object(row["lag"] or "{}"),
        application=row["application"],
        state_sizes=_state_sizes(row),
    )
