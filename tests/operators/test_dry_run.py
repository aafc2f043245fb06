"""What the tasks of a pipeline do in a dry run, and how it is asked for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

import airflow_ft as ft
from airflow_ft.operators.commit import CommitOperator
from airflow_ft.operators.confirm import ConfirmOperator
from airflow_ft.operators.prepare import PrepareOperator
from airflow_ft.operators.recover import RecoverOperator
from airflow_ft.operators.stage import StageOperator
from airflow_ft.pipeline.dry_run_result import DryRun
from airflow_ft.pipeline.run import PlainRun
from airflow_ft.protocol.doctor import Check, Verdict
from airflow_ft.protocol.errors import ConfigurationError, FoundProblemsError, JobError
from tests.operators.declared import spec
from tests.operators.test_base import airflow_context, in_process_of
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


@pytest.mark.parametrize("mapped", [False, True])
def test_a_failed_dry_run_does_not_end_as_a_green_run(mapped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """`commit` and `confirmed` run by their trigger rule. If these last tasks were skipped, the run would succeed."""
    states = {"orders.recover": "success", "orders.stage": "failed"}

    def known(dag_id: str, map_index: int | None, task_ids: list[str], run_ids: list[str]) -> dict[str, Any]:
        assert (dag_id, map_index, sorted(task_ids)) == ("dag", 2 if mapped else None, sorted(states))
        suffix = "_2" if mapped else ""
        return {run_ids[0]: {f"{name}{suffix}": state for name, state in states.items()}}

    monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", staticmethod(known))
    called: list[Any] = []
    with DAG("d", schedule=None) as dag:
        ft.CheckpointedPipeline(spec(dry_run=True), on_failure_callback=called.append)
    context = airflow_context()
    context["ti"].map_index = 2 if mapped else -1
    in_process_of(context, monkeypatch)
    for recover, stage, tasks, what in (
        ("success", "failed", ["orders.stage"], "failed in orders.stage"),
        ("failed", "upstream_failed", ["orders.recover"], "failed in orders.recover"),
        ("upstream_failed", "upstream_failed", ["orders.recover", "orders.stage"], "a task before orders.recover"),
    ):
        states |= {"orders.recover": recover, "orders.stage": stage}
        for task_id in ("orders.commit.shop", "orders.confirmed"):
            task: Any = dag.get_task(task_id)
            with raises(AirflowFailException) as refused:
                type(task).execute.__wrapped__(task, context)
            assert isinstance(refused.error, FoundProblemsError)
            assert refused.error.fields["tasks"] == tasks and what in refused.error.what
            assert tasks[0] in refused.error.remedy if len(tasks) == 1 else "grid" in refused.error.remedy
            assert not task.on_failure_callback, "that of the failed task was called"
    states |= dict.fromkeys(states, "success")
    with pytest.raises(AirflowSkipException):
        ConfirmOperator.execute.__wrapped__(dag.get_task("orders.confirmed"), context)  # type: ignore[attr-defined]


def test_a_unit_test_of_the_last_task_skips_it() -> None:
    with DAG("d", schedule=None) as dag:
        ft.CheckpointedPipeline(spec(dry_run=True))
    with pytest.raises(AirflowSkipException):
        execute(dag.get_task("orders.confirmed"))


def test_a_last_task_does_not_guess_how_the_dry_run_went(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: Any, **__: Any) -> Any:
        raise OSError("connection refused")

    monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", staticmethod(away))
    in_process_of(airflow_context(), monkeypatch)
    with DAG("d", schedule=None) as dag:
        ft.CheckpointedPipeline(spec(dry_run=True))
    with raises(AirflowException, "airflow_unreachable"):
        execute(dag.get_task("orders.confirmed"))


def test_a_dry_run_of_a_group_tries_each_stream_and_fails(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    tried = []

    def rehearsed(pipeline: Any, *_: Any, **__: Any) -> DryRun:
        tried.append(pipeline.pipeline)
        if pipeline.pipeline == "a":
            raise JobError("the job raised.", remedy="Run `airflow ft doctor`.")
        return found(Check("connection shop", "columns", Verdict.PROBLEM, "no such table", "make it."))

    monkeypatch.setattr("airflow_ft.pipeline.dry_run.rehearse", rehearsed)
    names = ("a", "b")
    with DAG("d", schedule=None):
        group = ft.StreamGroupOperator(
            task_id="g", streams=[spec(name, streaming=True, dry_run=True) for name in names]
        )
    with raises(AirflowFailException, "group_failed", pipelines=["a", "b"]) as refused:
        execute(group)
    assert refused.error and "the job raised" in refused.error.what and "no such table" in refused.error.what
    assert tried == ["a", "b"]
    assert "Fix:" not in refused.error.what and "[job_failed]" not in refused.error.what
    logged = capsys.readouterr().out + caplog.text
    assert "[a] Fix: Run `airflow ft doctor a`." in logged
    assert "[b] FoundProblemsError [problems_found]: " in logged


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
