"""Airflow's view of runs, read from its database: by the API server and the command line. A task asks `runs`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Sequence

from airflow.models.dag import DagModel
from airflow.models.dagrun import DagRun
from airflow.models.taskinstance import TaskInstance
from airflow.utils.session import create_session
from airflow.utils.state import DagRunState, TaskInstanceState
from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError

from airflow_ft.protocol.judging import judge
from airflow_ft.protocol.model import RunKey
from airflow_ft.protocol.overview import Overview

_AT_WORK = [TaskInstanceState.QUEUED, TaskInstanceState.RUNNING, TaskInstanceState.RESTARTING]


def going(dag_ids: Collection[str]) -> Container[tuple[str, str]]:
    """The runs of these DAGs that can continue, by the ids of DAG and run."""
    wanted = select(DagRun.dag_id, DagRun.run_id).where(
        DagRun.dag_id.in_(dag_ids), DagRun.state.in_([DagRunState.QUEUED, DagRunState.RUNNING])
    )
    with create_session() as session:
        return frozenset((dag_id, run_id) for dag_id, run_id in session.execute(wanted))


def paused(dag_ids: Collection[str]) -> Container[str]:
    """Return those of these DAGs that begin no run: they are paused, or deleted, or their file is.

    None if this machine has no such database.
    """
    active = (DagModel.dag_id.in_(dag_ids), DagModel.is_paused.is_(False), DagModel.is_stale.is_(False))
    try:
        with create_session() as session:
            return frozenset(dag_ids).difference(session.scalars(select(DagModel.dag_id).where(*active)))
    except SQLAlchemyError:
        return frozenset()


def ended(runs: Collection[RunKey]) -> set[RunKey]:
    """Return the DAG runs that failed, succeeded, or were deleted."""
    made_by_dags = {run for run in runs if not run.is_plain}
    still = going({run.dag_id for run in made_by_dags}) if made_by_dags else ()
    return {run for run in made_by_dags if (run.dag_id, run.run_id) not in still}


def known_to_have_ended(
    runs: Collection[RunKey], unknown: Callable[[SQLAlchemyError], None] = lambda _: None
) -> set[RunKey]:
    """The same; none where this machine has no such database. `unknown` is called with the reason then."""
    try:
        return ended(runs)
    except SQLAlchemyError as error:
        unknown(error)
        return set()


def is_stranded(run: RunKey) -> bool:
    """Return whether the run's DAG is stale and none of its tasks runs or is about to; False without the database.

    Airflow never ends such a run if its DAG was renamed or removed. An import error also makes a DAG stale, for a
    while.
    """
    stale = select(DagModel.is_paused).where(DagModel.dag_id == run.dag_id, DagModel.is_stale.is_(True))
    tasks = select(TaskInstance.task_id).where(TaskInstance.dag_id == run.dag_id, TaskInstance.run_id == run.run_id)
    try:
        with create_session() as session:
            is_paused = session.scalar(stale)
            if is_paused is None:
                return False
            # Airflow's scheduler queues a scheduled task also if its DAG is stale, but not if it is paused.
            states = _AT_WORK if is_paused else [*_AT_WORK, TaskInstanceState.SCHEDULED]
            return session.scalar(tasks.where(TaskInstance.state.in_(states)).limit(1)) is None
    except SQLAlchemyError:
        return False


def judged(
    found: Sequence[Overview],
    lease_seconds: float,
    has_ended: Callable[[Collection[RunKey]], Collection[RunKey]] = ended,
) -> list[Overview]:
    """Pipelines with what Airflow's database knows of their runs and DAGs (`core.judging`)."""
    return judge(found, lease_seconds, has_ended, paused)
