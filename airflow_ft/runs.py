"""Airflow's view of a run, asked from a task or trigger by way of the Task SDK (no access to its database)."""

from __future__ import annotations

from airflow_ft.core.model import RunKey

_CAN_GO_ON = ["queued", "running"]


def run_is_over(run: RunKey) -> bool:
    """Whether the run can no longer continue: it failed, succeeded, or was deleted.

    Counting the runs that can go on says so in one question, and a deleted one raises nothing.
    """
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    return RuntimeTaskInstance.get_dr_count(dag_id=run.dag_id, run_ids=[run.run_id], states=_CAN_GO_ON) == 0
