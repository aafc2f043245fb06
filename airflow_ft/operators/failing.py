"""Our errors as Airflow understands them: whether to try again, and what its log shows."""

from __future__ import annotations

from typing import Any, NoReturn

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_ft.core.errors import AirflowFtError, TerminalError


def fail(log: Any, error: AirflowFtError) -> NoReturn:
    """Raises it as Airflow's, having told it in the task's log: what happened, and the remedy on a line of its own.

    A `TerminalError` fails the task at once, another one lets Airflow try again. What it was made of (tracebacks of
    drivers and of Spark) is logged at level DEBUG.
    """
    log.error("%s: %s", type(error).__name__, error.headline)
    if error.remedy:
        log.error("Remedy: %s", error.remedy)
    log.debug("how it came about:", exc_info=error)
    kind = AirflowFailException if isinstance(error, TerminalError) else AirflowException
    raise kind(str(error)) from None
