"""Checks of `airflow ft doctor` for a file."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.doctor import Check, Examination
from airflow_ft.protocol.model import ParticipantPlan
from airflow_ft.protocol.write_ahead_log import SegmentReader
from airflow_ft.sinks.fitting import of_rows
from airflow_ft.sinks.sqlite.file import SqliteFile
from airflow_ft.sinks.sqlite.fitting import schema_problems
from airflow_ft.sinks.sqlite.ready import lacks


def examine(
    pipeline: str,
    plan: ParticipantPlan,
    connection: ConnectionInfo,
    rows: Sequence[SegmentReader],
    installation: str | None = None,
) -> list[Check]:
    """The checks of one file. `rows` are published segments, whose columns are judged as `prepare` would."""
    exam = Examination(f"connection {plan.name}")
    file = exam.attempt("file", lambda: SqliteFile.of(connection))
    described = exam.attempt("file", file.describe) if file is not None else None
    if described is None:
        return exam.checks
    exam.ok("file", described)
    for problem in of_rows(exam, plan, connection, rows, schema_problems):
        exam.problem("columns", problem.what, problem.remedy)
    if not rows:
        for problem in exam.attempt("tables", partial(lacks, pipeline, plan, connection)) or ():
            exam.problem("tables", problem.what, problem.remedy)
    return exam.checks
