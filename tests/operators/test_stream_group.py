"""The operator of a group of streams; nothing is run."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_ft import CheckpointedPipeline, FixedDelay, NoRestart, SocketSource, StreamGroupOperator
from airflow_ft.operators.stream import KILLED
from airflow_ft.operators.stream_group import _first_try, _raise_failures
from airflow_ft.pipeline import steps as pipeline_steps
from airflow_ft.protocol.errors import ConfigurationError, FencedError, JobError, NotDeliveredError, StageError
from airflow_ft.protocol.lease import new_epoch
from airflow_ft.protocol.model import RunKey
from airflow_ft.protocol.pipelines import RequestKind
from airflow_ft.spark.request import StageResult
from airflow_ft.spark.task.stage import Staging
from airflow_ft.spark.task.stream import StreamEnd
from airflow_ft.store.events import EventKind
from tests.operators.declared import spec
from tests.protocol.systems import NoArchive, Systems
from tests.protocol.world import PIPELINE, World
from tests.raising import raises
from tests.spark.test_stage_step import FakeDriver, make, publish

pytestmark = pytest.mark.airflow


def stream(pipeline: str, **changes: Any) -> Any:
    return spec(pipeline=pipeline, streaming=True, **changes)


def group(*streams: Any, **arguments: Any) -> StreamGroupOperator:
    with DAG("d", schedule=None, **arguments):
        return StreamGroupOperator(task_id="small", streams=streams)


def test_a_group_is_one_task_with_the_assets_of_all_its_streams() -> None:
    task = group(stream("orders"), stream("returns"))
    assert (task.retries, task.retry_delay) == (5000, timedelta(seconds=3))
    names = [getattr(outlet, "uri", "") for outlet in task.outlets]
    assert {"airflow-ft://orders/", "airflow-ft://returns/"} <= set(names)
    assert task.pipelines == ("orders", "returns")
    assert [each["pipeline"] for each in task.streams] == ["orders", "returns"]
    assert group(stream("orders"), default_args={"retries": 7}).retries == 7


@pytest.mark.parametrize(
    ("name", "one", "other"),
    [
        ("spark.driver.memory", {"spark_conf": {"spark.driver.memory": "2g"}}, {}),
        ("spark.driver.memory", {}, {"spark_conf": {"spark.driver.memory": "2g"}}),
        ("spark.sql.extensions", {"spark_conf": {"spark.sql.extensions": "a.B"}}, {}),
        ("spark.sql.codegen.cache.maxEntries", {"spark_conf": {"spark.sql.codegen.cache.maxEntries": "9"}}, {}),
        ("spark_master", {"spark_master": "local[1]"}, {}),
        ("jars", {"jars": ["/a.jar"]}, {}),
        ("packages", {"packages": ["a:b:1"]}, {}),
        ("wal_root", {"wal_root": "s3://one@bucket/ft"}, {"wal_root": "s3://two@bucket/ft"}),
    ],
)
def test_what_a_jvm_has_once_must_be_equal(name: str, one: dict[str, Any], other: dict[str, Any]) -> None:
    with raises(ConfigurationError, "group_unequal", setting=name, pipelines=["b"]):
        group(stream("a", **one), stream("b", **other))


def test_settings_of_a_session_may_differ() -> None:
    group(stream("a", spark_conf={"spark.sql.shuffle.partitions": "2"}), stream("b"))


def test_streams_that_cannot_share_a_driver_are_refused() -> None:
    with raises(ConfigurationError, "arguments_conflict", argument="streaming"):
        group(spec(pipeline="a"))
    with raises(ConfigurationError, "arguments_conflict", argument="keep_session"):
        group(stream("a", keep_session=timedelta(minutes=1)))
    with raises(ConfigurationError, "pipeline_duplicated"):
        group(stream("a"), stream("a"))
    with raises(ConfigurationError, "argument_missing", argument="streams"):
        group()
    socket = {"checkpointing": {"mode": "AT_MOST_ONCE"}, "sources": {"l": SocketSource(host="localhost", port=9999)}}
    with raises(ConfigurationError, "arguments_conflict", source="l"):
        group(stream("a", **socket), stream("b", **socket))


def test_its_driver_has_a_restart_strategy() -> None:
    with DAG("d", schedule=None):
        task = StreamGroupOperator(task_id="small", streams=[stream("a")], restart=FixedDelay(attempts=2))
    assert str(task.restart) == "2 times, 1 s apart"
    with DAG("d", schedule=None), raises(ConfigurationError, "argument_invalid", argument="restart"):
        StreamGroupOperator(task_id="small", streams=[stream("a")], restart=2)


def test_a_pipeline_has_one_task_in_its_dag() -> None:
    with DAG("d", schedule=None):
        StreamGroupOperator(task_id="small", streams=[stream("a"), stream("b")])
        with raises(ConfigurationError, "pipeline_duplicated"):
            CheckpointedPipeline(stream("b"))
    with DAG("d", schedule=None):
        CheckpointedPipeline(stream("b"))
        with raises(ConfigurationError, "pipeline_duplicated"):
            StreamGroupOperator(task_id="small", streams=[stream("a"), stream("b")])


def test_the_task_fails_for_good_if_every_failure_is_terminal() -> None:
    _raise_failures({})
    with raises(NotDeliveredError, "group_failed", pipelines=["a"]):
        _raise_failures({"a": JobError("it is bad.")})
    with raises(StageError, "group_failed", pipelines=["a", "b"]):
        _raise_failures({"a": JobError("it is bad."), "b": FencedError("another process took epoch 2.")})


@pytest.mark.parametrize(
    ("try_number", "max_tries", "is_retry"),
    [(1, 1000, False), (2, 1000, True), (5, 1004, False), (6, 1004, True), (1, 0, False)],
    ids=["first", "retry", "cleared at try 4", "retry after that", "without retries"],
)
def test_a_cleared_task_is_no_retry_though_its_run_has_not_ended(
    try_number: int, max_tries: int, is_retry: bool
) -> None:
    context: Any = {"ti": SimpleNamespace(try_number=try_number, max_tries=max_tries)}
    retries = min(max_tries, 1000)
    assert _first_try(context, retries) == (max_tries - retries + 1 if is_retry else None)


def prepared(world: World, patch: pytest.MonkeyPatch, folder: Path) -> None:
    """Let a group run without Spark, with the world's sinks and decision log."""
    overlap = (world.delivery, world.config, lambda _: None, NoArchive())
    patch.setattr("airflow_ft.operators.stream_group.report_lineage", lambda *_: None)
    patch.setattr("airflow_ft.operators.base.participant_factory", lambda: Systems(world.systems))
    patch.setattr("airflow_ft.operators.stream.is_paused", lambda _: False)
    patch.setattr(pipeline_steps, "delivering", lambda *_: overlap)
    patch.setenv("AIRFLOW__AIRFLOW_FT__WAL_ROOT", str(folder))
    patch.setenv("AIRFLOW__AIRFLOW_FT__STORE", f"sqlite:///{folder}/ft.db")


def run_of_airflow(run_id: str, try_number: int = 1) -> Any:
    ti = SimpleNamespace(dag_id="d", run_id=run_id, task_id="small", map_index=-1, try_number=try_number, max_tries=1)
    return {"ti": ti}


def test_the_next_try_starts_streams_of_a_task_that_was_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their driver was killed with the task: no stream has failed."""
    world, killed = World(tmp_path), True
    prepared(world, monkeypatch, tmp_path)
    task = group(stream(PIPELINE, restart=NoRestart()), default_args={"retries": 1})

    def launch(request: Any, *_: Any, on_start: Any, **__: Any) -> StageResult:
        on_start(FakeDriver())
        if killed:
            task.on_kill()
            raise StageError("the driver was killed.")
        publish(world, request.epoch)
        world.store.ask(PIPELINE, RequestKind.STOP, {}, "a test")
        return StageResult((1,), {}, None, complete=False)

    monkeypatch.setattr("airflow_ft.spark.task.stage.run_stage", launch)
    monkeypatch.setattr(pipeline_steps, "staging", lambda *_: Staging(make_request=make, on_line=lambda _: None))
    monkeypatch.setattr("airflow_ft.operators.stream_group.emit", lambda *_: None)
    with pytest.raises(AirflowException, check=lambda found: found.args == (KILLED,)):
        task.execute(run_of_airflow("run-1"))
    assert world.store.pipeline(PIPELINE).turn == RunKey("d", "run-1")
    assert EventKind.FAILED not in {event.kind for event in world.store.events(PIPELINE)}
    killed, task._killed = False, False
    assert task.execute(run_of_airflow("run-1", 2))[PIPELINE]["numbers"] == [1]


def test_events_of_a_failed_group_come_with_the_next_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow sends no events of a task that has failed."""
    world, emitted, is_bad = World(tmp_path), [], True

    def stream_step(run: Any, *_: Any, **__: Any) -> StreamEnd:
        if run.pipeline == "returns" and is_bad:
            raise JobError("the value 15 is bad")
        if run.pipeline == PIPELINE:
            world.stage(int(is_bad), run.run)
        else:
            with new_epoch(run.store, run.pipeline, run.worker, "a test", 5.0) as (epoch, _):
                run.store.begin_stage(run.pipeline, epoch, run.run)
                run.store.end_stage(run.pipeline, epoch, run.run, None)
        return StreamEnd(0)

    def noted(stream: Any, context: Any, run: Any, confirmed: Any) -> None:
        emitted.append((run.run.run_id, stream.pipeline, list(confirmed.numbers.newest)))

    prepared(world, monkeypatch, tmp_path)
    monkeypatch.setattr("airflow_ft.spark.task.stream.stream_step", stream_step)
    monkeypatch.setattr("airflow_ft.operators.stream_group.emit", noted)
    monkeypatch.setattr(pipeline_steps, "staging", lambda *_: None)

    def execute(run_id: str) -> Any:
        task = group(stream(PIPELINE), stream("returns"), default_args={"retries": 0})
        return task.execute(run_of_airflow(run_id))

    with raises(AirflowFailException):
        execute("run-1")
    assert world.systems["db"].rows == [1] and not emitted
    is_bad = False
    assert execute("run-2")[PIPELINE]["numbers"] == [1]
    assert sorted(emitted) == [("run-2", PIPELINE, [1]), ("run-2", "returns", [])]


def test_commands_find_each_stream() -> None:
    task = group(stream("a"), stream("b"), params={"x": 1})
    found = task.operator_of("b")
    assert (found.pipeline, found.dag_id, dict(found.dag.params)) == ("b", "d", {"x": 1})
