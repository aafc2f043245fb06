"""Arguments of operators and sensors: what is wrong is named, with the line of the DAG."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_ft import CheckpointedPipeline, CheckpointSensor, StopStreamOperator
from airflow_ft.operators.sweep import RecoverAllOperator
from airflow_ft.protocol.errors import ConfigurationError

CASES: dict[str, tuple[Callable[[], Any], str, dict[str, str]]] = {
    "missing": (lambda: StopStreamOperator(task_id="stop"), "argument_missing", {"argument": "pipeline"}),
    "no task_id": (lambda: CheckpointSensor(pipeline="orders"), "argument_missing", {"argument": "task_id"}),
    "unnamed": (lambda: StopStreamOperator("stop", "orders"), "argument_unnamed", {"of": "StopStreamOperator"}),
    "misspelt": (
        lambda: CheckpointSensor(task_id="gate", pipelines="orders"),
        "argument_unknown",
        {"argument": "pipelines", "of": "CheckpointSensor"},
    ),
    "of Airflow, misspelt": (
        lambda: RecoverAllOperator(task_id="all", retry=3),
        "argument_unknown",
        {"argument": "retry"},
    ),
    "a wrong value": (
        lambda: StopStreamOperator(task_id="stop", pipeline="a b"),
        "name_invalid",
        {},
    ),
    "mapped, misspelt": (
        lambda: StopStreamOperator.partial(task_id="stop", savepoints=True),
        "argument_unknown",
        {"argument": "savepoints", "of": "StopStreamOperator"},
    ),
    "mapped, unnamed": (lambda: StopStreamOperator.partial("stop"), "argument_unnamed", {"of": "StopStreamOperator"}),
    "mapped, no task_id": (
        lambda: CheckpointSensor.partial(pipeline="orders"),
        "argument_missing",
        {"argument": "task_id"},
    ),
    "a group": (lambda: CheckpointedPipeline("orders", "jobs.orders"), "argument_unnamed", {}),
}


@pytest.mark.parametrize("case", list(CASES))
def test_a_wrong_argument_is_named_with_the_line_of_the_dag(case: str) -> None:
    make, code, fields = CASES[case]
    with DAG("orders", schedule=None), pytest.raises(ConfigurationError) as caught:
        make()
    assert caught.value.code == code
    assert {name: caught.value.fields.get(name) for name in fields} == fields
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert frames[-2].filename == __file__, "Airflow shows the last two frames"


@pytest.mark.parametrize(
    ("wrong", "meant"), [("savepoints", "savepoint"), ("retry", "retries"), ("pipelin", "pipeline")]
)
def test_the_fix_names_the_argument_that_is_meant(wrong: str, meant: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        StopStreamOperator(task_id="stop", **{"pipeline": "orders", wrong: 1})
    assert caught.value.remedy == f"Did you mean {meant}?"


def test_what_default_args_give_is_not_missing() -> None:
    with DAG("orders", schedule=None, default_args={"pipeline": "orders"}):
        assert StopStreamOperator(task_id="stop").pipeline == "orders"


def test_arguments_of_airflow_and_mapped_tasks_work_as_usual() -> None:
    with DAG("orders", schedule=None) as dag:
        StopStreamOperator(task_id="stop", pipeline="orders", retries=3, trigger_rule="all_done")
        StopStreamOperator.partial(task_id="stops").expand(pipeline=["orders", "items"])
    mapped = dag.get_task("stops")
    made = mapped.unmap({"pipeline": "items"})
    assert made.pipeline == "items"


def test_a_class_of_a_user_may_have_arguments_of_its_own() -> None:
    class Stop(StopStreamOperator):
        def __init__(self, *, reason: str, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self.reason = reason

    assert Stop(task_id="stop", pipeline="orders", reason="release").reason == "release"


def test_a_mapped_task_has_the_arguments_of_partial_and_expand() -> None:
    with DAG("orders", schedule=None, default_args={"retries": 7}):
        gate = CheckpointSensor.partial(task_id="gate", poke_interval=5).expand(pipeline=["orders", "clicks"])
        stop = StopStreamOperator.partial(task_id="stop", savepoint=True).expand(pipeline=["orders"])
    assert (gate.operator_class, stop.operator_class) == (CheckpointSensor, StopStreamOperator)
    assert (stop.partial_kwargs["savepoint"], stop.retries) == (True, 7)
