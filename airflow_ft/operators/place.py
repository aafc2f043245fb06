"""The pipeline of an operator, and rules for its place in the DAG.

A pipeline reads its sources once in a DAG run: a second operator would find nothing left. So two operators that share
a pipeline are refused, when the DAG is parsed if it shows there, else by the second task (`steps.require_own_stage`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from airflow_ft.protocol.arguments import is_template
from airflow_ft.protocol.errors import ConfigurationError

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator, TaskGroup


_PULL = re.compile(r"xcom_pull\(\s*(?:task_ids\s*=\s*)?['\"]([^'\"]+)['\"][^)]*\)")


def check_pulls(operator: BaseOperator) -> None:
    """ConfigurationError where Jinja pulls an output of the operator's own mapped group: it would be a list of all.

    Airflow pulls those of every map index, unless `map_indexes` is given; a task's output in an f-string is such Jinja.
    """
    mapped = mapped_group(operator.task_group)
    if mapped is None:
        return
    inside = {task.task_id for task in mapped.iter_tasks()}
    for name in operator.template_fields:
        for text in _texts(getattr(operator, name, None)):
            for found in _PULL.finditer(text):
                if found[1] in inside and "map_indexes" not in found[0]:
                    raise ConfigurationError(
                        f"{name} of {operator.task_id} pulls the outputs of {found[1]!r} of all map indexes into one"
                        f" text: {found[0]}.",
                        code="argument_invalid",
                        remedy="Give the task's output itself, without text around it. Or pull only the output of the"
                        f" same map index: {{{{ ti.xcom_pull(task_ids='{found[1]}', map_indexes=ti.map_index) }}}}",
                        argument=name,
                        task=operator.task_id,
                        pulled=found[1],
                    )


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _texts(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _texts(each)


def check_place(operator: BaseOperator, role: str, pipeline: str, suffix: object) -> None:
    """ConfigurationError when its DAG cannot give it a pipeline of its own; `role`: see `CheckpointOperator`."""
    if not role or is_template(pipeline) or is_template(suffix):
        return
    if is_mapped(operator.task_group):
        raise ConfigurationError(
            f"{operator.task_id} is in a mapped task group, and all map indexes would have the same pipeline.",
            code="pipeline_duplicated",
            remedy='Give suffix= (an argument of the group, or "{{ ti.map_index }}"), or use Jinja in pipeline=.',
            pipeline=pipeline,
            tasks=[operator.task_id],
        )
    mine = (role, pipeline, None)
    for other in tasks_beside(operator):
        theirs = (other, *getattr(other, "specs", ()))  # of a group of streams
        if any((getattr(other, "role", None), *_name_of(each)) == mine for each in theirs):
            raise ConfigurationError(
                f"{other.task_id} and {operator.task_id} of the DAG {operator.dag_id} have the same pipeline. The"
                " second would find nothing left to read.",
                code="pipeline_duplicated",
                remedy="Give each task its own pipeline= or suffix=.",
                pipeline=pipeline,
                tasks=[other.task_id, operator.task_id],
            )


def names_of(task: Any) -> list[tuple[Any, Any]]:
    """Return pipeline and suffix of each pipeline that a task works on; a group of streams has several."""
    return [_name_of(each) for each in getattr(task, "specs", (task,))]


def _name_of(declared: Any) -> tuple[Any, Any]:
    return getattr(declared, "pipeline", None), getattr(declared, "suffix", None)


def tasks_beside(task: BaseOperator) -> list[Any]:
    """The other tasks of its DAG, if it has one: operators, and mapped ones that are none yet."""
    dag = task.get_dag()
    return [] if dag is None else [other for other in dag.tasks if other.task_id != task.task_id]


def is_mapped(group: TaskGroup | None) -> bool:
    """Return whether the group is expanded for a number of map indexes, itself or one around it."""
    return mapped_group(group) is not None


def mapped_group(group: TaskGroup | None) -> TaskGroup | None:
    """The group that is expanded: itself, or the closest one around it."""
    from airflow.sdk.definitions.taskgroup import MappedTaskGroup

    while group is not None and not isinstance(group, MappedTaskGroup):
        group = group.parent_group
    return group


def own_stage(operator: BaseOperator, role: str, task: str) -> Callable[[str], bool]:
    """Return a function that checks whether the task that staged a run is this operator's: itself, or one before or
    behind it in the DAG.

    `task` is this task instance, "dag/run/task[map index]". A task that the DAG no longer has was renamed since.
    """
    run = task.rpartition("/")[0] + "/"

    def is_own(staged_by: str) -> bool:
        task_id = staged_by.removeprefix(run).partition("[")[0]
        if staged_by == task or task_id not in (other.task_id for other in tasks_beside(operator)):
            return True
        if role == "stage":
            return False
        related = operator.get_flat_relative_ids(upstream=True) | operator.get_flat_relative_ids(upstream=False)
        return task_id in related

    return is_own
