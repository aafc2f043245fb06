"""Our errors as Airflow understands them: whether to try again, and what its log and the page show."""

from __future__ import annotations

from contextlib import closing, nullcontext
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_ft.pipeline.decision_log import open_configured_store
from airflow_ft.pipeline.runs import run_of
from airflow_ft.protocol.errors import AirflowFtError, StoreUnavailableError, TerminalError
from airflow_ft.protocol.noting import mark_unstored, note_failure

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_ft.store.decision_log import DecisionLog


def fail(log: Any, error: AirflowFtError, context: Context) -> NoReturn:
    """Log the error and raise it as Airflow's: the remedy has its own line in the task's log.

    A `TerminalError` fails the task at once. Airflow retries another one, and the log says whether a try is left. Level
    DEBUG logs the tracebacks of drivers and of Spark.
    """
    for line in error.log_lines:
        log.error("%s", line)
    if not isinstance(error, TerminalError) and (outlook := _outlook(context)):
        log.info("%s", outlook)
    log.debug("traceback:", exc_info=error)
    kind = AirflowFailException if isinstance(error, TerminalError) else AirflowException
    raise kind(str(error)) from None


def _outlook(context: Context) -> str:
    """Return whether Airflow retries the task; "": not known."""
    ti = context.get("ti")
    number, retries = getattr(ti, "try_number", None), getattr(ti, "max_tries", None)
    if number is None or retries is None:
        return ""
    if number <= retries:
        return f"Airflow retries the task: try {number + 1} of {retries + 1} follows."
    return f"Airflow does not retry the task: this was try {number} of {retries + 1}. Clear it to repeat it."


def note_failed_task(
    log: Any,
    context: Context,
    error: BaseException,
    pipeline: str,
    store: str | None,
    opened: DecisionLog | None = None,
) -> None:
    """Store in the decision log why the task failed, so that the page shows it. Raises nothing.

    If that is impossible, mark the error as unstored, for the notifier. The first run of a pipeline may fail before
    `recover` registers the pipeline, so this registers it too.
    `store`: which decision log; `opened`: the same, if it is open.
    """
    if isinstance(error, StoreUnavailableError):
        mark_unstored(error)
        return
    try:
        with nullcontext(opened) if opened is not None else closing(open_configured_store(store)) as found:
            found.register(pipeline)
            task_id, try_number = context["ti"].task_id, context["ti"].try_number
            note_failure(found, pipeline, run_of(context), error, task_id=task_id, try_number=try_number)
    except Exception as problem:  # the task's own error counts
        mark_unstored(error)
        log.debug("could not store the failure:", exc_info=problem)
