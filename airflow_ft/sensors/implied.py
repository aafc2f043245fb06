"""Condition of a sensor that names none: everything that was there when the interval of its DAG run ended."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from airflow_ft.operators.place import names_of, tasks_beside
from airflow_ft.pipeline.assets import SCHEME
from airflow_ft.pipeline.checkpoints import Gate
from airflow_ft.pipeline.runs import interval_end
from airflow_ft.protocol.arguments import truth
from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.protocol.model import RunKey

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator, Context

    from airflow_ft.store.decision_log import DecisionLog
    from airflow_ft.store.reading import ReadingOperations


def implied_gate(
    task: BaseOperator, written: tuple[object, object], context: Context, store: DecisionLog, pipeline: str
) -> Gate:
    """The condition of a sensor that names none; the first that applies.

    - The DAG run stages the pipeline itself, and not behind the sensor: all that it stages is confirmed.
    - It was scheduled, or belongs to a backfill: all that was in the sources when its data interval ended.
    - Confirmed checkpoints have triggered it, as events of the pipeline's asset: the newest of them.
    - Any other, and one whose stage waits for the sensor: all that is published now.

    `written` is (pipeline, suffix) of the sensor before rendering. Only the last one depends on when it is asked.
    """
    dag_run: Any = context.get("dag_run")
    behind = None
    if dag_run is not None:
        behind = _stage_is_behind(task, written, pipeline)
        if behind is False or (behind is None and _is_registered(store, pipeline, dag_run)):
            return Gate(run=RunKey(dag_run.dag_id, dag_run.run_id))
        end = interval_end(dag_run)
        if end is not None and not behind:
            return Gate(as_of=end)
        if number := _announced(dag_run, pipeline):
            return Gate(number=number)
    return Gate.published(store, pipeline)


def _stage_is_behind(task: BaseOperator, written: tuple[object, object], pipeline: str) -> bool | None:
    """Return whether the DAG's stage of the pipeline waits for the sensor; None: the DAG has no visible stage."""
    found = {stage.task_id for stage in _stages(task, written, pipeline)}
    return bool(found & task.get_flat_relative_ids(upstream=False)) if found else None


def _stages(task: BaseOperator, written: tuple[object, object], pipeline: str) -> list[Any]:
    """Return the DAG's stages of the pipeline."""
    names = (written, (pipeline, None))
    stages = [other for other in tasks_beside(task) if getattr(other, "role", "") == "stage"]
    return [stage for stage in stages if any(each in names for each in names_of(stage))]


def is_dry_run(task: BaseOperator, written: tuple[object, object], context: Context, pipeline: str) -> bool:
    """Return whether the DAG's stage of the pipeline makes a dry run in this run, as far as the sensor can render that.

    One stream with `dry_run` makes its whole group a dry run.
    """
    for stage in _stages(task, written, pipeline):
        for spec in getattr(stage, "specs", None) or (stage.spec,):
            given = spec.dry_run
            if isinstance(given, str):
                given = task.render_template(given, context)
            with suppress(ConfigurationError):  # the stage fails with it
                if truth("dry_run", given):
                    return True
    return False


def _is_registered(store: ReadingOperations, pipeline: str, dag_run: Any) -> bool:
    """Return whether the DAG run works on the pipeline itself. One that has only restored a savepoint does not."""
    try:
        runs = store.runs(pipeline, dag_run.dag_id, dag_run.run_id)
        return any(run.epoch or not run.restored_from for run in runs)
    except KeyError:
        return False


def _announced(dag_run: Any, pipeline: str) -> int:
    """Return the newest number in the pipeline's asset events that triggered this DAG run; 0: there is none."""
    numbers = [0]
    for event in getattr(dag_run, "consumed_asset_events", None) or ():
        number = (event.extra or {}).get("number")
        if (event.asset.uri or "").rstrip("/") == f"{SCHEME}://{pipeline}" and isinstance(number, int):
            numbers.append(number)
    return max(numbers)
