"""Notes errors and warnings in the decision log for people. Nothing here raises: a note must not fail the work."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta

from airflow_ft.protocol.delivery_log import DeliveryLog, RunLog
from airflow_ft.protocol.errors import (
    AirflowFtError,
    DeclinedError,
    FencedError,
    HaltError,
    LeaseHeldError,
    NotDeliveredError,
    StageError,
    StoreUnavailableError,
    TurnHeldError,
)
from airflow_ft.protocol.failure import Failure
from airflow_ft.protocol.model import Checkpoint, ParticipantPlan, RunKey
from airflow_ft.protocol.secrets import without_secrets
from airflow_ft.protocol.warning import PipelineWarning

log = logging.getLogger(__name__)

_PASSED_OVER = (FencedError, LeaseHeldError, TurnHeldError, StoreUnavailableError)
"""Errors without a note: another run is active and notes its own, or the note could not be stored either."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MANY_KILLS = 3
"""Attempts in a row without an answer that are worth a warning."""


def failure_of(error: BaseException, pipeline: str = "", *, task_id: str = "", try_number: int = 0) -> Failure:
    """The error as plain data. The message of another package's error is left out: it may hold a secret."""
    kind = type(error).__name__
    if isinstance(error, AirflowFtError):
        error.filled(pipeline)
        message, remedy = str(without_secrets(error.headline)), str(without_secrets(error.remedy))
        return Failure(
            kind,
            error.code,
            message,
            remedy,
            task_id=task_id,
            try_number=try_number,
            reason=_reason(error),
        )
    message = f"the run ended with a {kind}."
    remedy = f"Read the log of the {'task' if task_id else 'task or program'}."
    return Failure(kind, "", message, remedy, task_id=task_id, try_number=try_number)


def note_failure(
    store: RunLog,
    pipeline: str,
    run: RunKey,
    error: BaseException,
    *,
    task_id: str = "",
    try_number: int = 0,
    follows: bool = False,
    participants: Sequence[ParticipantPlan] = (),
) -> None:
    """Store why the run failed (`RunLog.record_failure`), or mark the error as unstored."""
    if isinstance(error, _PASSED_OVER):
        if isinstance(error, StoreUnavailableError):
            mark_unstored(error)
        return
    try:
        failure = failure_of(error, pipeline, task_id=task_id, try_number=try_number)
        follows = follows or isinstance(error, NotDeliveredError)
        store.record_failure(pipeline, run, failure, follows=follows, participants=participants)
    except Exception as problem:
        mark_unstored(error)
        log.warning("the page does not show this failure, since it could not be stored: %s", type(problem).__name__)
        log.debug("how that came about:", exc_info=problem)


def mark_unstored(error: BaseException) -> None:
    """Mark an error as `AirflowFtError.unstored`, also one of another package."""
    with suppress(Exception):  # an exception may be a frozen dataclass
        error.unstored = True  # type: ignore[attr-defined]


def note_problem(
    store: DeliveryLog, pipeline: str, epoch: int, number: int, participant: str, error: Exception
) -> None:
    """Store why the newest attempt at a participant failed (`DeliveryLog.record_problem`)."""
    if isinstance(error, _PASSED_OVER):
        return
    try:
        store.record_problem(pipeline, epoch, number, participant, failure_of(error, pipeline))
    except Exception as problem:
        log.debug("the error of %s was not stored:", participant, exc_info=problem)


def warn_of_kills(store: DeliveryLog, checkpoint: Checkpoint, participant: str) -> None:
    """Log a warning if several attempts in a row to commit in this sink have ended without an error or a proof.

    So does a process that the kernel kills. It reads events only after an attempt that had no answer.
    """
    vote = checkpoint.votes.get(participant)
    if vote is None or vote.attempt <= vote.prepared:
        return
    silent = 0
    noted = _EPOCH + timedelta(microseconds=vote.problem.at if vote.problem is not None else 0)
    for event in store.events(checkpoint.pipeline, checkpoint.number, kinds=("ATTEMPT", "VOTED")):
        if event.detail["participant"] != participant:
            continue
        if event.kind == "VOTED" or event.at <= noted:
            break
        silent += 1
    if silent >= _MANY_KILLS:
        log.warning(
            "checkpoint %d: %d attempts to commit it in %s ended without an answer: their processes were killed, or"
            " could not reach the decision log. If the kernel killed them for memory (`dmesg` shows that), give the"
            " worker more memory, or run fewer tasks beside this one.",
            checkpoint.number,
            silent,
            participant,
        )


def warn(store: RunLog, pipeline: str, warning: PipelineWarning) -> None:
    """Log the warning and store it. Raises nothing: a warning must not fail the work that it is about."""
    log.warning("%s", warning)
    try:
        store.record_warning(pipeline, warning)
    except (AirflowFtError, KeyError) as error:
        log.warning("cannot store this warning, so the page does not show it: %s", error)


def _reason(error: AirflowFtError) -> str:
    if isinstance(error, HaltError):
        return error.reason.value
    cause = error.__cause__
    if isinstance(cause, DeclinedError):  # what is decided and refused is tried again
        return cause.abort_reason.value
    if isinstance(error, StageError) or error.abort_reason is not AirflowFtError.abort_reason:
        return error.abort_reason.value
    return ""
