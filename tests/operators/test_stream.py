"""The operator of streams; nothing is run. How it does in Airflow is in tests/integration/test_airflow_stream.py."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowException, AirflowRuntimeError, ErrorType
from airflow.sdk.execution_time.comms import ErrorResponse

from airflow_ft import CheckpointedPipeline, FailureRate, SocketSource, StreamGroupOperator
from airflow_ft.operators import stream
from airflow_ft.operators.stream import KILLED, StreamingPipelineOperator
from airflow_ft.protocol.errors import ConfigurationError
from tests.operators.declared import spec
from tests.raising import raises

pytestmark = pytest.mark.airflow


def test_the_one_task_of_a_stream_has_a_retry_count_of_its_own() -> None:
    with DAG("d", schedule=None) as dag:
        group = CheckpointedPipeline(spec(streaming=True, restart=FailureRate()))
    [task] = dag.tasks
    assert isinstance(task, StreamingPipelineOperator) and task is group.confirmed
    assert task.task_id == "orders.stream"
    assert (task.retries, task.retry_delay) == (5000, timedelta(seconds=3)), "`restart` is for what is in its task"


def test_what_the_dag_says_of_retries_goes_before() -> None:
    with DAG("d", schedule=None, default_args={"retries": 7}) as dag:
        CheckpointedPipeline(spec(streaming=True))
    assert dag.tasks[0].retries == 7


def test_a_scheduled_pipeline_is_refused() -> None:
    with raises(ConfigurationError, "arguments_conflict", argument="streaming"):
        StreamingPipelineOperator(task_id="stream", spec=spec())


def test_a_mode_that_cannot_be_kept_is_refused_whoever_says_it(monkeypatch: pytest.MonkeyPatch) -> None:
    socket = {"lines": SocketSource(host="localhost", port=9999)}
    with DAG("d", schedule=None), pytest.raises(ConfigurationError) as caught:
        CheckpointedPipeline(spec(streaming=True, sources=socket))
    assert "'lines'" in caught.value.headline
    with DAG("d", schedule=None), pytest.raises(ConfigurationError) as caught:
        CheckpointedPipeline(spec(sources=socket))
    assert "'lines'" in caught.value.headline
    monkeypatch.setenv("AIRFLOW__AIRFLOW_FT__CHECKPOINTING", '{"mode": "AT_MOST_ONCE"}')
    with DAG("d", schedule=None):
        CheckpointedPipeline(spec(streaming=True, sources=socket))
    with DAG("d", schedule=None), pytest.raises(ConfigurationError) as caught:
        CheckpointedPipeline(spec(streaming=True))
    assert "'files'" in caught.value.headline


def test_a_task_that_is_ended_restarts_nothing() -> None:
    operator = StreamingPipelineOperator(task_id="stream", spec=spec(streaming=True))
    why = operator._why_stop(lambda: "")
    assert why() == ""
    operator.on_kill()
    with pytest.raises(AirflowException) as ended:
        why()
    assert ended.value.args == (KILLED,)


@pytest.mark.parametrize(
    "error", [AirflowRuntimeError(ErrorResponse(error=ErrorType.API_SERVER_ERROR)), OSError("pipe")]
)
def test_a_stream_continues_while_the_pause_state_is_unknown(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def is_paused(_: str) -> bool:
        raise error

    monkeypatch.setattr(stream, "is_paused", is_paused)
    monkeypatch.setattr(stream, "_LOOK_SECONDS", 0.0)
    paused = stream.Paused("d")
    assert paused() == ""
    monkeypatch.setattr(stream, "is_paused", lambda _: True)
    assert paused() == "the DAG d is paused"


@pytest.mark.parametrize(
    ("dag", "given", "argument"),
    [
        ({}, {"execution_timeout": timedelta(hours=1)}, "execution_timeout"),
        ({"default_args": {"execution_timeout": timedelta(hours=1)}}, {}, "execution_timeout"),
        ({"dagrun_timeout": timedelta(hours=1)}, {}, "dagrun_timeout"),
    ],
)
def test_airflow_timeouts_that_would_end_a_stream_are_refused(
    dag: dict[str, Any], given: dict[str, Any], argument: str
) -> None:
    with DAG("d", schedule=None, **dag):
        with raises(ConfigurationError, "arguments_conflict", argument=argument):
            CheckpointedPipeline(spec(streaming=True), **given)
        CheckpointedPipeline(spec(pipeline="scheduled"), **given)


@pytest.mark.parametrize("argument", ["execution_timeout", "dagrun_timeout"])
def test_operators_that_are_used_one_by_one_refuse_them_too(argument: str) -> None:
    hour = timedelta(hours=1)
    of_dag = {argument: hour} if argument == "dagrun_timeout" else {"default_args": {argument: hour}}
    with DAG("d", schedule=None, **of_dag):  # type: ignore[arg-type]
        with raises(ConfigurationError, "arguments_conflict", argument=argument):
            StreamingPipelineOperator(task_id="stream", spec=spec(streaming=True))
        with raises(ConfigurationError, "arguments_conflict", argument=argument):
            StreamGroupOperator(task_id="streams", streams=[spec(streaming=True)])


def test_a_stream_may_be_exempt_from_a_time_out_of_its_dag() -> None:
    with DAG("d", schedule=None, default_args={"execution_timeout": timedelta(hours=1)}) as dag:
        CheckpointedPipeline(spec(streaming=True), execution_timeout=None)
    assert dag.tasks[0].execution_timeout is None
