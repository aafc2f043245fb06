"""Stop a stream: with a savepoint, a drain, or without either."""

from __future__ import annotations

import time
from collections.abc import Callable
from shlex import quote
from typing import TYPE_CHECKING, Any

from airflow_ft.protocol.errors import ConfigurationError, StateConflictError, TerminalError
from airflow_ft.protocol.model import RunKey
from airflow_ft.protocol.pipelines import Request, RequestKind
from airflow_ft.spark.savepoints.taking import take_once

if TYPE_CHECKING:
    from airflow_ft.store.decision_log import DecisionLog
    from airflow_ft.store.requests import RequestOperations

_LOOK_SECONDS = 0.5
_FIRST_TRY = "first_try"
AT_ONCE, DRAIN, SAVEPOINT = "at_once", "drain", "savepoint"
"""Arguments of a request to stop."""


def stop(
    store: DecisionLog,
    pipeline: str,
    by: str,
    *,
    at_once: bool = False,
    drain: bool = False,
    savepoint_dir: str = "",
    wait: float = 0.0,
    first_try: int = 0,
    is_retry: bool = False,
    is_over: Callable[[RunKey], bool] = lambda _: False,
) -> str:
    """Ask a stream to stop after its current checkpoint, and wait up to `wait` seconds; returns the outcome.

    `at_once` aborts the current checkpoint. `drain` makes one more, which emits open windows. With a `savepoint_dir`
    it takes a savepoint of the final state there, also when no process runs. `first_try`: the task's first try since
    its run began or the task was cleared. All tries from there on share one request: a second one would stop the next
    run. `is_over`: whether a run can no longer continue.

    Raises:
        ConfigurationError: the arguments conflict.
        StateConflictError: it has not stopped in time (the request stays), no process can drain it, or it is no
            stream.
        TerminalError: it has stopped, but without the drain or the savepoint.
    """
    if at_once and drain:
        raise ConfigurationError(
            "an immediate stop gives up the current checkpoint, but a drain makes one more.",
            code="arguments_conflict",
            remedy="Remove the immediate stop or the drain.",
            argument="drain",
        )
    before = _asked_before(store, pipeline, by, first_try) if is_retry else None
    if before is not None and before.outcome:
        return _fulfilled(before)
    # Between two restarts no process has a lease, but the run still has the turn. So has one that failed for good.
    is_idle = not store.leases(pipeline) and ((turn := store.pipeline(pipeline).turn) is None or is_over(turn))
    if is_idle and not (drain and before is not None):
        if drain:
            raise StateConflictError(
                "the stream does not run, so nothing can drain it.",
                code="action_refused",
                remedy="Trigger a run of the stream. Then drain it.",
                pipeline=pipeline,
            )
        outcome = f"no process works on {pipeline}"
        if savepoint_dir:
            asked_before = None if before is None else before.id
            try:
                uri, taken = take_once(store, pipeline, savepoint_dir, by, asked_before)
            except ConfigurationError as error:  # as below: the request must not stay
                if before is not None:
                    store.answer(pipeline, before.id, error.headline, missing=[SAVEPOINT])
                raise
            outcome = f"{outcome}; savepoint of checkpoint {taken.number}: {uri}"
        if before is not None:  # else the next try of the stream would obey it
            store.answer(pipeline, before.id, outcome)
        return outcome
    if before is None:
        _refuse_scheduled(store, pipeline)
        how: dict[str, Any] = {AT_ONCE: at_once} | ({DRAIN: True} if drain else {})
        if savepoint_dir:
            how |= {SAVEPOINT: savepoint_dir}
        if first_try:
            how |= {_FIRST_TRY: first_try}
        asked = store.ask(pipeline, RequestKind.STOP, how, by)
    else:
        asked = before.id
    deadline = time.monotonic() + wait
    while not (answer := store.request(pipeline, asked)).outcome:
        if time.monotonic() > deadline:
            if not wait:
                return f"{pipeline} was asked to stop"
            raise StateConflictError(
                f"the stream has not stopped within {wait:g} s. The request to stop remains.",
                code="stop_timeout",
                remedy="Look at the log of its task, and check that it is a stream and that it runs.",
                pipeline=pipeline,
                seconds=wait,
            )
        time.sleep(min(_LOOK_SECONDS, max(deadline - time.monotonic(), 0.001)))
    return _fulfilled(answer)


def _fulfilled(answer: Request) -> str:
    """Return the outcome; TerminalError if the stream did not do all that was requested."""
    if not answer.missing:
        return answer.outcome
    command = " ".join([f"airflow ft stop {answer.pipeline}", *(f"--{part}" for part in answer.missing)])
    if SAVEPOINT in answer.missing:
        command += f" --dir {quote(answer.arguments[SAVEPOINT])}"
    remedy = f"Remove the cause, and run `{command}` again. This also works when the stream has ended."
    if DRAIN in answer.missing:
        remedy = f"Run `{command}` while a run of the stream works. If none works, trigger one first."
    raise TerminalError(
        f"the stream stopped without the {' and the '.join(answer.missing)}: {answer.outcome}",
        code="stop_incomplete",
        remedy=remedy,
        pipeline=answer.pipeline,
        missing=list(answer.missing),
    )


def _asked_before(store: RequestOperations, pipeline: str, by: str, first_try: int) -> Request | None:
    """Return the stop request of an earlier try, or None. A cleared task has another `first_try`, and asks again."""
    asked = (each for each in store.requests_by(pipeline, by) if each.kind is RequestKind.STOP)
    return next((each for each in asked if each.arguments.get(_FIRST_TRY) == first_try), None)


def _refuse_scheduled(store: DecisionLog, pipeline: str) -> None:
    """StateConflictError if the run that has the turn is known to be no stream: nothing would read the request."""
    turn = store.pipeline(pipeline).turn
    run = store.run(pipeline, turn) if turn is not None else None
    if run is None or not run.spec or store.spec(run.spec).get("streaming") is not False:
        return
    raise StateConflictError(
        f"run {turn} is one of a scheduled pipeline, which ends by itself. Only a stream can be stopped.",
        code="action_refused",
        remedy="Let the run end. Or mark its tasks as failed in Airflow: the next run delivers what it has published.",
        pipeline=pipeline,
        run=str(turn),
    )
