"""What the tasks of a pipeline do in a dry run, and how it is asked for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

import airflow_ft as ft
from airflow_ft.operators.commit import CommitOperator
from airflow_ft.operators.confirm import ConfirmOperator
from airflow_ft.operators.prepare import PrepareOperator
from airflow_ft.operators.recover import RecoverOperator
from airflow_ft.operators.stage import StageOperator
from airflow_ft.pipeline.dry_run_result import DryRun
from airflow_ft.pipeline.run import PlainRun
from airflow_ft.protocol.doctor import Check, Verdict
from airflow_ft.protocol.errors import ConfigurationError, FoundProblemsError
from tests.operators.declared import spec
from tests.operators.test_base import airflow_context
from tests.raising import raises

pytestmark = pytest.mark.airflow


def found(*checks: Check) -> DryRun:
    return DryRun(
        pipeline="orders",
        checkpoints=1,
        rows={"orders": 1},
        has_more=False,
        columns={"orders": {"id": "int64"}},
        samples={"orders": [{"id": 7}]},
        checks=checks,
    )


def execute(operator: Any) -> Any:
    return type(operator).execute.__wrapped__(operator, airflow_context())


@pytest.mark.parametrize("given", [True, "True", "true", "1"])
def test_the_tasks_behind_stage_are_skipped(given: bool | str) -> None:
    declared = spec(dry_run=given)
    recover = RecoverOperator(task_id="recover", spec=declared)
    assert execute(recover) == {"completed": []} and not recover.outlets
    for operator in (
        PrepareOperator(task_id="prepare", participant="shop", spec=declared),
        CommitOperator(task_id="commit", participant="shop", spec=declared),
        ConfirmOperator(task_id="confirmed", spec=declared),
    ):
        with pytest.raises(AirflowSkipException):
            execute(operator)


def test_stage_tells_it_and_fails_where_a_sink_would_refuse(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    results = [found(), found(Check("connection shop", "columns", Verdict.PROBLEM, "no such table", "make it."))]
    samples = []

    def rehearsed(*_: Any, **how: Any) -> DryRun:
        samples.append(how["samples"])
        return results.pop(0)

    monkeypatch.setattr("airflow_ft.pipeline.dry_run.rehearse", rehearsed)
    stage = StageOperator(task_id="stage", spec=spec(dry_run=True))
    printed = execute(stage)
    assert printed["rows"] == {"orders": 1} and "samples" not in printed
    with raises(AirflowFailException) as refused:
        execute(StageOperator(task_id="shown", spec=spec(dry_run=True, dry_run_samples=3)))
    assert isinstance(refused.error, FoundProblemsError) and "no such table" in refused.error.headline
    assert samples == [0, 3]  # its log shows values only where the author says so


def test_a_savepoint_to_go_on_from_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_ft.pipeline.dry_run._scratch", lambda *_: pytest.fail("nothing is begun"))
    params = {**ft.dry_run_params(), **ft.savepoint_params()}
    with DAG("d", schedule=None, params=params):
        declared = spec(
            dry_run="{{ params.dry_run }}",
            from_savepoint=ft.FromSavepoint.from_params(),
            store="sqlite:////nowhere/ft.db",
        )
        pipeline = ft.CheckpointedPipeline(declared)
    for path, refused in (("/mnt/savepoint-orders-17", True), ("", False)):
        stage = pipeline.children["orders.stage"].prepare_for_execution()  # type: ignore[union-attr]
        stage.render_template_fields({"params": {"dry_run": True, "savepoint": path}})
        assert stage.rendered().savepoint.is_given is refused
    with pytest.raises(ConfigurationError) as refused_here:
        ft.dry_run(spec(from_savepoint="/mnt/savepoint-orders-17"))
    assert "/mnt/savepoint-orders-17" in refused_here.value.headline


def test_what_waits_is_told_with_its_numbers_and_rows() -> None:
    waits = replace(found(), waiting={3: {"orders": 2, "more": 1}, 4: {"orders": 1_000}})
    assert "checkpoints 3, 4 (rows: orders 1,002, more 1)" in "\n".join(waits.lines())
    assert waits.to_json()["waiting"]["numbers"] == [3, 4]
    lines = list(replace(waits, checkpoints=0, waiting={7: {"orders": 1}}).lines())
    assert lines[0] == "orders: nothing is new" and "checkpoint 7 (rows: orders 1)" in lines[1]


def test_a_parameter_of_the_run_says_it() -> None:
    with DAG("d", schedule=None, params=ft.dry_run_params()):
        pipeline = ft.CheckpointedPipeline(spec(dry_run="{{ params.dry_run }}"))
    for value in (True, False):
        stage = pipeline.children["orders.stage"].prepare_for_execution()  # type: ignore[union-attr]
        stage.render_template_fields({"params": {"dry_run": value}})
        assert stage.rendered().is_dry_run is value


def test_what_is_neither_yes_nor_no_is_refused() -> None:
    with pytest.raises(ConfigurationError) as caught:
        spec(dry_run="perhaps")
    assert "'perhaps'" in caught.value.headline and "True or False" in caught.value.remedy
    for samples in (-1, "3", True):
        with pytest.raises(ConfigurationError) as caught:
            spec(dry_run_samples=samples)
        assert f"dry_run_samples is {samples!r}" in caught.value.headline
    with pytest.raises(ConfigurationError) as caught:
        PlainRun(spec(dry_run=True), lambda _: pytest.fail("nothing is asked for"))
    assert "airflow_ft.dry_run" in caught.value.remedy
    with pytest.raises(ConfigurationError) as caught:
        ft.dry_run(spec(wal_root="{{ params.root }}"))
    assert "Jinja" in caught.value.headline
    socket = spec(
        sources={"lines": ft.SocketSource(host="localhost", port=1)},
        streaming=True,
        checkpointing=ft.CheckpointConfig(mode=ft.CheckpointingMode.AT_MOST_ONCE),
    )
    with pytest.raises(ConfigurationError) as caught:
        ft.dry_run(socket)
    assert caught.value.remedy
    assert "dry_run" not in spec(dry_run=True).to_json()
