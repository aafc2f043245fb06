"""Every act of `airflow ft` as a task: what a triggered run of the DAG does, says, refuses, and signs."""

from __future__ import annotations

import copy
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG, Param
from airflow.sdk.exceptions import AirflowException, AirflowFailException, ParamValidationError
from structlog.testing import capture_logs

from airflow_ft import MaintenanceOperator, SqliteSink, maintenance_dag
from airflow_ft.pipeline.actions.names import ACTIONS, READING, SETTLING
from airflow_ft.protocol import steps
from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import ConfigurationError, FoundProblemsError
from airflow_ft.protocol.from_savepoint import Later
from airflow_ft.protocol.lease import Worker, new_epoch
from airflow_ft.protocol.model import AfterAbort, CheckpointState
from airflow_ft.protocol.pipelines import HaltReason, PipelineStatus
from airflow_ft.sinks import registry
from airflow_ft.spark.savepoints.metadata import read_metadata
from airflow_ft.store import open_store
from airflow_ft.wal.local import local_path
from tests.integration.real_world import RealWorld, expected
from tests.protocol.systems import SYSTEM, Systems
from tests.protocol.world import PIPELINE, World
from tests.raising import raises
from tests.spark.test_savepoints import saved_scene
from tests.store.scene import Scene, a_position

pytestmark = pytest.mark.airflow

ROOT = Path(__file__).parents[2]
S = CheckpointState


@dataclass
class Run:
    """A run of the DAG, as Airflow tells of it; nobody has triggered one of a schedule."""

    triggering_user_name: str | None = "ada"


@dataclass
class Task:
    """A task instance, as Airflow tells of it."""

    run_id: str = "manual__1"
    try_number: int = 1
    max_tries = 0
    dag_id = "airflow_ft_maintenance"
    task_id = "action"
    map_index: int = -1


@dataclass
class Triggered:
    """What came of a run: its result, and the lines of its log."""

    result: Any
    log: list[str]

    def __contains__(self, words: str) -> bool:
        return any(words in line for line in self.log)


def trigger(action: str, **said: Any) -> Triggered:
    """What comes of a `run`."""
    with capture_logs() as lines:
        result = run(action, **said)
    return Triggered(result, [str(line["event"]) for line in lines])


def run(
    action: str,
    *,
    dag: DAG | None = None,
    user: str | None = "ada",
    tries: int = 1,
    run_id: str = "manual__1",
    **conf: Any,
) -> Any:
    """Runs the DAG's task with these parameters, which are validated and rendered as Airflow does; its result."""
    dag = dag or maintenance_dag()
    params = copy.deepcopy(dag.params)
    params.update({"pipeline": PIPELINE, "action": action, **conf})
    task: Any = copy.copy(dag.get_task("action"))
    context = {"ti": Task(run_id, tries), "dag_run": Run(user), "dag": dag, "task": task, "params": params.validate()}
    task.render_template_fields(context)
    return task.execute(context)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A pipeline with two systems, `db` and `log`."""
    world = World(tmp_path)
    monkeypatch.setenv("AIRFLOW__AIRFLOW_FT__STORE", f"sqlite:///{tmp_path}/ft.db")
    monkeypatch.setenv("AIRFLOW__AIRFLOW_FT__WAL_ROOT", str(tmp_path))
    monkeypatch.setattr("airflow_ft.operators.acting.participant_factory", lambda: Systems(world.systems))
    monkeypatch.setattr("airflow_ft.pipeline.settings.lease_seconds", lambda: 0.03)
    entry = EntryPoint(SYSTEM.kind, "tests.protocol.systems:SYSTEM", registry.GROUP)
    monkeypatch.setattr(registry, "_ours", lambda: {SYSTEM.kind: entry})
    with closing(world.store):
        yield world


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    """A pipeline with Spark's state, of which checkpoint 1 is confirmed."""
    monkeypatch.setenv("AIRFLOW__AIRFLOW_FT__STORE", f"sqlite:///{tmp_path}/ft.db")
    monkeypatch.setenv("AIRFLOW__AIRFLOW_FT__SAVEPOINT_DIR", str(tmp_path / "savepoints"))
    monkeypatch.setattr("airflow_ft.pipeline.settings.lease_seconds", lambda: 0.03)
    with saved_scene(tmp_path) as scene:
        yield scene


def signed(world: World | Scene) -> str:
    """The event log."""
    return "\n".join(event.message for event in world.store.events(PIPELINE, limit=1000))


def decided(world: World) -> None:
    """Checkpoint 1 is in `db`, and not in `log`."""
    world.prepared()
    steps.commit_step(world.context(), "db")


# --- the DAG ---------------------------------------------------------------------------------------------------------


def test_the_example_dag_has_every_act_and_does_none_by_default() -> None:
    from airflow_ft.example_dags.airflow_ft_maintenance import dag

    assert dag.dag_id == "airflow_ft_maintenance" and dag.schedule is None and dag.task_ids == ["action"]
    action = dag.params.get_param("action")
    assert action.schema["enum"] == list(ACTIONS) and action.value is None
    assert set(action.schema["values_display"]) == set(ACTIONS)
    assert set(dag.params) >= {"pipeline", "checkpoint", "rewind", "reason", "folder", "allow_repeated"}
    with pytest.raises(ParamValidationError):
        copy.deepcopy(dag.params).validate()
    task = dag.get_task("action")
    assert task.retries == 0 and dag.doc_md is not None and "maintenance_dag(" in dag.doc_md


def test_a_maintenance_dag_offers_only_the_actions_it_was_given() -> None:
    dag = maintenance_dag(
        "look", ["verify", "doctor", "verify"], default_args={"retries": 7, "owner": "ops"}, params={"folder": "/mnt"}
    )
    assert dag.params.get_param("action").schema["enum"] == ["verify", "doctor"]
    assert dag.params["folder"] == "/mnt"
    task = dag.get_task("action")
    assert (task.retries, task.owner) == (0, "ops"), "what a person has asked for once is not tried again"
    with pytest.raises(ParamValidationError):
        trigger("resume", dag=dag)
    assert maintenance_dag("one", ["recover"]).params["action"] == "recover"


def test_a_nightly_run_may_say_its_parameters_itself(world: World) -> None:
    world.prepared()
    params = {"pipeline": PIPELINE, "action": "recover"}
    dag = maintenance_dag("nightly", ["recover", "verify"], schedule="@daily", params=params)
    assert dag.params.get_param("action").schema["enum"] == ["recover", "verify"]
    with pytest.raises(ParamValidationError):
        maintenance_dag("nightly", ["recover"], params={"action": "verify"})
    assert "checkpoint 1 was in doubt and is now COMPLETED" in trigger("recover", dag=dag, user=None)


@pytest.mark.parametrize(
    ("actions", "name", "instead"),
    [
        (["reset-state"], "'reset-state'", "'reset_state'"),
        (["verify", "dead-leter"], "'dead-leter'", "'dead_letter'"),
        (["adopt"], "'adopt'", "recover, "),
        ([], "actions", ""),
        ("verify", "'verify'", '["verify"]'),
        ([1], "actions[0]", "text"),
    ],
)
def test_unknown_acts_are_refused_when_the_dag_is_parsed(actions: Any, name: str, instead: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        maintenance_dag("some", actions)
    assert name in caught.value.headline and instead in caught.value.remedy


def test_a_wrong_operator_argument_is_refused_at_parse_time() -> None:
    with pytest.raises(ConfigurationError) as caught:
        MaintenanceOperator(task_id="t", pipeline="orders", action="rewnd")
    assert "'rewind'" in caught.value.remedy
    with raises(ConfigurationError, "action_refused", action="rewind", actions=["verify"]):
        MaintenanceOperator(task_id="t", pipeline="orders", action="rewind", actions=["verify"])
    with pytest.raises(ConfigurationError) as caught:
        MaintenanceOperator(task_id="t", pipeline="the orders", action="rewind")
    assert "'the orders'" in caught.value.headline


def test_a_parameter_that_the_form_lacks_is_refused(world: World) -> None:
    world.store.register(PIPELINE)
    world.store.halt(PIPELINE, HaltReason.TOKEN_LOST, "the token is gone")
    with raises(AirflowFailException, "argument_unknown", argument="raeson", close="reason"):
        run("resume", raeson="it is back")
    assert world.store.pipeline(PIPELINE).status is PipelineStatus.HALTED
    own = maintenance_dag("own", params={"ticket": Param("", type="string")})
    run("resume", dag=own, ticket="OPS-1")
    assert world.store.pipeline(PIPELINE).status is PipelineStatus.ACTIVE


def test_an_action_of_another_dag_is_refused_despite_the_form(world: World) -> None:
    """An enum of the form alone would be no permission: somebody may have changed the DAG's params."""
    world.store.register(PIPELINE)
    dag = maintenance_dag("look", ["verify"], params={"action": Param("rewind")})
    with raises(AirflowFailException, "action_refused", action="rewind"):
        trigger("rewind", dag=dag)


def test_a_mapped_task_acts_on_each_pipeline(world: World) -> None:
    world.prepared()
    world.store.register("payments")
    with DAG("d", schedule=None):
        mapped = MaintenanceOperator.partial(task_id="t", action="recover").expand(pipeline=[PIPELINE, "payments"])
    events = []
    for index, name in enumerate((PIPELINE, "payments")):
        task: Any = mapped.unmap({"pipeline": name})
        with capture_logs() as lines:
            task.execute({"ti": Task(map_index=index), "dag_run": Run()})
        events += [line["event"] for line in lines]
    assert "checkpoint 1 was in doubt and is now COMPLETED" in events and "nothing is in doubt" in events


# --- what an act lacks, or would pass over ---------------------------------------------------------------------------


@pytest.mark.parametrize("action", sorted(SETTLING.keys() & ACTIONS.keys()))
def test_an_act_on_one_checkpoint_needs_its_number(world: World, action: str) -> None:
    world.prepared()
    with raises(AirflowFailException) as caught:
        trigger(action)
    assert caught.error is not None and action in caught.error.headline


@pytest.mark.parametrize("action", sorted(set(ACTIONS) - set(SETTLING) - {"verify", "savepoint"}))
def test_a_pipeline_action_refuses_a_checkpoint_number(world: World, action: str) -> None:
    world.prepared()
    with raises(AirflowFailException) as caught:
        trigger(action, checkpoint=1)
    assert caught.error is not None and action in caught.error.headline and "1" in caught.error.headline
    assert world.store.checkpoint(PIPELINE, 1).state is S.PREPARED


def test_other_parameters_are_not_passed_over_either(world: World) -> None:
    world.prepared()
    passed_over: list[tuple[str, dict[str, Any]]] = [
        ("commit", {"checkpoint": 1, "rewind": True}),
        ("resume", {"folder": "/elsewhere"}),
        ("resume", {"allow_repeated": True}),
        ("recover", {"halt_reason": "TOKEN_LOST"}),
        ("recover", {"allow_repeated": True}),
        ("rewind", {"savepoint": "/a/savepoint"}),
        ("rewind", {"forget_sources": "files"}),
    ]
    for action, given in passed_over:
        name = list(given)[-1]
        with raises(AirflowFailException) as caught:
            trigger(action, **given)
        assert caught.error is not None and name in caught.error.headline and action in caught.error.headline
    for action in ("restore", "dispose"):
        with raises(AirflowFailException) as caught:
            trigger(action)
        assert caught.error is not None and "savepoint" in caught.error.headline
    with raises(AirflowFailException) as caught:
        trigger("commit", checkpoint=9)
    assert caught.error is not None and caught.error.checkpoint == 9
    assert world.store.checkpoint(PIPELINE, 1).state is S.PREPARED


@pytest.mark.parametrize("action", sorted(set(ACTIONS) - {"doctor", "restore", "dispose"}))
def test_an_unknown_pipeline_is_named_with_the_known_ones(world: World, action: str) -> None:
    world.store.register(PIPELINE)
    number = {"checkpoint": 1} if action in SETTLING else {}
    with raises(AirflowFailException) as caught:
        trigger(action, pipeline="nothing", **number)
    assert caught.error is not None
    assert "'nothing'" in caught.error.headline and PIPELINE in caught.error.remedy


# --- the acts --------------------------------------------------------------------------------------------------------


def test_recover_settles_and_may_be_repeated(world: World) -> None:
    numbers = world.prepared()
    assert "checkpoint 1 was in doubt and is now COMPLETED" in trigger("recover")
    world.check_exactly_once(numbers)
    assert "nothing is in doubt" in trigger("recover", tries=2)
    world.check_exactly_once(numbers)


@pytest.mark.parametrize(
    ("action", "state"), [("commit", S.COMPLETED), ("abort", S.ABORTED), ("quarantine", S.QUARANTINED)]
)
def test_a_checkpoint_in_doubt_is_settled_once_and_signed(world: World, action: str, state: CheckpointState) -> None:
    world.prepared()
    result = trigger(action, checkpoint=1, reason="a test")
    assert world.store.checkpoint(PIPELINE, 1).state is state
    assert "db: it has delivered nothing" in result or "db: it has no marker" in result, result.log
    assert "Checkpoint 1 (PREPARED, 20 rows): " in result and f"checkpoint 1 is {state}" in result
    assert f"`{action} 1` by ada (airflow_ft_maintenance/manual__1/action): a test" in signed(world)
    before = world.store.checkpoint(PIPELINE, 1), {name: list(system.rows) for name, system in world.systems.items()}
    if action == "quarantine":
        assert "checkpoint 1 is QUARANTINED" in trigger(action, checkpoint=1, run_id="manual__2")
    else:
        with raises(AirflowException) as caught:
            trigger(action, checkpoint=1, run_id="manual__2")
        assert caught.error is not None and str(state) in caught.error.headline
    assert (world.store.checkpoint(PIPELINE, 1), {name: s.rows for name, s in world.systems.items()}) == before


@pytest.mark.parametrize(("rewind", "after"), [(False, AfterAbort.CARRIED), (True, AfterAbort.REWOUND)])
def test_an_abort_says_what_becomes_of_the_rows(world: World, rewind: bool, after: AfterAbort) -> None:
    world.prepared()
    assert f"Abort it (its rows: {after})?" in trigger("abort", checkpoint=1, rewind=rewind)
    assert world.store.checkpoint(PIPELINE, 1).after_abort is after


@pytest.mark.parametrize(("action", "state"), [("commit", S.COMPLETED), ("abort", S.ABORTED)])
def test_what_is_in_quarantine_is_released_by_a_decision(world: World, action: str, state: CheckpointState) -> None:
    numbers = world.prepared()
    trigger("quarantine", checkpoint=1)
    with raises(AirflowException, "checkpoint_quarantined", checkpoint=1):
        trigger("recover")
    trigger(action, checkpoint=1)
    assert world.store.checkpoint(PIPELINE, 1).state is state
    if action == "commit":
        world.check_exactly_once(numbers)


def test_refused_rows_are_set_aside_when_a_person_says_so(world: World) -> None:
    decided(world)
    world.systems["log"].declines_in_commit = True
    result = trigger("dead_letter", checkpoint=1, reason="unwanted")
    assert "checkpoint 1 is COMPLETED, 1 row set aside" in result and "file:///dead/1" in result
    assert "unwanted" in signed(world)
    with raises(AirflowException) as caught:
        trigger("dead_letter", checkpoint=1)
    assert caught.error is not None and "COMPLETED" in caught.error.headline


def test_a_lost_token_is_set_and_the_rows_delivered_once(world: World) -> None:
    decided(world)
    world.systems["log"].token_is_gone = True
    with raises(AirflowException, "token_lost"):
        trigger("recover")
    assert world.store.pipeline(PIPELINE).halt_reason is HaltReason.TOKEN_LOST
    result = trigger("redeliver", checkpoint=1)
    assert "are you sure that its rows are not there?" in result and "checkpoint 1 is COMPLETED" in result
    assert world.systems["log"].rows == [1] and world.store.pipeline(PIPELINE).status is PipelineStatus.ACTIVE
    with raises(AirflowException) as caught:
        trigger("redeliver", checkpoint=1)
    assert caught.error is not None and "COMPLETED" in caught.error.headline
    assert world.systems["log"].rows == [1]


def test_a_refused_rewind_of_a_decided_checkpoint_logs_a_remedy(world: World) -> None:
    decided(world)
    with capture_logs() as lines, raises(AirflowException) as caught:
        run("rewind")
    assert caught.error is not None and "COMMITTING" in caught.error.headline
    [remedy] = [line["event"] for line in lines if line["event"].startswith("Fix: ")]
    assert "`airflow ft in-doubt --pipeline orders`" in remedy
    assert world.store.checkpoint(PIPELINE, 1).state is S.COMMITTING


def test_a_repeated_rewind_aborts_undelivered_checkpoints_once(world: World) -> None:
    world.prepared(2)
    assert "the next run starts from the beginning" in trigger("rewind", reason="wrong prices")
    assert [world.store.checkpoint(PIPELINE, n).after_abort for n in (1, 2)] == [AfterAbort.REWOUND] * 2
    assert "`rewind` by ada (airflow_ft_maintenance/manual__1/action): wrong prices" in signed(world)
    assert "the next run starts from the beginning" in trigger("rewind", run_id="manual__2")
    assert not any(system.rows for system in world.systems.values())


def test_a_halted_pipeline_goes_on_in_the_name_of_who_has_asked(world: World) -> None:
    world.store.register(PIPELINE)
    world.store.halt(PIPELINE, HaltReason.TOKEN_LOST, "the token is gone")
    result = trigger("resume", reason="it is back")
    assert "orders is HALTED (TOKEN_LOST): the token is gone" in result and "orders is ACTIVE" in result
    [event] = world.store.events(PIPELINE, limit=1)
    assert event.message.endswith(
        "RESUMED: by ada (airflow_ft_maintenance/manual__1/action): it is back, after TOKEN_LOST"
    )
    assert "orders is not halted" in trigger("resume", run_id="manual__2")


def test_a_halt_reason_without_a_value_is_not_any_reason() -> None:
    """As Jinja renders None with `render_template_as_native_obj`."""
    context: Any = {"ti": Task(), "dag_run": Run()}
    task = MaintenanceOperator(task_id="action", pipeline=PIPELINE, action="resume", reason="{{ x }}")
    task.reason = None  # type: ignore[assignment]
    assert task.asked(context).reason == ""
    task.halt_reason = None  # type: ignore[assignment]
    with raises(ConfigurationError, "argument_invalid", argument="halt_reason"):
        task.asked(context)


def test_resume_refuses_a_halt_that_its_user_did_not_see(world: World) -> None:
    world.store.register(PIPELINE)
    world.store.halt(PIPELINE, HaltReason.HEURISTIC_COMMIT, "committed by hand")
    with raises(AirflowException, "action_refused", reason="HEURISTIC_COMMIT"):
        trigger("resume", halt_reason="TOKEN_LOST")
    with raises(AirflowFailException, "argument_invalid", argument="halt_reason"):
        trigger("resume", halt_reason="LOST")
    assert world.store.pipeline(PIPELINE).halt_reason is HaltReason.HEURISTIC_COMMIT
    assert "orders is ACTIVE" in trigger("resume", halt_reason="HEURISTIC_COMMIT")


def test_resume_of_a_halt_takes_no_name_back(world: World) -> None:
    old, new = Scene(world.store), Scene(world.store, "new")
    old.complete(old.stage()[0])
    new.take()
    world.store.rename(PIPELINE, old.epoch, 1, "new", new.epoch, a_position(1), "a test")
    with raises(AirflowException, "action_refused", status="RENAMED"):
        trigger("resume", halt_reason="TOKEN_LOST")
    assert world.store.pipeline(PIPELINE).status is PipelineStatus.RENAMED


def test_a_run_that_nobody_has_triggered_is_named_itself(world: World) -> None:
    world.store.register(PIPELINE)
    world.store.halt(PIPELINE, HaltReason.TOKEN_LOST, "the token is gone")
    trigger("resume", user=None, run_id="scheduled__1")
    [event] = world.store.events(PIPELINE, limit=1)
    assert event.message.endswith("RESUMED: by airflow_ft_maintenance/scheduled__1/action, after TOKEN_LOST")


def test_state_is_dropped_once(scene: Scene) -> None:
    before = scene.store.pipeline(PIPELINE).base
    assert before is not None
    begun = Path(before.location.removeprefix("file://"), "sources/0/0")  # where Spark first stood in the topic
    begun.parent.mkdir(parents=True)
    begun.write_text('\0v1\n{"orders":{"0":3}}')
    with raises(AirflowFailException, "source_not_left_out", sources=["files", "old logs"]):
        trigger("reset_state", forget_sources=" files\nold logs\n")
    result = trigger("reset_state", reason="a new key")
    after = scene.store.pipeline(PIPELINE).base
    assert after != before and "the next run reads from where the last one ended, without state" in result
    assert "`reset_state` by ada (airflow_ft_maintenance/manual__1/action): a new key" in signed(scene)
    assert "orders has no state to drop" in trigger("reset_state", run_id="manual__2")
    assert scene.store.pipeline(PIPELINE).base == after


@pytest.mark.disk  # memory is a finding of the doctor, too
def test_doctor_fails_with_what_it_has_found(world: World) -> None:
    world.stage(1)
    world.steps(world.context())
    result = trigger("doctor", tries=2)
    assert "checkpoint 1 was confirmed last" in result and "pipeline orders" in result.log
    world.store.halt(PIPELINE, HaltReason.TOKEN_LOST, "it is gone.")
    events = signed(world)
    with raises(AirflowFailException) as caught:
        trigger("doctor")
    assert isinstance(caught.error, FoundProblemsError) and caught.error.pipeline == PIPELINE
    assert "it is gone" in caught.error.headline and caught.error.remedy
    assert signed(world) == events


def test_verify_fails_when_rows_are_missing_or_doubled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real pipeline into SQLite: its rows are in its write-ahead log, and in a table."""
    url, shop = f"sqlite:///{tmp_path}/ft.db", tmp_path / "shop.db"
    monkeypatch.setenv("AIRFLOW__AIRFLOW_FT__STORE", url)
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", f'{{"conn_type": "sqlite", "host": "{shop}"}}')

    def sql(statement: str) -> None:
        with closing(sqlite3.connect(shop)) as database, database:
            database.execute(statement)

    with closing(open_store(url)) as store:
        world = SqliteWorld(store, tmp_path / "wal", None, pipeline=PIPELINE, root_of_shop=shop)  # type: ignore[arg-type]
        numbers = world.stage(2)
        world.prepare()
        assert "checkpoint 1 is COMPLETED" in trigger("commit", checkpoint=1), "with the connection of the task"
        world.deliver()
        with closing(sqlite3.connect(shop)) as database:
            assert sorted(row[0] for row in database.execute("SELECT id FROM orders")) == expected(numbers)
        assert "complete: 40 of 40 rows are there" in trigger("verify")
        sql("INSERT INTO orders SELECT * FROM orders WHERE id = 1005")
        with raises(AirflowFailException) as caught:
            trigger("verify")
        assert isinstance(caught.error, FoundProblemsError) and caught.error.pipeline == PIPELINE
        assert "DUPLICATED: 1 extra copy" in trigger("verify", allow_repeated=True, tries=2)
        sql("DELETE FROM orders WHERE id = 2007")
        with raises(AirflowFailException) as caught:
            trigger("verify", allow_repeated=True)
        assert isinstance(caught.error, FoundProblemsError) and caught.error.remedy
        assert "20 of 20 rows are there" in trigger("verify", checkpoint=1, allow_repeated=True)


class SqliteWorld(RealWorld):
    """The same pipeline into one table of a SQLite file."""

    def __init__(self, *given: Any, root_of_shop: Path, **more: Any) -> None:
        super().__init__(*given, **more)
        self.shop = root_of_shop

    @property
    def sinks(self) -> dict[str, Any]:
        return {"rows": SqliteSink(table="orders", conn_id="shop")}

    def connections(self, conn_id: str) -> ConnectionInfo:
        return ConnectionInfo("shop", "sqlite", host=str(self.shop))


# --- savepoints and streams ------------------------------------------------------------------------------------------


def test_a_savepoint_is_taken_restored_and_deleted(scene: Scene, tmp_path: Path) -> None:
    dag = maintenance_dag(folders=[str(tmp_path / "elsewhere")])
    result = trigger("savepoint", dag=dag, checkpoint=1, folder=str(tmp_path / "elsewhere"))
    uri = result.result
    assert "savepoint of checkpoint 1 of orders" in result and str(tmp_path / "elsewhere") in uri
    assert read_metadata(uri).taken_by == "`savepoint 1` by ada (airflow_ft_maintenance/manual__1/action)"
    before = scene.store.pipeline(PIPELINE).base
    result = trigger("restore", dag=dag, savepoint=uri, reason="back to yesterday")
    assert result.result == {"checkpoint": 1, "later": []} and "continues from checkpoint 1 of orders" in result
    base = scene.store.pipeline(PIPELINE).base
    assert base != before and "`restore` by ada" in signed(scene) and "back to yesterday" in signed(scene)
    assert trigger("restore", dag=dag, savepoint=uri).result == {}, "the same run once more"
    assert scene.store.pipeline(PIPELINE).base == base
    with raises(AirflowFailException) as caught:
        trigger("dispose", dag=dag, savepoint=uri, pipeline="payments")
    assert caught.error is not None and f"of pipeline {PIPELINE}" in caught.error.headline
    (local_path(uri) / "_metadata").unlink()  # as a delete that was killed leaves it
    with raises(AirflowFailException, "arguments_conflict", other=PIPELINE):
        trigger("dispose", dag=dag, savepoint=uri, pipeline="payments")
    assert "is deleted" in trigger("dispose", dag=dag, savepoint=uri)
    assert "does not exist" in trigger("dispose", dag=dag, savepoint=uri)


def test_a_dag_that_deletes_no_savepoint_claims_none(scene: Scene) -> None:
    uri = trigger("savepoint").result
    before = scene.store.pipeline(PIPELINE).base
    with raises(AirflowFailException, "action_refused", action="dispose"):
        trigger("restore", dag=maintenance_dag("d", ["restore"]), savepoint=uri, savepoint_claim_mode="CLAIM")
    assert scene.store.pipeline(PIPELINE).base == before and read_metadata(uri)
    trigger("restore", dag=maintenance_dag("d", ["restore", "dispose"]), savepoint=uri, savepoint_claim_mode="CLAIM")
    assert scene.store.pipeline(PIPELINE).base != before and not local_path(uri).exists()


@pytest.mark.parametrize(
    ("action", "place"),
    [
        ("savepoint", {"folder": "/mnt/shared"}),
        ("savepoint", {"folder": "s3://mine@bucket/x"}),
        ("savepoint", {"folder": "{}/savepoints/../orders"}),
        ("savepoint", {"folder": "file://{}/savepoints/%2e%2e/orders"}),
        ("savepoint", {"folder": "{}/savepoints-of-others"}),
        ("savepoint", {"folder": "s3://c@bucket/%73avepoints/x"}),
        ("stop_with_savepoint", {"folder": "/mnt/shared"}),
        ("restore", {"savepoint": "/mnt/shared/savepoint-orders-1"}),
        ("dispose", {"savepoint": "file:///mnt/shared/savepoint-orders-1"}),
    ],
)
def test_a_form_names_no_place_outside_of_its_folders(
    scene: Scene, tmp_path: Path, action: str, place: dict[str, str]
) -> None:
    """Users of the form could copy the values of state to where they may read them."""
    dag = maintenance_dag(folders=["s3://c@bucket/savepoints"])
    given = {name: value.format(tmp_path) for name, value in place.items()}
    with raises(AirflowFailException, "action_refused", place=next(iter(given.values()))):
        trigger(action, dag=dag, **given)
    [other] = given.values()
    task = MaintenanceOperator(task_id="t", pipeline=PIPELINE, action="doctor", savepoint_dir=other)
    task._refuse_places()  # the author's own


@pytest.mark.parametrize(
    ("action", "arguments"),
    [
        ("stop", {"at_once": False}),
        ("stop_now", {"at_once": True}),
        ("stop_with_savepoint", {"at_once": False, "savepoint": "/s"}),
        ("drain", {"at_once": False, "drain": True}),
        ("drain_with_savepoint", {"at_once": False, "drain": True, "savepoint": "/s"}),
    ],
)
def test_a_stream_is_asked_to_stop_in_the_name_of_who_has_asked(
    scene: Scene, action: str, arguments: dict[str, Any]
) -> None:
    dag = maintenance_dag(folders=["/s"])
    dag.get_task("action").wait = 0.01
    folder = {"folder": arguments["savepoint"]} if "savepoint" in arguments else {}
    with new_epoch(scene.store, PIPELINE, Worker("t"), "a test", 1):
        with raises(AirflowException, "stop_timeout", pipeline=PIPELINE, seconds=0.01):
            trigger(action, dag=dag, reason="the end of the month", **folder)
        [asked] = scene.store.open_requests(PIPELINE)
    assert dict(asked.arguments) == arguments
    assert f"`{action}` by ada (airflow_ft_maintenance/manual__1/action): the end of the month" in signed(scene)


def test_a_stopped_stream_yields_a_savepoint_but_cannot_drain(scene: Scene) -> None:
    assert trigger("stop").result == "no process works on orders"
    assert "savepoint of checkpoint 1: file://" in trigger("stop_with_savepoint")
    with raises(AirflowException, "action_refused", pipeline=PIPELINE):
        trigger("drain")


# --- once, and not in tests ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("action", sorted(set(ACTIONS) - READING - {"recover"}))
def test_a_task_that_was_cleared_acts_no_more(world: World, action: str) -> None:
    world.prepared()
    world.store.halt(PIPELINE, HaltReason.TOKEN_LOST, "another cause than the one that was asked about")
    events = signed(world)
    number = {"checkpoint": 1} if action in SETTLING else {}
    with raises(AirflowException, "action_refused", action=action, try_number=2):
        trigger(action, tries=2, **number)
    assert signed(world) == events and world.store.checkpoint(PIPELINE, 1).state is S.PREPARED


def test_a_test_run_changes_nothing_but_may_look(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.prepared()
    with raises(AirflowFailException) as caught:
        trigger("commit", checkpoint=1, user="dag_test")
    assert caught.error is not None and "`airflow dags test`" in caught.error.headline
    monkeypatch.setenv("AIRFLOW_TEST_MODE", "True")
    with raises(AirflowFailException) as caught:
        trigger("recover")
    assert caught.error is not None and "`airflow tasks test`" in caught.error.headline
    assert world.store.checkpoint(PIPELINE, 1).state is S.PREPARED
    with raises(AirflowFailException) as caught:  # of a world without a write-ahead log
        trigger("doctor")
    assert isinstance(caught.error, FoundProblemsError)
    monkeypatch.setenv("AIRFLOW__AIRFLOW_FT__ALLOW_TEST_RUNS", "True")
    assert "is now COMPLETED" in trigger("recover")


def test_whoever_is_at_work_is_not_disturbed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.prepared()
    monkeypatch.setattr("airflow_ft.pipeline.settings.lease_seconds", lambda: 6.0)
    with (
        new_epoch(world.store, PIPELINE, Worker("dag/run/step"), "at work", 0.3),
        raises(AirflowException, "lease_held"),
    ):
        trigger("abort", checkpoint=1)
    assert world.store.checkpoint(PIPELINE, 1).state is S.PREPARED


# --- the page --------------------------------------------------------------------------------------------------------


def test_the_page_asks_for_what_the_dag_does() -> None:
    """The names of acts and parameters in its scripts are those of the DAG."""
    dag = maintenance_dag()
    scripts = "".join(path.read_text() for path in (ROOT / "plugins").glob("*.js"))
    given = {name for conf in re.findall(r"conf: \{([^}]*)", scripts) for name in re.findall(r"(\w+):", conf)}
    assert given <= set(dag.params)
    actions = set(re.findall(r'action: "(\w+)"', scripts)) | set(re.findall(r'\bact\("(\w+)"', scripts))
    assert {"restore", "dispose"} <= actions <= set(ACTIONS)
    later = [each.value for each in Later]
    assert re.findall(r'\["([a-z-]+)", say\.later', scripts) == re.findall(r'later\w+: "([a-z-]+):', scripts) == later
