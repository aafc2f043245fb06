"""Checks of `airflow ft doctor` for a participant whose places (tables, folders) can be described one by one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.doctor import Check, Examination, Verdict
from airflow_ft.protocol.model import ParticipantPlan
from airflow_ft.protocol.write_ahead_log import SegmentReader
from airflow_ft.sinks.fitting import of_rows

if TYPE_CHECKING:
    from airflow_ft.sinks.fitting import Fitting


def examine_places(
    subject: str,
    place: str,
    plan: ParticipantPlan,
    connection: ConnectionInfo,
    rows: Sequence[SegmentReader],
    describe: Callable[[Mapping[str, Any]], str],
    schema_problems: Fitting,
) -> list[Check]:
    """The checks of each sink's `place` ("table"), as a system's `examine` returns them.

    `describe` says in words what is there, by the settings of a sink; an error of ours is a problem. Where there is
    none, the columns of published segments (`rows`) are judged as `prepare` would.
    """
    exam = Examination(subject)
    for name, settings in plan.sinks.items():
        described = exam.attempt(place, partial(describe, settings))
        if described is not None:
            exam.ok(place, f"{name}: {described}")
    all_there = all(check.verdict is Verdict.OK for check in exam.checks)
    for problem in of_rows(exam, plan, connection, rows if all_there else (), schema_problems):
        column = f"column {problem.column}: " if problem.column else ""
        exam.problem("columns", f"{column}{problem.what}", problem.remedy)
    return exam.checks
