"""Explain the condition of a pipeline to people: what exactly is wrong, what helps, and which actions can work."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from airflow_ft.protocol.decision_log import QueryLog
from airflow_ft.protocol.errors import AbortedHeuristicCommitError, NewerReleaseError, StoreCorruptError
from airflow_ft.protocol.failure import Failure, Halt
from airflow_ft.protocol.model import Checkpoint, CheckpointState
from airflow_ft.protocol.overview import Condition, Overview
from airflow_ft.protocol.pipelines import HaltReason, Pipeline, PipelineStatus
from airflow_ft.protocol.planning import live_plans
from airflow_ft.protocol.reasons import AbortReason
from airflow_ft.protocol.transitions import MAY_BE_VISIBLE

S = CheckpointState
_LOOKED_AT = 20
"""Unsettled checkpoints that are looked at: the one in doubt or in quarantine is among the oldest."""
_PASSING = frozenset({"SinkUnavailableError", "StorageUnavailableError", "StateConflictError"})
"""Errors that may go away without a person."""
_STAYING = frozenset({"disk_full", "limit_reached", "server_read_only"})
"""Codes of such errors of a server that answers: a person has to change something."""


class Explanation(NamedTuple):
    """Why a pipeline has its condition. `code`: of the error behind it; "": none is known."""

    text: str
    code: str


def explained(
    store: QueryLog, overview: Overview, shown: Callable[[Checkpoint], Checkpoint] = lambda checkpoint: checkpoint
) -> Explanation:
    """`Overview.description`; IN_DOUBT and QUARANTINED with the checkpoint, its sinks, and what happens next.

    `shown` returns the part of the checkpoint that the reader may see.
    """
    condition = overview.condition
    if condition not in (Condition.IN_DOUBT, Condition.QUARANTINED):
        error: Failure | Halt | None = None
        if condition is Condition.HALTED:
            error = overview.halt
        elif condition in (Condition.FAILED, Condition.NOT_RUNNING):
            error = overview.failure
        return Explanation(overview.description, error.code if error is not None else "")
    try:
        found = store.unsettled(overview.name, limit=_LOOKED_AT)
    except (NewerReleaseError, StoreCorruptError):  # of one of its checkpoints
        return Explanation(overview.description, "")
    wanted = S.COMMITTING if condition is Condition.IN_DOUBT else S.QUARANTINED
    checkpoint = next((each for each in found if each.state is wanted), None)
    if checkpoint is None:  # settled meanwhile
        return Explanation(overview.description, "")
    checkpoint = shown(checkpoint)
    text = _in_doubt(overview, checkpoint) if condition is Condition.IN_DOUBT else _quarantined(checkpoint)
    return Explanation(text, next((each.code for each in waiting_for(checkpoint).values() if each is not None), ""))


def is_refused(problem: Failure) -> bool:
    """Return whether the sink answered and refused: the next try fails, too, unless a person changes something."""
    is_passing = problem.kind in _PASSING and problem.code not in _STAYING
    return problem.reason == AbortReason.DECLINED.value or not is_passing


def waiting_for(checkpoint: Checkpoint) -> Mapping[str, Failure | None]:
    """The participants without a proof, in the plan's order, with their last error (None: none is known)."""
    names = [each.name for each in checkpoint.participants if checkpoint.proof_of(each.name) is None]
    return {name: checkpoint.problem_of(name) for name in names}


def _in_doubt(overview: Overview, checkpoint: Checkpoint) -> str:
    waiting = waiting_for(checkpoint)
    lines = [
        f"Checkpoint {checkpoint.number} is decided, but not yet in all sinks. {_what_next(overview, waiting)}",
        *(f"{name}: {problem.text if problem else 'no error known.'}" for name, problem in waiting.items()),
    ]
    return "\n".join(lines)


def _what_next(overview: Overview, waiting: Mapping[str, Failure | None]) -> str:
    known = [problem for problem in waiting.values() if problem is not None]
    refused = any(is_refused(problem) for problem in known)
    if overview.retired or overview.paused:
        why = "The pipeline is retired" if overview.retired else "Its DAG is paused or deleted"
        act = "recover the pipeline" if overview.retired else "unpause the DAG, or recover the pipeline"
        first = "Remove the cause. Then " if refused else "When the sink answers, " if known else ""
        fix = f"{first}{act}."
        return f"{why}, so no run delivers it. {fix[0].upper()}{fix[1:]}"
    if refused:
        return "The next run tries again, and fails until the cause is removed."
    if known:
        return "The next run delivers it when the sink answers."
    return "The next run, or a retry of the failed one, delivers it."


def _quarantined(checkpoint: Checkpoint) -> str:
    message = checkpoint.message.rstrip(".")
    decided = checkpoint.decided_at is not None
    ways = ["deliver it"]
    if not decided:
        ways.append("abort it")
    elif refuses_rows(checkpoint):
        ways.append("set the refused rows aside")
    state = "decided" if decided else "not decided"
    return (
        f"Checkpoint {checkpoint.number} ({state}) is in quarantine: {message}. Nothing later is delivered until you"
        f" {' or '.join(ways)}."
    )


def refuses_rows(checkpoint: Checkpoint) -> bool:
    """Return whether a participant is known to refuse rows of it."""
    return any(
        each is not None and each.reason == AbortReason.DECLINED.value for each in waiting_for(checkpoint).values()
    )


# --- which actions can work ------------------------------------------------------------------------------------------


def pipeline_actions(overview: Overview) -> tuple[str, ...]:
    """Return the actions on the whole pipeline (`actions.names.ACTIONS`) that are not refused in its state."""
    condition, is_open = overview.condition, overview.turn is not None
    reading = ("verify", "doctor")
    if condition is Condition.RENAMED:
        return reading
    if condition is Condition.HALTED:
        return ("resume", *reading)
    actions: list[str] = []
    if not is_open and condition in (Condition.FAILED, Condition.NOT_RUNNING, Condition.LATE):
        actions.append("retire")
    if condition is not Condition.QUARANTINED and not overview.is_held:
        actions.append("recover")
        if not overview.committing:
            actions.append("rewind")
        if not overview.undelivered:
            actions.append("reset_state")
    if overview.streaming and is_open:
        actions += ["stop", "stop_now", "drain", "stop_with_savepoint", "drain_with_savepoint"]
    return (*actions, *reading)


def checkpoint_actions(row: Pipeline, checkpoint: Checkpoint, opened: Sequence[Checkpoint]) -> tuple[str, ...]:
    """Return the actions on one open checkpoint (`actions.names.SETTLING`) that are not refused in its state.

    `airflow_ft.protocol.resolution` refuses the others. `opened`: the oldest open checkpoints of the pipeline.
    """
    if row.newer or row.status is PipelineStatus.RENAMED:
        return ()
    state, decided = checkpoint.state, checkpoint.decided_at is not None
    earlier = [each for each in opened if each.number < checkpoint.number]
    is_first = not any(each.state in MAY_BE_VISIBLE for each in earlier)
    halted = row.halt_reason if row.status is PipelineStatus.HALTED else None
    is_aborted = row.halt is not None and row.halt.code == AbortedHeuristicCommitError.code
    actions: list[str] = []
    if state in MAY_BE_VISIBLE and is_first and halted in (None, HaltReason.HEURISTIC_COMMIT) and not is_aborted:
        actions.append("commit")
    if halted is None and not decided and state in (S.STAGED, S.PREPARED, S.QUARANTINED):
        actions.append("abort")
    if state in (S.PREPARED, S.COMMITTING) and is_first and not live_plans(earlier):
        actions.append("quarantine")
    if decided and state in MAY_BE_VISIBLE and is_first:
        if halted in (None, HaltReason.TOKEN_LOST):
            actions.append("redeliver")
        if halted is None:
            actions.append("dead_letter")
    return tuple(actions)
