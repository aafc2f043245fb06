"""Checks of `airflow ft doctor` for a participant: the requirements of its system, then the columns of published rows.

A system with more to say has a part `doctor` of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

from airflow_ft.protocol.doctor import Check, Examination
from airflow_ft.sinks.base.requirements import each_of, text_of
from airflow_ft.sinks.registry import system

if TYPE_CHECKING:
    from airflow_ft.protocol.connections import ConnectionInfo
    from airflow_ft.protocol.model import ParticipantPlan
    from airflow_ft.protocol.write_ahead_log import SegmentReader


def is_examined(kind: str) -> bool:
    """Return whether a system has anything to check."""
    return any(system(kind).part(name) is not None for name in ("doctor", "requirements"))


def examine(
    pipeline: str,
    plan: ParticipantPlan,
    connection: ConnectionInfo,
    rows: Sequence[SegmentReader],
    installation: str | None = None,
) -> list[Check]:
    """Return the checks of one participant.

    `rows` are published segments, whose columns are judged as `prepare` would.
    """
    of_kind = system(plan.kind)
    if (part := of_kind.part("doctor")) is not None:
        checks: list[Check] = part.examine(pipeline, plan, connection, rows, installation)
        return checks
    part, exam = of_kind.part("requirements"), Examination(of_kind.called(plan))
    if hasattr(part, "required"):

        def all_met() -> bool:
            with closing(each_of(part.required(pipeline, plan, connection))) as required:
                reported = [requirement.report(exam) for requirement in required]  # all of them
            return all(reported)

        if not exam.attempt("requirements", all_met):
            return exam.checks
    for reader in rows if hasattr(part, "schema_problems") else ():
        schemas = {name: reader.schema(name) for name in plan.sinks if name in reader.sinks()}
        judge = partial(part.schema_problems, plan, connection, schemas)
        for problem in exam.attempt("columns", judge) or ():
            exam.problem("columns", text_of(problem), problem.remedy, problem.code, problem.sink)
    return exam.checks
