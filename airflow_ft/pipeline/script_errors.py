"""Errors of `run`, `deliver` and `dry_run`, whose author has a script: no DAG file, and perhaps no job."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from airflow_ft.protocol.errors import PROPOSES, AirflowFtError
from airflow_ft.protocol.model import RunKey

if TYPE_CHECKING:
    from airflow_ft.protocol.decision_log import QueryLog

_NEEDS_JOB = re.compile(r"`(?:airflow ft dry-run \S+ --dag FILE|airflow ft setup \S+ --dag FILE --print --tables)`")
_NAMES_DAG = re.compile(r"(airflow ft (?:doctor|setup) \S+) --dag FILE")
_PROPOSES = re.compile(f"[.:] {PROPOSES.pattern}")
_OF_A_JOB = (
    ("the job's result", "the rows"),
    ("in the job", "in your program"),
    ("Have the job return", "Give"),
    ("Return the column", "Give the column"),
    ("the next run computes them again", "then deliver that position again"),
)
_FIX = re.compile(r"(?<=Fix: ).*")
"""Remedies in the text of several problems (`together`)."""


def is_script(store: QueryLog, pipeline: str) -> bool:
    """Return whether a script made the newest run in the decision log. KeyError: the pipeline never ran."""
    if (failure := store.overview(pipeline).failure) is not None:
        return RunKey(failure.dag_id, failure.run_id).is_plain
    return any(each.run is not None and each.run.is_plain for each in store.checkpoints(pipeline, 1))


def for_scripts(error: AirflowFtError, pipeline: str, *, gives_rows: bool) -> None:
    """Let the error name what a script has: no DAG file and, with `gives_rows`, no job.

    Only remedies speak of the job. The rest of an error quotes paths and values, so its words stay.
    """
    error.filled(pipeline)
    if gives_rows:
        error.what = _FIX.sub(lambda fix: _of_program(fix[0]), error.what)
        error.remedy = _of_program(error.remedy)
    error.what, error.remedy = command_of_script(error.what), command_of_script(error.remedy)
    error.filled(pipeline)


def _of_program(text: str) -> str:
    """Return a remedy for rows that a program computes. A dry run has no job to compute them."""
    text = _PROPOSES.sub(".", text)
    for old, new in _OF_A_JOB:
        text = text.replace(old, new)
    return text


def command_of_script(text: str) -> str:
    """Return the text with commands that need no DAG file. `dry_run` takes the arguments of `run`."""
    text = _NEEDS_JOB.sub("`airflow_ft.dry_run(...)`", text)
    return _NAMES_DAG.sub(r"\1", text)
