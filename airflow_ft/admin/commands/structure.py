"""Checks of a DAG as a whole, which no task of it can make when the DAG is parsed: pools, and who writes rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_ft.operators.external import ExternalStageOperator
from airflow_ft.protocol.doctor import Check, Examination

if TYPE_CHECKING:
    from airflow_ft.operators.base import CheckpointOperator


def examine_structure(task: CheckpointOperator) -> list[Check]:
    """The checks of the DAG that has this task."""
    exam = Examination("DAG")
    _examine_pools(exam, task)
    if isinstance(task, ExternalStageOperator) and task.reads_handed_out:
        exam.attempt("writer", task.require_writer)
    return exam.checks


def _examine_pools(exam: Examination, task: CheckpointOperator) -> None:
    from airflow.models.pool import Pool
    from sqlalchemy.exc import SQLAlchemyError

    using: dict[str, list[str]] = {}
    for each in task.dag.tasks:
        if each.pool != Pool.DEFAULT_POOL_NAME:
            using.setdefault(each.pool, []).append(each.task_id)
    try:
        missing = {pool: tasks for pool, tasks in using.items() if Pool.get_pool(pool) is None}
    except SQLAlchemyError as error:
        exam.warn(
            "pool",
            f"{', '.join(using)} was not looked for: Airflow's database cannot be read ({type(error).__name__})",
            "Run this check where `airflow pools list` works.",
        )
        return
    for pool, tasks in missing.items():
        some = ", ".join(tasks[:3]) + (f" and {len(tasks) - 3} more" if len(tasks) > 3 else "")
        exam.problem(
            "pool",
            f"the pool {pool!r} does not exist, so Airflow never starts these tasks: {some}",
            f"Create it with `airflow pools set {pool} SLOTS DESCRIPTION`, or correct pool= in the DAG.",
            "pool_missing",
        )
