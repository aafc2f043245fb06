"""Arguments of operators and sensors: what is wrong is named, with the line of the DAG."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import pytest
from airflow.sdk import DAG

import airflow_ft as ft
from airflow_ft import CheckpointedPipeline, CheckpointSensor, FromSavepoint, StopStreamOperator
from airflow_ft.notifications.problem import ProblemNotifier
from airflow_ft.operators.sweep import RecoverAllOperator
from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.triggers.confirmed import ConfirmedTrigger
from tests.operators.declared import spec
from tests.raising import raises

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


IMPOSSIBLE: dict[str, tuple[Callable[[], Any], str, str]] = {
    "savepoint without a path": (lambda: FromSavepoint(later="continue"), "argument_missing", "path"),
    "savepoint, misspelt": (lambda: FromSavepoint("/s", latr="continue"), "argument_unknown", "latr"),
    "savepoint, relative": (lambda: FromSavepoint("savepoints/1"), "path_invalid", "from_savepoint.path"),
    "restore, relative": (
        lambda: ft.RestoreSavepointOperator(task_id="t", pipeline="p", savepoint="./s"),
        "path_invalid",
        "from_savepoint.path",
    ),
    "restore into a relative log": (
        lambda: ft.RestoreSavepointOperator(task_id="t", pipeline="p", savepoint="/s", wal_root="wal"),
        "path_invalid",
        "wal_root",
    ),
    "dispose, relative": (
        lambda: ft.DisposeSavepointOperator(task_id="t", pipeline="p", path="s"),
        "path_invalid",
        "path",
    ),
    "trigger, relative": (
        lambda: ft.TriggerSavepointOperator(task_id="t", pipeline="p", savepoint_dir="s"),
        "path_invalid",
        "savepoint_dir",
    ),
    "maintenance, relative": (
        lambda: ft.MaintenanceOperator(task_id="t", pipeline="p", action="savepoint", savepoint_dir="s"),
        "path_invalid",
        "savepoint_dir",
    ),
    "stop, a folder for no savepoint": (
        lambda: StopStreamOperator(task_id="t", pipeline="p", savepoint_dir="/s"),
        "argument_missing",
        "savepoint",
    ),
    "trigger of an asset, misspelt": (lambda: ConfirmedTrigger(pipelin="p"), "argument_unknown", "pipelin"),
    "trigger of an asset, missing": (lambda: ConfirmedTrigger(), "argument_missing", "pipeline"),
    "trigger of an asset, no pause": (
        lambda: ConfirmedTrigger(pipeline="p", poll_interval=0),
        "argument_invalid",
        "poll_interval",
    ),
    "trigger of an asset, nan": (
        lambda: ConfirmedTrigger(pipeline="p", poll_interval=float("nan")),
        "argument_invalid",
        "poll_interval",
    ),
    "notifier, misspelt": (lambda: ProblemNotifier(pipelin="p"), "argument_unknown", "pipelin"),
    "notifier, negative": (lambda: ProblemNotifier(late_after=-1), "argument_invalid", "late_after"),
    "notifier, endless": (lambda: ProblemNotifier(patience=float("inf")), "argument_invalid", "patience"),
    "recovery of none": (lambda: RecoverAllOperator(task_id="t", pipelines=[]), "argument_invalid", "pipelines"),
    "recovery, negative": (
        lambda: RecoverAllOperator(task_id="t", patience=timedelta(-1)),
        "argument_invalid",
        "patience",
    ),
    "a blank store": (lambda: RecoverAllOperator(task_id="t", store=" "), "argument_invalid", "store"),
}


@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_what_cannot_work_is_refused_at_parse(case: str) -> None:
    make, code, argument = IMPOSSIBLE[case]
    with raises(ConfigurationError, code, argument=argument):
        make()


def test_a_store_that_is_no_url_is_refused_at_parse() -> None:
    with raises(ConfigurationError, "store_url_invalid"):
        RecoverAllOperator(task_id="t", store="sqlite:///ft.db")


def test_places_that_a_run_knows_are_left_alone() -> None:
    for path in ("{{ params.path }}", "", "None", "beginning", "file:///s", "s3://c@b/s", "hdfs://n:1/s"):
        assert FromSavepoint(path).path == path
    assert ConfirmedTrigger(pipeline="p").serialize()[1]["poll_interval"] == 10.0


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
