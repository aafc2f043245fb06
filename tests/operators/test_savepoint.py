"""Operators for savepoints, `from_savepoint`, and the trigger form that both go by."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jinja2
import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_ft import (
    CheckpointedPipeline,
    CheckpointingMode,
    DisposeSavepointOperator,
    FromSavepoint,
    RestoreSavepointOperator,
    SocketSource,
    StopStreamOperator,
    TriggerSavepointOperator,
    savepoint_params,
)
from airflow_ft.pipeline import steps as pipeline_steps
from airflow_ft.pipeline.checkpoints import Gate
from airflow_ft.protocol import steps
from airflow_ft.protocol.config import CheckpointConfig
from airflow_ft.protocol.errors import ConfigurationError, StateConflictError, TerminalError
from airflow_ft.protocol.from_savepoint import BEGINNING
from airflow_ft.protocol.lease import Worker
from airflow_ft.protocol.model import RunKey
from airflow_ft.protocol.pipelines import RequestKind
from airflow_ft.sensors.checkpoint import CheckpointSensor
from airflow_ft.sensors.implied import implied_gate
from airflow_ft.sources import KafkaSource
from airflow_ft.spark.savepoints.metadata import read_metadata
from airflow_ft.spark.savepoints.restoring import restore_once
from airflow_ft.spark.savepoints.stopping import stop
from airflow_ft.store import open_store
from tests.operators.declared import spec
from tests.raising import raises
from tests.spark.test_savepoints import PIPELINE, saved_scene
from tests.store.scene import Scene

pytestmark = pytest.mark.airflow
RUN = RunKey("d", "manual__1")


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with saved_scene(tmp_path) as scene:
        yield scene


class _Task:
    """What Airflow tells of a task."""

    dag_id, run_id, task_id, map_index, try_number, max_tries = "d", "manual__1", "t", -1, 1, 0


def _execute(operator: Any, task: Any = None) -> Any:
    return operator.execute({"ti": task or _Task()})


def _rendered(from_savepoint: FromSavepoint, params: dict[str, Any]) -> FromSavepoint | None:
    environment = jinja2.Environment()
    return FromSavepoint.of(
        {n: environment.from_string(str(v)).render(params=params) for n, v in from_savepoint.to_json().items()}
    )


def test_savepoints_are_taken_restored_once_and_deleted(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__AIRFLOW_FT__LEASE_SECONDS", "1")
    more = {"pipeline": PIPELINE, "store": scene.store.url}
    uri = _execute(TriggerSavepointOperator(task_id="s", savepoint_dir=str(tmp_path / "s"), checkpoint="1", **more))
    assert read_metadata(uri).number == 1 and read_metadata(uri).taken_by == "`savepoint 1` by d/manual__1/t"
    before = scene.store.pipeline(PIPELINE).base
    operator = RestoreSavepointOperator(task_id="r", savepoint=FromSavepoint(uri, claim_mode="claim"), **more)
    assert _execute(operator) == {"checkpoint": 1, "later": []}
    base = scene.store.pipeline(PIPELINE).base
    assert base != before and not Path(uri.removeprefix("file://")).exists()
    assert scene.store.run(PIPELINE, RUN).restored_from == uri  # type: ignore[union-attr]
    assert _execute(operator) == {}, "the same run once more"
    assert scene.store.pipeline(PIPELINE).base == base
    with pytest.raises(StateConflictError):
        epoch = scene.store.pipeline(PIPELINE).epoch
        assert base is not None
        scene.store.restore(PIPELINE, epoch, base, "a try that slept", RUN, uri)
    other = _execute(TriggerSavepointOperator(task_id="s", savepoint_dir=str(tmp_path / "s"), **more))
    with raises(AirflowFailException) as caught:
        _execute(DisposeSavepointOperator(task_id="x", path=other, pipeline="another", store=scene.store.url))
    assert caught.error is not None and f"of pipeline {PIPELINE}" in caught.error.headline
    dispose = DisposeSavepointOperator(task_id="x", path=other, **more)
    _execute(dispose)
    assert not Path(other.removeprefix("file://")).exists()
    _execute(dispose)


def test_a_run_that_restores_is_not_one_that_stages(scene: Scene, tmp_path: Path) -> None:
    """A sensor behind the restore waits for what is published; another savepoint in the same run is refused."""
    more = {"pipeline": PIPELINE, "store": scene.store.url}
    uri = _execute(TriggerSavepointOperator(task_id="s", savepoint_dir=str(tmp_path / "s"), **more))
    before = Gate.published(scene.store, PIPELINE)
    _execute(RestoreSavepointOperator(task_id="r", savepoint=FromSavepoint(uri), **more))
    run: Any = SimpleNamespace(dag_id=RUN.dag_id, run_id=RUN.run_id, run_type="manual", data_interval_end=None)
    assert (
        implied_gate(CheckpointSensor(task_id="c", **more), (PIPELINE, None), {"dag_run": run}, scene.store, PIPELINE)
        == before
    )
    with raises(AirflowException, "already_restored"):
        _execute(RestoreSavepointOperator(task_id="again", savepoint=FromSavepoint(f"{uri}-other"), **more))


def test_a_cleared_restore_delivers_no_rows_again(scene: Scene, tmp_path: Path) -> None:
    """Other runs may have delivered since it failed."""
    more = {"pipeline": PIPELINE, "store": scene.store.url}
    uri = _execute(TriggerSavepointOperator(task_id="s", savepoint_dir=str(tmp_path / "s"), **more))
    task = _Task()
    task.try_number, task.max_tries = 3, 3  # one retry, then cleared
    again = FromSavepoint(uri, later="write-again")
    for from_savepoint in (again, FromSavepoint(BEGINNING, later="write-again")):
        operator = RestoreSavepointOperator(task_id="r", savepoint=from_savepoint, retries=1, **more)
        with raises(AirflowException, "action_refused", run="d/manual__1"):
            _execute(operator, task)
    task.try_number, task.max_tries = 2, 1  # a retry
    assert _execute(RestoreSavepointOperator(task_id="r", savepoint=again, retries=1, **more), task)
    task.try_number, task.max_tries = 3, 3
    assert _execute(RestoreSavepointOperator(task_id="r", savepoint=again, retries=1, **more), task) == {}, "it has"


def test_a_run_that_dies_behind_the_write_does_not_restore_again(scene: Scene, tmp_path: Path) -> None:
    """`restore_once` of another run does; what a run has restored survives what it stages."""
    uri = _execute(
        TriggerSavepointOperator(task_id="s", pipeline=PIPELINE, store=scene.store.url, savepoint_dir=str(tmp_path))
    )

    def next_run(run: RunKey) -> Any:
        worker = Worker("", 1)
        return restore_once(
            scene.store, FromSavepoint(uri), PIPELINE, run, no_participant, worker, wal_root="", lease_seconds=0.0
        )

    first = next_run(RUN)
    scene.take()
    scene.store.begin_stage(PIPELINE, scene.epoch, RUN)
    scene.store.release_lease(PIPELINE, "worker")
    assert first.position == scene.store.pipeline(PIPELINE).base
    assert next_run(RUN) is None
    assert next_run(RunKey("d", "manual__2")).position != first.position


def test_a_full_refresh_happens_once_even_on_an_empty_pipeline(tmp_path: Path) -> None:
    """Its next try would be refused, or have it all twice: what there is by then it has delivered itself."""
    with closing(open_store(f"sqlite:///{tmp_path}/ft.db")) as store:
        scene = Scene(store)

        def next_run() -> Any:
            from_savepoint, worker = FromSavepoint(BEGINNING), Worker("", 1)
            return restore_once(
                store, from_savepoint, PIPELINE, RUN, no_participant, worker, wal_root="", lease_seconds=0.0
            )

        first = next_run()
        assert first is not None and first.position is None and store.pipeline(PIPELINE).base is None
        scene.take()
        scene.complete(scene.stage(1)[0])
        store.release_lease(PIPELINE, "worker")
        assert next_run() is None


def test_the_savepoint_form_holds_every_option_of_a_restore(tmp_path: Path) -> None:
    params = savepoint_params()
    defaults = {name: param.value for name, param in params.items()}
    from_savepoint = _rendered(FromSavepoint.from_params(), defaults)
    assert from_savepoint is not None and not from_savepoint.is_given and not from_savepoint.may_leave_state
    from_savepoint = _rendered(FromSavepoint.from_params(), {})
    assert from_savepoint is not None and not from_savepoint.is_given, "a DAG without the params"
    form = {"savepoint": "/s", "savepoint_later": "write-again", "savepoint_claim_mode": "CLAIM"}
    from_savepoint = _rendered(FromSavepoint.from_params(), {**form, "allow_non_restored_state": True})
    assert (
        from_savepoint is not None
        and from_savepoint.is_given
        and from_savepoint.may_leave_state
        and not from_savepoint.renames
    )
    from_savepoint = _rendered(FromSavepoint.from_params(), {**form, "savepoint_rename": True})
    assert from_savepoint is not None and from_savepoint.renames and not from_savepoint.may_leave_state
    from_savepoint = _rendered(FromSavepoint.from_params(), {**form, "allow_changed_state": True})
    assert from_savepoint is not None and from_savepoint.may_change_state and not from_savepoint.may_leave_state
    assert (from_savepoint.path, from_savepoint.later, from_savepoint.claim_mode) == ("/s", "write-again", "CLAIM")
    assert json.dumps([param.dump() for param in params.values()])


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"path": "/s", "later": "perhaps"}, "'perhaps'"),
        ({"path": "/s", "claim_mode": "LEGACY"}, "LEGACY"),
        ({"path": "/s", "allow_non_restored_state": "maybe"}, "allow_non_restored_state"),
        ({"path": "/s", "rename": "perhaps"}, "rename"),
        ({"path": "/s", "allow_changed_state": "perhaps"}, "allow_changed_state"),
        ({"later": "refuse"}, "from_savepoint"),
        (17, "from_savepoint"),
    ],
)
def test_what_is_no_savepoint_is_refused_when_the_dag_is_parsed(given: Any, name: str) -> None:
    with DAG("d", schedule=None), pytest.raises(ConfigurationError) as caught:
        CheckpointedPipeline(spec(from_savepoint=given))
    assert name in caught.value.headline


def test_a_mode_that_begins_anew_takes_no_savepoint() -> None:
    socket = {"lines": SocketSource(host="localhost", port=9999)}
    config = CheckpointConfig(mode=CheckpointingMode.AT_MOST_ONCE)
    with pytest.raises(ConfigurationError):
        spec(streaming=True, from_savepoint="/s", checkpointing=config, sources=socket)


@pytest.mark.parametrize("streaming", [False, True])
def test_a_pipeline_goes_on_from_what_was_rendered(
    streaming: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a scheduled one it is `recover` that does it, and its form is not part of what a checkpoint was made with."""
    with DAG("d", schedule=None, params=savepoint_params()) as dag:
        CheckpointedPipeline(spec(streaming=streaming, from_savepoint=FromSavepoint.from_params()))
    task = dag.tasks[0]
    assert task.task_id == ("orders.stream" if streaming else "orders.recover")
    assert "from_savepoint" in task.template_fields
    task.render_template_fields({"params": {"savepoint": "/s"}, "dag": dag, "ti": _Task(), "task": task})
    rendered = task.rendered()
    assert rendered.savepoint == FromSavepoint(
        "/s", allow_non_restored_state="False", rename="False", allow_changed_state="False"
    )
    assert "from_savepoint" not in rendered.to_json()
    seen: list[Any] = []
    monkeypatch.setattr("airflow_ft.spark.savepoints.restoring.restore_once", lambda *given, **_: seen.append(given[1]))

    def next_run(declared: Any) -> None:
        with closing(open_store(f"sqlite:///{tmp_path}/ft.db")) as store:
            run = steps.Context(store, PIPELINE, RUN, no_participant, Worker("", 1))
            pipeline_steps.recover(run, declared.savepoint, declared.sources, "/wal")

    next_run(rendered)
    assert seen == [rendered.savepoint]
    next_run(spec())
    assert len(seen) == 1
    for start in ("latest", "group_offsets"):
        sources = {"orders": KafkaSource(topics=["orders"], starting_offsets=start, group_id="shop")}
        refused = spec(sources=sources, from_savepoint=BEGINNING)
        with pytest.raises(ConfigurationError) as caught:
            next_run(refused)
        assert "'orders'" in caught.value.headline and f"'{start}'" in caught.value.headline
    next_run(spec(from_savepoint=BEGINNING))
    assert seen[1:] == [FromSavepoint(BEGINNING)]


def test_a_stop_is_answered_by_the_stream_or_by_nobody(scene: Scene, tmp_path: Path) -> None:
    operator = StopStreamOperator(task_id="s", pipeline=PIPELINE, store=scene.store.url, savepoint=True)
    operator.savepoint_dir = str(tmp_path / "s")
    assert "no process works on" in _execute(operator) and "savepoint of checkpoint 1" in _execute(operator)
    with raises(StateConflictError, "action_refused", pipeline=PIPELINE):
        stop(scene.store, PIPELINE, "a test", drain=True)
    with raises(ConfigurationError, "arguments_conflict", argument="drain"):
        stop(scene.store, PIPELINE, "a test", drain=True, at_once=True)
    scene.take()
    assert stop(scene.store, PIPELINE, "a test", drain=True, savepoint_dir="/x") == f"{PIPELINE} was asked to stop"
    with raises(StateConflictError, "stop_timeout", seconds=0.01):
        stop(scene.store, PIPELINE, "a test", wait=0.01)
    first, _ = scene.store.open_requests(PIPELINE)
    assert first.kind is RequestKind.STOP
    assert first.arguments == {"at_once": False, "drain": True, "savepoint": "/x"}
    with raises(AirflowFailException) as unknown:
        _execute(StopStreamOperator(task_id="s", pipeline="nothing", store=scene.store.url))
    assert unknown.error is not None and "'nothing'" in unknown.error.headline


def test_a_stop_does_not_wait_for_a_run_that_is_over(scene: Scene, tmp_path: Path) -> None:
    scene.store.enter_turn(PIPELINE, RUN, None)

    def stopped(is_over: bool, **how: Any) -> str:
        return stop(scene.store, PIPELINE, "a test", is_over=lambda run: is_over and run == RUN, **how)

    assert "savepoint of checkpoint 1" in stopped(True, savepoint_dir=str(tmp_path / "s"))
    with raises(StateConflictError, "action_refused", pipeline=PIPELINE):
        stopped(True, drain=True)
    assert not scene.store.open_requests(PIPELINE)
    assert stopped(False, first_try=1) == f"{PIPELINE} was asked to stop", "it waits for its restart"
    assert "no process works" in stopped(True, first_try=1, is_retry=True)
    assert not scene.store.open_requests(PIPELINE), "a cleared stream would obey it"
    stopped(False, first_try=1)
    assert len(scene.store.open_requests(PIPELINE)) == 1, "the same run, made again, asks again"


@pytest.mark.parametrize("missing", [["savepoint"], ["drain"], ["drain", "savepoint"]])
def test_a_stop_fails_if_the_answer_lacks_a_part(scene: Scene, tmp_path: Path, missing: list[str]) -> None:
    scene.take()
    how: dict[str, Any] = {"savepoint_dir": str(tmp_path), "drain": True, "first_try": 1}
    stop(scene.store, PIPELINE, "a test", **how)
    [request] = scene.store.open_requests(PIPELINE)
    scene.store.answer(PIPELINE, request.id, "stopped; the savepoint failed", missing=missing)
    with raises(TerminalError, "stop_incomplete", pipeline=PIPELINE, missing=missing) as caught:
        stop(scene.store, PIPELINE, "a test", is_retry=True, **how)
    folder = f" --dir {tmp_path}" if "savepoint" in missing else ""
    assert f"airflow ft stop {PIPELINE} --{' --'.join(missing)}{folder}`" in caught.value.remedy


def test_a_retried_stop_leaves_the_next_run_alone(scene: Scene) -> None:
    operator = StopStreamOperator(task_id="s", pipeline=PIPELINE, store=scene.store.url, wait=0, retries=2)
    task = _Task()
    task.max_tries = 2
    scene.take()
    assert _execute(operator, task) == f"{PIPELINE} was asked to stop"
    task.try_number = 2
    _execute(operator, task)
    [request] = scene.store.open_requests(PIPELINE)
    scene.store.answer(PIPELINE, request.id, "stopped")
    task.try_number = 3
    assert _execute(operator, task) == "stopped"
    assert not scene.store.open_requests(PIPELINE)
    task.try_number, task.max_tries = 4, 5  # as Airflow clears a task
    _execute(operator, task)
    assert len(scene.store.open_requests(PIPELINE)) == 1


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (StopStreamOperator, {"drain": "{{ params.drain }}"}),
        (StopStreamOperator, {"drain": "False"}),
        (StopStreamOperator, {"savepoint": "/savepoints"}),
        (StopStreamOperator, {"wait": "60"}),
        (StopStreamOperator, {"wait": -1}),
        (DisposeSavepointOperator, {"path": " "}),
        (TriggerSavepointOperator, {"checkpoint": 3.7}),
        (TriggerSavepointOperator, {"checkpoint": True}),
        (TriggerSavepointOperator, {"checkpoint": "newest"}),
        (TriggerSavepointOperator, {"checkpoint": -1}),
    ],
)
def test_what_an_act_would_take_for_another_wish_is_refused(kind: Any, given: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        kind(task_id="s", pipeline=PIPELINE, **given)
    assert next(iter(given)) in caught.value.headline
    TriggerSavepointOperator(task_id="s", pipeline=PIPELINE, checkpoint="{{ params.checkpoint }}")


def no_participant(_: Any) -> Any:
    raise AssertionError("no sink is asked")
