"""Explain the condition of a pipeline to people: what exactly is wrong, what helps, and which acts can work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from airflow_ft.protocol.decision_log import HistoryLog
from airflow_ft.protocol.errors import NewerReleaseError
from airflow_ft.protocol.failure import Failure
from airflow_ft.protocol.model import Checkpoint, CheckpointState, HaltReason, Pipeline, PipelineStatus
from airflow_ft.protocol.overview import Condition, Overview
from airflow_ft.protocol.planning import live_plans
from airflow_ft.protocol.reasons import AbortReason
from airflow_ft.protocol.transitions import MAY_BE_VISIBLE

S = CheckpointState
_LOOKED_AT = 20
"""Unsettled checkpoints that are looked at: the one in doubt or in quarantine is among the oldest."""
_PASSING = frozenset({"SinkUnavailableError", "StorageUnavailableError", "StateConflictError"})
"""Errors that may go away without a person."""


class Explanation(NamedTuple):
    """Why a pipeline has its condition. `code`: of the last error behind it; "": none is known."""

    text: str
    code: str


def explained(store: HistoryLog, overview: Overview) -> Explanation:
    """`Overview.told`; IN_DOUBT and QUARANTINED with the checkpoint, its sinks, and what happens next."""
    condition = overview.condition
    if condition not in (Condition.IN_DOUBT, Condition.QUARANTINED):
        failed = condition in (Condition.FAILED, Condition.NOT_RUNNING)
        return Explanation(overview.told, overview.failure.code if failed and overview.failure else "")
    try:
        found = store.unsettled(overview.name, limit=_LOOKED_AT)
    except NewerReleaseError:  # of one of its checkpoints
        return Explanation(overview.told, "")
    wanted = S.COMMITTING if condition is Condition.IN_DOUBT else S.QUARANTINED
    checkpoint = next((each for each in found if each.state is wanted), None)
    if checkpoint is None:  # settled meanwhile
        return Explanation(overview.told, "")
    text = _in_doubt(overview, checkpoint) if condition is Condition.IN_DOUBT else _quarantined(checkpoint)
    return Explanation(text, next((each.code for each in waiting_for(checkpoint).values() if each is not None), ""))


def is_refused(problem: Failure) -> bool:
    """Return whether the sink refused: the next try then fails, too, unless a person changes something."""
    return problem.reason == AbortReason.DECLINED.value or problem.kind not in _PASSING


def waiting_for(checkpoint: Checkpoint) -> Mapping[str, Failure | None]:
    """The participants without a proof, in the plan's order, with their last error (None: none is known)."""
    names = [each.name for each in checkpoint.plan.participants] if checkpoint.plan else []
    votes = {name: checkpoint.votes.get(name) for name in names}
    return {name: vote.problem if vote else None for name, vote in votes.items() if vote is None or vote.proof is None}


def _in_doubt(overview: Overview, checkpoint: Checkpoint) -> str:
    waiting = waiting_for(checkpoint)
    told = "; ".join(
        f"{name}: {problem.text.rstrip('.')}" if problem else f"{name}: no error known"
        for name, problem in waiting.items()
    )
    lacking = f"Checkpoint {checkpoint.number} is decided, but these sinks lack it: {told or '-'}."
    return f"{lacking} {_what_next(overview, waiting)}"


def _what_next(overview: Overview, waiting: Mapping[str, Failure | None]) -> str:
    known = [problem for problem in waiting.values() if problem is not None]
    if overview.retired:
        return "The pipeline is retired, so no run delivers it. Recover the pipeline."
    if overview.paused:
        return "Its DAG is paused or deleted, so no run delivers it. Unpause the DAG, or recover the pipeline."
    if any(is_refused(problem) for problem in known):
        return "The next run tries again, and fails until the cause is removed."
    if known:
        return "The next run delivers it when the sink answers."
    return "The next run, or a retry of the failed one, delivers it."


def _quarantined(checkpoint: Checkpoint) -> str:
    message = checkpoint.message.rstrip(".")
    decided = checkpoint.decided_at is not None
    ways = ["deliver it"]
    if not decided:
        ways.append("give it up")
    elif refuses_rows(checkpoint):
        ways.append("set the refused rows aside")
    state = "decided" if decided else "not decided"
    return (
        f"Checkpoint {checkpoint.number} ({state}) is in quarantine: {message}. Nothing later is delivered until a"
        f" person settles it: {' or '.join(ways)}."
    )


def refuses_rows(checkpoint: Checkpoint) -> bool:
    """Return whether a participant is known to refuse rows of it."""
    return any(
        each is not None and each.reason == AbortReason.DECLINED.value for each in waiting_for(checkpoint).values()
    )


# --- which acts can work ---------------------------------------------------------------------------------------------


def pipeline_acts(overview: Overview) -> tuple[str, ...]:
    """The acts on the whole pipeline (`acts.names.ACTIONS`) that are not refused in its state."""
    condition, is_open = overview.condition, overview.turn is not None
    reading = ("verify", "doctor")
    if condition is Condition.RENAMED:
        return reading
    if condition is Condition.HALTED:
        return ("resume", *reading)
    acts: list[str] = []
    if not is_open and condition in (Condition.FAILED, Condition.NOT_RUNNING, Condition.LATE):
        acts.append("retire")
    # An active process keeps the epoch, so these acts would be refused.
    is_held = overview.is_at_work and overview.leases > 0
    if condition is not Condition.QUARANTINED and not is_held:
        acts.append("recover")
        if not overview.committing:
            acts.append("rewind")
        if not overview.undelivered:
            acts.append("reset_state")
    if overview.streaming and is_open:
        acts += ["stop", "stop_now", "drain", "stop_with_savepoint", "drain_with_savepoint"]
    return (*acts, *reading)


def checkpoint_acts(row: Pipeline, checkpoint: Checkpoint, opened: Sequence[Checkpoint]) -> tuple[str, ...]:
    """The acts on one open checkpoint (`acts.names.SETTLING`) that are not refused in its state (`core.resolution`).

    `opened`: the oldest open checkpoints of the pipeline.
    """
    if row.newer or row.status is PipelineStatus.RENAMED:
        return ()
    state, decided = checkpoint.state, checkpoint.decided_at is not None
    earlier = [each for each in opened if each.number < checkpoint.number]
    is_first = not any(each.state in MAY_BE_VISIBLE for each in earlier)
    halted = row.halt_reason if row.status is PipelineStatus.HALTED else None
    acts: list[str] = []
    if state in MAY_BE_VISIBLE and is_first and halted in (None, HaltReason.HEURISTIC_COMMIT):
        acts.append("commit")
    if halted is None and not decided and state in (S.STAGED, S.PREPARED, S.QUARANTINED):
        acts.append("abort")
    if state in (S.PREPARED, S.COMMITTING) and is_first and not live_plans(earlier):
        acts.append("quarantine")
    if decided and state in MAY_BE_VISIBLE and is_first:
        if halted in (None, HaltReason.TOKEN_LOST):
            acts.append("redeliver")
        if halted is None:
            acts.append("dead_letter")
    return tuple(acts)
