"""Arguments of operators and sensors: what is wrong is named, with the line of the DAG."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
from airflow.sdk import DAG

import airflow_ft as ft
from airflow_ft import CheckpointedPipeline, CheckpointSensor, StopStreamOperator
from airflow_ft.operators.sweep import RecoverAllOperator
from airflow_ft.protocol.errors import ConfigurationError
from tests.operators.declared import spec

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
    "a group outside of a DAG": (
        lambda: CheckpointedPipeline(spec()),
        "dag_missing",
        {},
    ),
    "a server of a sink": (
        lambda: ft.KafkaSource(topics=["a"], bootstrap_servers="localhost:9092"),
        "argument_unknown",
        {"argument": "bootstrap_servers", "of": "KafkaSource"},
    ),
    "a list of names": (
        lambda: CheckpointSensor(task_id="gate", pipeline=["a", "b"]),
        "name_invalid",
        {"name": "a list"},
    ),
    "a function without a name": (
        lambda: ft.CheckpointedPipeline(
            pipeline="orders",
            job=lambda spark, sources: None,
            sources={"files": ft.FileSource(path="/in", schema="id bigint")},
            sinks={"orders": ft.SqliteSink(table="orders")},
        ),
        "argument_invalid",
        {"argument": "job"},
    ),
    "a group": (lambda: CheckpointedPipeline("orders", "jobs.orders"), "argument_unnamed", {}),
}


@pytest.mark.parametrize("case", list(CASES))
def test_a_wrong_argument_is_named_with_the_line_of_the_dag(case: str) -> None:
    make, code, fields = CASES[case]
    dag = nullcontext() if case == "a group outside of a DAG" else DAG("orders", schedule=None)
    with dag, pytest.raises(ConfigurationError) as caught:
        make()
    assert caught.value.code == code
    assert {name: caught.value.fields.get(name) for name in fields} == fields
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert frames[-2].filename == __file__, "Airflow shows the last two frames"


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [("savepoints", "savepoint"), ("retry", "retries"), ("pipelin", "pipeline"), ("name", "pipeline")],
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


def test_a_misspelt_class_is_answered_with_the_right_one() -> None:
    with pytest.raises(AttributeError) as caught:
        ft.PostgreSQLSink  # noqa: B018
    assert caught.value.args[0].endswith("Did you mean 'PostgresSink'?")
    assert not hasattr(ft, "__wrapped__")


def test_a_setting_of_the_pipeline_is_sent_there() -> None:
    with pytest.raises(ConfigurationError) as caught:
        ft.CheckpointConfig(retries=3)  # type: ignore[call-arg]
    assert "CheckpointedPipeline(retries=...)" in caught.value.remedy


@pytest.mark.parametrize("make", [ft.CheckpointConfig, ft.PipelineSpec])
def test_no_fix_names_what_authors_do_not_give(make: Any) -> None:
    with pytest.raises(ConfigurationError) as caught:
        make(zzz=1)
    assert not {"given", "configured"}.intersection(caught.value.remedy.rstrip(".").replace(",", "").split())


@pytest.mark.parametrize(("value", "kind"), [(2, "an int"), (2.0, "a float"), ([], "a list")])
def test_a_kind_has_its_article(value: object, kind: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        spec(spark_conf={"spark.executor.cores": value})
    assert caught.value.fields["value"] == kind
