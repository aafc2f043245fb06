"""Airflow's view of a run, asked from a task or trigger by way of the Task SDK (no access to its database)."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow_ft.pipeline import settings
from airflow_ft.protocol.arguments import standard_time
from airflow_ft.protocol.errors import ConfigurationError, TransientError
from airflow_ft.protocol.judging import judge
from airflow_ft.protocol.model import RunKey
from airflow_ft.protocol.overview import Overview

if TYPE_CHECKING:
    from airflow.sdk import Context

log = logging.getLogger(__name__)

# These runs have a planned data interval or tick. For others the interval is made up, or missing.
_WITH_AN_INTERVAL = ("scheduled", "backfill")


def test_command(context: Context) -> str:
    """Return the command of a test run that must not use real data; "": it is none, or the settings allow it.

    `airflow tasks test`, `airflow dags test` and `DAG.test()` work on the real decision log and sinks: they would
    deliver and confirm what other runs have staged. And an interrupted test run never ends in Airflow's database, so
    it would keep the pipeline's turn.
    """
    dag_run = context.get("dag_run")
    if os.environ.get("AIRFLOW_TEST_MODE") == "True":  # set by `airflow tasks test`
        command = "airflow tasks test"
    elif getattr(dag_run, "triggering_user_name", None) == "dag_test":  # set by DAG.test()
        command = "airflow dags test"
    else:
        return ""
    return "" if settings.allow_test_runs() else command


def refuse_test_run(context: Context) -> None:
    """ConfigurationError in a test run (`test_command`), for what cannot be tried without being done."""
    if command := test_command(context):
        raise ConfigurationError(
            f"`{command}` would change the checkpoints of other runs in the real decision log and sinks.",
            code="airflow_test_refused",
            remedy=f"Trigger a DAG run instead. If decision log, write-ahead log and sinks are only for tests, set"
            f" [{settings.SECTION}] allow_test_runs = True.",
            command=command,
        )


def run_of(context: Context) -> RunKey:
    """The run of a task, and of a mapped one the index of its pipeline."""
    ti = context["ti"]
    return RunKey(ti.dag_id, ti.run_id, -1 if ti.map_index is None else ti.map_index)


def task_of(context: Context) -> str:
    """Return a task as the decision log names it: dag/run/task."""
    ti, index = context["ti"], run_of(context).map_index
    return f"{ti.dag_id}/{ti.run_id}/{ti.task_id}" + (f"[{index}]" if index >= 0 else "")


def first_try(context: Context, retries: int | None) -> int:
    """Return the first try of a task since its run began or the task was cleared. `retries`: those of its operator.

    Airflow raises `max_tries` of a task that is cleared (`airflow.models.taskinstance.clear_task_instances`).
    """
    found: int = context["ti"].max_tries - (retries or 0) + 1
    return found


def asked_by(context: Context) -> str:
    """Return the requester of a task: the person who triggered its run, where Airflow names one, and the task.

    Runs of a schedule, an asset or a backfill name no person.
    """
    person = getattr(context.get("dag_run"), "triggering_user_name", None)
    return f"{person} ({task_of(context)})" if person else task_of(context)


def run_is_over(run: RunKey) -> bool:
    """Return whether the run can no longer continue: it failed, succeeded, or was deleted.

    TransientError while Airflow's server does not answer.
    """
    return _count(run, ["queued", "running"]) == 0


def run_is_idle(run: RunKey) -> bool:
    """Return whether no task of the run works: it is over, or it was cleared and is QUEUED.

    With `max_active_runs`, Airflow may start a QUEUED run only after the run that asks has ended. So the asking run may
    take its turn. A process that is left of the QUEUED run is fenced like any other. TransientError while Airflow's
    server does not answer.
    """
    return _count(run, ["running"]) == 0


def _count(run: RunKey, states: list[str]) -> int:
    """Return 1 if the run is in one of these states, otherwise 0, also if it was deleted. It costs one request."""
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    with _unreachable(f"whether the run {run} has ended", run):
        return RuntimeTaskInstance.get_dr_count(dag_id=run.dag_id, run_ids=[run.run_id], states=states)


@contextmanager
def _unreachable(what: str, run: RunKey) -> Iterator[None]:
    """Raise TransientError if Airflow's server does not answer the request in the block, which asks `what`."""
    from airflow.sdk.exceptions import AirflowRuntimeError

    try:
        yield
    except (AirflowRuntimeError, OSError) as error:
        raise TransientError(
            f"Airflow does not say {what}: {error}.",
            code="airflow_unreachable",
            remedy="Check Airflow's API server.",
            run=str(run),
        ) from error


def is_paused(dag_id: str) -> bool:
    """Return whether the DAG is paused."""
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    return bool(RuntimeTaskInstance.get_dag(dag_id).is_paused)


def task_states(run: RunKey, task_ids: Collection[str]) -> dict[str, str]:
    """Return the states of these tasks, without those that the run does not have.

    TransientError: Airflow's server does not answer.
    """
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    index = run.map_index if run.map_index >= 0 else None
    with _unreachable(f"how tasks of the run {run} have ended", run):
        found = RuntimeTaskInstance.get_task_states(run.dag_id, index, list(task_ids), run_ids=[run.run_id])
    states = found.get(run.run_id, {})  # of a mapped task by its id and map index
    by_id = {each: states.get(each, states.get(f"{each}_{index}")) for each in task_ids}
    return {each: str(state) for each, state in by_id.items() if state is not None}


def were_skipped(run: RunKey, task_ids: Collection[str]) -> bool:
    """Return whether Airflow skipped all of these tasks in the run; False while Airflow's server does not answer."""
    return bool(task_ids) and _answer(lambda: [*task_states(run, task_ids).values()] == ["skipped"] * len(task_ids))


def stage_was_skipped(
    run: RunKey, stage: str, own: Collection[str], between: Collection[str], last: Mapping[str, bool]
) -> bool:
    """Return whether the author's tasks directly before the stage made Airflow skip it; False: not known.

    One of them is enough for Airflow, which does not wait for the others. But another one may still write rows, which
    nothing would deliver. So all of them must have skipped.

    Airflow also skips unfinished tasks at `dagrun_timeout`, or when a person marks the run as failed. That may look the
    same here, but such a run has failed.

    Args:
        run: the run.
        stage: the task id of its stage.
        own: task ids of the provider's tasks before the stage, all of which must have succeeded.
        between: task ids of the author's tasks between `recover` and the stage, none of which may have failed.
        last: task ids of the author's tasks directly before the stage; True for one that skips others, such as a
            branch. That may have succeeded if it is alone.
    """

    def ask() -> bool:
        states = task_states(run, [stage, *own, *between, *last])
        return (
            states.get(stage) == "skipped"
            and all(states.get(each) == "success" for each in own)
            and not {"failed", "upstream_failed"} & set(states.values())
            and all(
                states.get(each) == "skipped" or (skips and len(last) == 1 and states.get(each) == "success")
                for each, skips in last.items()
            )
        )

    return bool(last) and _answer(ask)


def interval_end(dag_run: Any) -> datetime | None:
    """Return the end of the data interval of a scheduled run or a backfill run; None for other runs.

    For a run without an interval (`CronPartitionTimetable`) return its tick.
    """
    run_type = getattr(dag_run.run_type, "value", dag_run.run_type)
    return standard_utc(dag_run.data_interval_end or dag_run.run_after) if run_type in _WITH_AN_INTERVAL else None


def standard_utc(at: datetime | None) -> datetime | None:
    """A time of Airflow (a pendulum DateTime, whose arithmetic differs) as the standard library's, in UTC."""
    found: datetime | None = standard_time(at)
    return None if found is None else found.astimezone(UTC)


def judged(found: Sequence[Overview], lease_seconds: float) -> list[Overview]:
    """Pipelines with what Airflow knows of their runs and DAGs (`protocol.judging`), as far as it answers.

    Only in the process of a task (`is_process_of`).
    """
    return judge(found, lease_seconds, _known_to_be_over, _known_to_be_paused)


def is_process_of(context: Context) -> bool:
    """Return whether this process executes the task of the context, so that Airflow answers its requests.

    Airflow's DAG processor, triggerer and executors call callbacks, too. They answer few types of requests, and any
    other request never returns (`airflow.sdk.execution_time.supervisor`).
    """
    ti = context.get("ti")
    return ti is not None and all(
        os.environ.get(f"AIRFLOW_CTX_{name}") == value  # Airflow sets these before it executes a task
        for name, value in (("DAG_ID", ti.dag_id), ("DAG_RUN_ID", ti.run_id), ("TASK_ID", ti.task_id))
    )


def _known_to_be_over(runs: Collection[RunKey]) -> set[RunKey]:
    return {run for run in runs if not run.is_plain and _answer(lambda: run_is_over(run))}  # noqa: B023 - asked at once


def _known_to_be_paused(dag_ids: Collection[str]) -> set[str]:
    return {dag_id for dag_id in dag_ids if _answer(lambda: is_paused(dag_id))}  # noqa: B023 - asked at once


def _answer(ask: Callable[[], bool]) -> bool:
    try:
        return ask()
    except Exception as error:  # no server answers, or this process cannot ask one: nothing is known
        log.debug("Airflow did not answer:", exc_info=error)
        return False
