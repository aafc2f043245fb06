"""Airflow's view of a run, asked from a task or trigger by way of the Task SDK (no access to its database)."""

from __future__ import annotations

from datetime import UTC, datetime

from airflow_ft.core.model import RunKey

_CAN_GO_ON = ["queued", "running"]


def run_is_over(run: RunKey) -> bool:
    """Whether the run can no longer continue: it failed, succeeded, or was deleted.

    Counting the runs that can go on says so in one question, and a deleted one raises nothing.
    """
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    return RuntimeTaskInstance.get_dr_count(dag_id=run.dag_id, run_ids=[run.run_id], states=_CAN_GO_ON) == 0


def plain_utc(at: datetime | None) -> datetime | None:
    """A time of Airflow (a pendulum DateTime, whose arithmetic differs) as the standard library's, in UTC."""
    return None if at is None else datetime.fromisoformat(at.isoformat()).astimezone(UTC)
