"""Errors that the author of the DAG corrects: the specification, the job, or its rows."""

from __future__ import annotations

from airflow_ft.protocol.errors.base import TerminalError
from airflow_ft.protocol.reasons import AbortReason


class ConfigurationError(TerminalError, ValueError):
    """A name, setting or combination that cannot work; raised when the DAG is parsed wherever possible."""

    code = "invalid_configuration"


class StateMeaningError(ConfigurationError):
    """The keys, functions or settings of the job differ from those that made its state."""

    code = "state_meaning_changed"


class JobError(TerminalError):
    """The user's PySpark code raised, or returned what was not asked for."""

    code = "job_failed"
    abort_reason = AbortReason.JOB_FAILED


class ExternalRowsError(TerminalError):
    """Rows that a program of the author has written cannot be staged: nothing of them is published."""

    code = "external_rows"
    abort_reason = AbortReason.JOB_FAILED


class DeadLettersError(TerminalError):
    """A checkpoint has more dead letters than its pipeline allows: nothing of it is published."""

    code = "too_many_dead_letters"
    abort_reason = AbortReason.TOO_MANY_DEAD_LETTERS


class DeclinedError(TerminalError):
    """The sink refuses these rows or their schema: the checkpoint is aborted and the pipeline rewound.

    Raised only when nothing of the checkpoint is visible in that sink.
    """

    code = "declined"
    abort_reason = AbortReason.DECLINED
