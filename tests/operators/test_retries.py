"""What Airflow makes of a restart strategy: the waits are those of Airflow's own scheduler."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG, TaskGroup

from airflow_ft.operators.branches import LoadBranchOperator
from airflow_ft.operators.doctor import DoctorOperator
from airflow_ft.operators.savepoint import StopStreamOperator
from airflow_ft.operators.stage import StageOperator
from airflow_ft.operators.stream import StreamingPipelineOperator
from airflow_ft.operators.stream_group import StreamGroupOperator
from airflow_ft.pipeline.retries import airflow_arguments
from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.protocol.restart import ExponentialDelay, FailureRate, FixedDelay, RestartStrategy
from tests.operators.declared import spec
from tests.raising import raises

pytestmark = pytest.mark.airflow

END = datetime(2026, 1, 1, tzinfo=UTC)


def waits(strategy: RestartStrategy, task_id: str) -> list[float]:
    """The seconds that Airflow waits after each try."""
    from airflow.models.taskinstance import TaskInstance

    arguments = airflow_arguments(strategy)
    found = []
    for number in range(1, arguments["retries"] + 1):
        instance: Any = SimpleNamespace(
            dag_id="d",
            task_id=task_id,
            logical_date=END,
            try_number=number,
            end_date=END,
            task=SimpleNamespace(**arguments),
            retry_delay_override=None,
        )
        found.append((TaskInstance.next_retry_datetime(instance) - END).total_seconds())
    return found


def test_airflow_waits_as_a_fixed_delay_says() -> None:
    assert waits(FixedDelay(attempts=3, delay=timedelta(seconds=10)), "stage") == [10, 10, 10]


def test_airflow_waits_one_to_two_backoffs_within_the_limit() -> None:
    strategy = ExponentialDelay(
        initial_backoff=timedelta(seconds=10),
        max_backoff=timedelta(minutes=5),
        backoff_multiplier=1.5,
        attempts_before_reset_backoff=12,
    )
    for task_id in ("recover", "stage", "confirmed"):
        for number, wait in enumerate(waits(strategy, task_id)):
            backoff = 10 * 1.5**number
            assert min(backoff, 300) <= wait <= min(2 * (backoff + 1), 300)
    assert waits(strategy, "stage") != waits(strategy, "recover")


def test_a_single_step_is_retried_as_in_a_group() -> None:
    strategy = FixedDelay(attempts=7, delay=timedelta(seconds=9))
    for more, given, expected in (
        ({}, {}, (3, 15)),
        ({"restart": strategy}, {}, (7, 9)),
        ({"restart": strategy}, {"retries": 2}, (2, 15)),
        ({"restart": strategy}, {"default_args": {"retries": 1}}, (1, 15)),
        ({"streaming": True}, {}, (3, 15)),
    ):
        task = StageOperator(task_id="stage", spec=spec(**more), **given)
        assert (task.retries, task.retry_delay) == (expected[0], timedelta(seconds=expected[1]))
    with raises(ConfigurationError, "argument_invalid", argument="restart"):
        StageOperator(task_id="stage", spec=spec(restart=FailureRate()))


def test_a_mapped_step_is_retried_as_a_single_one() -> None:
    strategy = FixedDelay(attempts=7, delay=timedelta(seconds=9))
    cases: Any = (
        ({}, {}, {}, (3, 15)),
        ({}, {"restart": strategy}, {}, (7, 9)),
        ({}, {"restart": strategy}, {"retries": 2}, (2, 15)),
        ({}, {}, {"default_args": {"retries": 1}}, (1, 15)),
        ({"dag": {"retries": 4}}, {"restart": strategy}, {}, (4, 15)),
        ({"group": {"retry_delay": timedelta(seconds=2)}}, {}, {}, (3, 2)),
    )
    for around, more, given, expected in cases:
        dag = DAG("d", schedule=None, default_args=around.get("dag", {}))
        with dag, TaskGroup("g", default_args=around.get("group", {})):
            loads = LoadBranchOperator.partial(task_id="load", spec=spec(**more), **given).expand(announced=[{}])
        retries, seconds = expected
        assert (loads.retries, loads.retry_delay) == (retries, timedelta(seconds=seconds))
        task = loads.unmap({"announced": {}})
        assert (task.retries, task.retry_delay) == (retries, timedelta(seconds=seconds))
    assert StopStreamOperator.partial(task_id="stop").expand(pipeline=["a"]).retries == 0, "it is no step"
    assert DoctorOperator(task_id="doctor", spec=spec()).retries == 0, "a finding stays"


def test_a_stream_without_a_group_is_retried_for_weeks() -> None:
    task: Any = StreamingPipelineOperator(task_id="stream", spec=spec(streaming=True, restart=FailureRate()))
    assert (task.retries, task.retry_delay) == (5000, timedelta(seconds=3))
    mapped = StreamGroupOperator.partial(task_id="group").expand(streams=[[spec(streaming=True)]])
    assert (mapped.retries, mapped.retry_delay) == (5000, timedelta(seconds=3))
