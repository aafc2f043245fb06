"""Errors and results of steps, as Airflow understands them; the steps themselves are the core's."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG
from airflow.sdk.bases.skipmixin import SkipMixin
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowSkipException,
    AirflowTaskTimeout,
    TaskDeferred,
)

from airflow_ft import CheckpointedPipeline, SqliteSink, StreamGroupOperator
from airflow_ft.operators.barrier import InjectBarrierOperator
from airflow_ft.operators.base import CheckpointOperator
from airflow_ft.operators.commit import CommitOperator
from airflow_ft.operators.confirm import ConfirmOperator
from airflow_ft.operators.failing import fail
from airflow_ft.operators.maintenance import MaintenanceOperator
from airflow_ft.operators.prepare import PrepareOperator
from airflow_ft.operators.recover import RecoverOperator
from airflow_ft.operators.stage import StageOperator
from airflow_ft.operators.sweep import RecoverAllOperator
from airflow_ft.pipeline import runs
from airflow_ft.pipeline.spec import PipelineSpec
from airflow_ft.protocol import steps
from airflow_ft.protocol.errors import (
    AirflowFtError,
    ConfigurationError,
    FencedError,
    JobError,
    LeaseHeldError,
    SinkUnavailableError,
    TurnHeldError,
)
from airflow_ft.protocol.from_savepoint import FromSavepoint
from airflow_ft.protocol.lease import Worker, new_epoch
from airflow_ft.protocol.model import RunKey
from airflow_ft.protocol.overview import Condition
from airflow_ft.protocol.steps import Context
from airflow_ft.store import open_store
from airflow_ft.triggers.turn import TurnTrigger
from tests.operators.declared import spec
from tests.protocol.systems import NoArchive
from tests.protocol.world import PIPELINE, RUN, World
from tests.raising import raises
from tests.sensors.test_checkpoint import State

pytestmark = pytest.mark.airflow


class Events(dict[Any, Any]):
    """Stands for Airflow's accessor: one object an asset, made when it is asked for."""

    def __missing__(self, asset: Any) -> Any:
        self[asset] = SimpleNamespace(extra={})
        return self[asset]


def airflow_context() -> Any:
    ti = SimpleNamespace(dag_id="dag", run_id="run-1", task_id="orders.step", map_index=2, try_number=3)
    return {"ti": ti, "data_interval_end": None, "outlet_events": Events()}


def in_process_of(context: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set what Airflow sets before it executes a task."""
    ti = context["ti"]
    for name, value in (("DAG_ID", ti.dag_id), ("DAG_RUN_ID", ti.run_id), ("TASK_ID", ti.task_id)):
        monkeypatch.setenv(f"AIRFLOW_CTX_{name}", value)


def bound(operator: CheckpointOperator, run: Context) -> CheckpointOperator:
    """The operator, working on a run of the model world."""

    @contextmanager
    def run_context(_: Any) -> Iterator[Context]:
        yield run

    operator.run_context = run_context  # type: ignore[method-assign,assignment]
    return operator


def do(operator: CheckpointOperator, run: Context, context: Any = None) -> Any:
    return type(operator).execute.__wrapped__(bound(operator, run), context or airflow_context())  # type: ignore[attr-defined]


class Raising(CheckpointOperator):
    error: Exception = RuntimeError()

    def step(self, spec: PipelineSpec, run: Context, context: Any) -> Any:
        raise self.error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (JobError("the job raised.", remedy="mend it.", pipeline="orders"), AirflowFailException),
        (SinkUnavailableError("it is down.", remedy="wait.", participant="shop"), AirflowException),
    ],
)
def test_only_what_trying_again_can_mend_is_tried_again(
    error: AirflowFtError, expected: type[Exception], tmp_path: Path
) -> None:
    operator = Raising(task_id="t", spec=spec())
    operator.error = error
    with pytest.raises(AirflowException) as caught:
        do(operator, World(tmp_path).context())
    assert type(caught.value) is expected
    assert str(caught.value) == str(error)
    assert caught.value.__cause__ is None and caught.value.__suppress_context__, "one traceback, ours"


def test_the_remedy_stands_on_a_line_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    error = JobError("the job raised.", remedy="mend it.", pipeline="orders")
    with pytest.raises(AirflowFailException):
        fail(logging.getLogger("task"), error, airflow_context())
    messages = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert messages == ["JobError [job_failed]: pipeline 'orders': the job raised.", "Fix: mend it."]
    mine = [record.exc_info is not None for record in caplog.records if record.name == "task"]
    assert mine == [False, False, True], "the rest is for DEBUG"


@pytest.mark.parametrize(
    ("error", "number", "expected"),
    [
        (SinkUnavailableError("it is down."), 1, "try 2 of 3 follows"),
        (SinkUnavailableError("it is down."), 3, "does not retry the task: this was try 3 of 3"),
        (JobError("the job raised."), 1, None),
    ],
)
def test_the_log_says_whether_a_try_is_left(
    error: AirflowFtError, number: int, expected: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    context = airflow_context()
    context["ti"].try_number, context["ti"].max_tries = number, 2
    with pytest.raises(AirflowException):
        fail(logging.getLogger("task"), error, context)
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.INFO]
    assert (said == []) if expected is None else (len(said) == 1 and expected in said[0])


def test_the_worker_is_named_without_its_try(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    operator = CheckpointOperator(task_id="t", spec=spec())
    with operator.run_context(airflow_context()) as run:
        assert run.worker.task == "dag/run-1/orders.step[2]"
        assert run.worker.try_number == 3
        assert run.run == RunKey("dag", "run-1", 2)
        assert (tmp_path / "airflow_ft" / "ft.db").exists()


def test_recover_defers_while_another_run_is_at_work(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.store.register(PIPELINE)
    world.store.enter_turn(PIPELINE, RunKey("dag", "another"), None)
    run = steps.Context(**{**_fields(world.context()), "run_is_over": lambda _: False})
    with pytest.raises(TaskDeferred) as caught:
        do(RecoverOperator(task_id="t", spec=spec(PIPELINE), poll_interval=1.5), run)
    trigger = caught.value.trigger
    assert isinstance(trigger, TurnTrigger)
    assert (trigger.pipeline, trigger.dag_id, trigger.run_id, trigger.poll_interval) == (PIPELINE, "dag", "run-1", 1.5)
    assert trigger.map_index == run.run.map_index


def test_turn_timeout_bounds_all_waits_of_a_task(tmp_path: Path) -> None:
    world, now = World(tmp_path), datetime(2026, 1, 1, tzinfo=UTC)
    world.store.register(PIPELINE)
    world.store.enter_turn(PIPELINE, RunKey("dag", "another"), None)
    world.store.now = lambda: now  # type: ignore[method-assign]
    run = steps.Context(**{**_fields(world.context()), "run_is_over": lambda _: False})
    context = {**airflow_context(), "task_state_store": State()}
    context["ti"].max_tries = 2

    def left(minutes: int) -> timedelta | None:
        """Return the timeout of a deferral, `minutes` after the last one."""
        nonlocal now
        now += timedelta(minutes=minutes)
        with pytest.raises(TaskDeferred) as caught:
            do(
                RecoverOperator(task_id="t", spec=spec(PIPELINE), turn_timeout=timedelta(hours=1), retries=2),
                run,
                context,
            )
        return caught.value.timeout

    assert [left(0), left(20), left(30)] == [timedelta(minutes=60), timedelta(minutes=40), timedelta(minutes=10)]
    with raises(AirflowFailException, "turn_timeout"):
        left(10)
    context["ti"].max_tries = 6  # as Airflow clears a task
    assert left(60) == timedelta(hours=1)


def _fields(run: Context) -> dict[str, Any]:
    return {name: getattr(run, name) for name in Context.__slots__}


def test_a_commit_with_nothing_to_commit_is_skipped(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.stage(0)
    with pytest.raises(AirflowSkipException):
        do(CommitOperator(task_id="t", spec=spec(PIPELINE), participant="db"), world.context())


def test_a_commit_before_the_decision_fails(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.stage(1)
    run = world.context()
    steps.prepare_step(run, world.delivery, world.config, "db")
    steps.prepare_step(run, world.delivery, world.config, "log")
    with raises(AirflowFailException, "not_delivered"):
        do(CommitOperator(task_id="t", spec=spec(PIPELINE), participant="log"), run)
    assert do(CommitOperator(task_id="t", spec=spec(PIPELINE), participant="db"), run) == {"numbers": [1]}
    assert do(CommitOperator(task_id="t", spec=spec(PIPELINE), participant="log"), run) == {"numbers": [1]}
    # Killed after its commit, before Airflow knew: the next try finds the proof.
    assert do(CommitOperator(task_id="t", spec=spec(PIPELINE), participant="log"), run) == {"numbers": [1]}


def test_prepare_returns_the_newest_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A result in XCom has at most 1,000 of a run's numbers."""
    monkeypatch.setattr("airflow_ft.operators.prepare.MOST_LISTED", 2)
    monkeypatch.setattr("airflow_ft.pipeline.ready.require_root", lambda _: None)
    world = World(tmp_path)
    world.stage(3)
    monkeypatch.setattr("airflow_ft.pipeline.resolved.DeliveryContext.plan", lambda *_: world.delivery)
    declared = spec(PIPELINE, wal_root=str(tmp_path), checkpointing={"max_delivery_rows": 1})
    operator = PrepareOperator(task_id="t", spec=declared, participant="db")
    assert list(do(operator, world.context())["numbers"]) == ["2", "3"]


def test_a_wrong_savepoint_keeps_no_decided_rows_from_delivery() -> None:
    """It is an error of `recover`."""
    given = spec(PIPELINE, from_savepoint=FromSavepoint("{{ params.savepoint }}"))
    tasks: list[Any] = [
        CommitOperator(task_id="c", spec=given, participant="db"),
        ConfirmOperator(task_id="f", spec=given),
        RecoverOperator(task_id="r", spec=given),
    ]
    for task in tasks:
        task.from_savepoint = {"path": "relative", "later": "maybe"}
        with pytest.raises(ConfigurationError) if isinstance(task, RecoverOperator) else nullcontext():
            assert task.rendered().pipeline == PIPELINE


def test_the_asset_tells_what_was_confirmed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_ft.wal.retention.WalArchive", lambda _: NoArchive())
    world = World(tmp_path)
    world.stage(2)
    run = world.context()
    for name in world.delivery.names:
        steps.prepare_step(run, world.delivery, world.config, name)
    for name in world.delivery.names:
        steps.commit_step(run, name)
    operator = ConfirmOperator(task_id="t", spec=spec(PIPELINE))
    context = airflow_context()
    expected = {"numbers": [1, 2], "count": 2, "first": 1, "last": 2, "rows": 40, "recovered": [], "recovered_rows": 0}
    expected |= {"set_aside": {}}
    assert do(operator, run, context) == {**expected, "latest": 2}
    [extra] = [event.extra for event in context["outlet_events"].values()]
    assert extra == {"pipeline": PIPELINE, "number": 2, **expected}
    assert operator.outlets


def test_a_confirmation_of_nothing_updates_no_asset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_ft.wal.retention.WalArchive", lambda _: NoArchive())
    world = World(tmp_path)
    world.stage(0)
    operator = ConfirmOperator(task_id="t", spec=spec(PIPELINE))
    context = airflow_context()
    assert do(operator, world.context(), context)["numbers"] == []
    assert not context["outlet_events"] and not operator.outlets


def test_a_confirmation_without_proof_fails_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_ft.wal.retention.WalArchive", lambda _: NoArchive())
    world = World(tmp_path)
    world.stage(1)
    with raises(AirflowFailException, "not_delivered"):
        do(ConfirmOperator(task_id="t", spec=spec(PIPELINE)), world.context())


class Ends(CommitOperator):
    """A task of the run that ends with a given outcome."""

    error: BaseException

    def step(self, *_: Any) -> Any:
        raise self.error


def ends(error: BaseException) -> Ends:
    operator = Ends(spec=spec(), task_id="ends", participant="db")
    operator.error = error
    return operator


@pytest.mark.parametrize(
    ("error", "stored"),
    [
        (JobError("the job raised.", remedy="Correct it."), ("JobError", "job_failed", "JOB_FAILED")),
        (SinkUnavailableError("db is away."), ("SinkUnavailableError", "sink_unavailable", "")),
        (ValueError("password=hunter2"), ("ValueError", "", "")),
        (AirflowTaskTimeout("after a minute"), ("AirflowTaskTimeout", "", "")),
    ],
)
def test_what_ends_a_task_is_stored_for_the_page(
    tmp_path: Path, error: BaseException, stored: tuple[str, str, str]
) -> None:
    world = World(tmp_path)
    world.store.register(PIPELINE)
    run = world.context()
    with pytest.raises(BaseException):  # noqa: B017 - as the task ends
        do(ends(error), run)
    failure = world.store.overview(PIPELINE).failure
    assert failure is not None and (failure.kind, failure.code, failure.reason) == stored
    assert (failure.task_id, failure.try_number) == ("orders.step", 3) and "hunter2" not in failure.text


@pytest.mark.parametrize(
    "error",
    [AirflowSkipException("nothing to do"), FencedError("epoch 1 is over."), LeaseHeldError("another is at work.")],
)
def test_what_is_no_failure_of_the_run_is_not_stored(tmp_path: Path, error: BaseException) -> None:
    world = World(tmp_path)
    world.store.register(PIPELINE)
    with pytest.raises(Exception):  # noqa: B017 - as the task ends
        do(ends(error), world.context())
    assert world.store.overview(PIPELINE).failure is None


def test_an_error_that_cannot_be_stored_is_raised_all_the_same(tmp_path: Path) -> None:
    world = World(tmp_path)
    run = world.context()
    world.store.close()
    with raises(AirflowFailException, "job_failed"):
        do(ends(JobError("the job raised.")), run)


@pytest.mark.parametrize("states", [["skipped", "skipped"], ["upstream_failed", "upstream_failed"], ["success"], []])
def test_a_run_that_a_branch_skips_is_skipped_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, states: list[str]
) -> None:
    """`commit` and `confirmed` run all the same, by their trigger rule."""
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    asked: list[Any] = []

    def known(dag_id: str, map_index: int | None, task_ids: list[str], run_ids: list[str]) -> dict[str, Any]:
        asked.append((dag_id, map_index, task_ids))
        return {run_ids[0]: dict(zip(task_ids, states, strict=False))}

    monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", staticmethod(known))
    monkeypatch.setattr("airflow_ft.wal.retention.WalArchive", lambda _: NoArchive())
    world = World(tmp_path)
    with DAG("d", schedule=None) as dag:
        streams = StreamGroupOperator(task_id="streams", streams=[spec("returns", streaming=True)])
        streams >> CheckpointedPipeline(spec(PIPELINE))
    is_skipped = states[:1] == ["skipped"]
    for task_id in ("orders.commit.shop", "orders.confirmed"):
        with pytest.raises(AirflowSkipException if is_skipped else AirflowFailException):
            do(cast("CheckpointOperator", dag.get_task(task_id)), world.context())
    dag_id, map_index, tasks = asked[0]
    assert (dag_id, map_index, sorted(tasks)) == (RUN.dag_id, None, ["orders.recover", "orders.stage"])
    with suppress(KeyError):
        found = world.store.overview(PIPELINE)
        assert found.turn is None and (found.condition is Condition.FAILED) is not is_skipped


@pytest.mark.parametrize(
    ("states", "is_skipped"),
    [
        ({}, True),
        ({"orders.check": "skipped"}, True),
        ({"orders.check": "failed"}, False),  # a person has marked the run as failed
        ({"orders.folder": "skipped"}, False),
        ({"orders.compute": "success"}, False),
        ({"orders.stage": "upstream_failed"}, False),
        ({"orders.stage": "failed"}, False),
        ({"orders.second": "running"}, False),  # it may still write rows, or fail
        ({"orders.second": "success"}, False),
        ({"orders.second": ""}, False),
        ({"orders.outside": "running"}, False),
    ],
    ids=str,
)
def test_a_task_before_the_stage_may_skip_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, states: dict[str, str], is_skipped: bool
) -> None:
    """There are no files today."""
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    before = {"orders.recover": "success", "orders.folder": "success", "orders.check": "success"}
    skipped = dict.fromkeys(("orders.compute", "orders.second", "orders.outside", "orders.stage"), "skipped")
    known = {**before, **skipped, **states}

    def asked(dag_id: str, map_index: int | None, task_ids: list[str], run_ids: list[str]) -> dict[str, Any]:
        return {run_ids[0]: {each: known[each] for each in task_ids if known[each]}}

    monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", staticmethod(asked))
    monkeypatch.setattr("airflow_ft.wal.retention.WalArchive", lambda _: NoArchive())
    world = World(tmp_path)
    with DAG("d", schedule=None) as dag:
        sinks = {"orders": SqliteSink(table="orders", conn_id="shop")}
        group = CheckpointedPipeline(pipeline=PIPELINE, position="{{ ds }}", sinks=sinks)
        with group:
            check, compute = EmptyOperator(task_id="check"), EmptyOperator(task_id="compute")
            group.folder >> check >> compute >> group.stage
            group.folder >> EmptyOperator(task_id="second") >> group.stage
            EmptyOperator(task_id="outside") >> group.stage
    run = world.context()
    steps.recover_step(run)
    for task_id in ("orders.commit.shop", "orders.confirmed"):
        with pytest.raises(AirflowSkipException if is_skipped else AirflowFailException) as caught:
            do(cast("CheckpointOperator", dag.get_task(task_id)), run)
        named = set(re.findall(r"orders\.\w+", str(caught.value)))
        assert not is_skipped or {"orders.stage", "orders.compute"} <= named
    assert world.store.pipeline(PIPELINE).turn is None


@pytest.mark.parametrize("is_branch", [True, False])
def test_a_branch_before_the_stage_may_skip_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_branch: bool
) -> None:
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    def asked(dag_id: str, map_index: int | None, task_ids: list[str], run_ids: list[str]) -> dict[str, Any]:
        return {run_ids[0]: {each: "skipped" if each == "stage" else "success" for each in task_ids}}

    monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", staticmethod(asked))
    with DAG("d", schedule=None):
        recover, stage = RecoverOperator(task_id="recover", spec=spec()), StageOperator(task_id="stage", spec=spec())
        kind: Any = EmptyBranch if is_branch else EmptyOperator
        confirmed = ConfirmOperator(task_id="confirmed", spec=spec(), trigger_rule="all_done")
        recover >> kind(task_id="between") >> stage >> confirmed
    run = World(tmp_path).context()
    with pytest.raises(AirflowSkipException) if is_branch else nullcontext():
        confirmed.skip_if_skipped(run)


class EmptyBranch(EmptyOperator, SkipMixin):
    """An operator that chooses which tasks follow."""


def test_a_task_waits_for_a_lease_without_using_a_try(tmp_path: Path) -> None:
    """`recover` takes no epoch if nothing is in doubt, so a later task may be the first to meet the lease."""
    world = World(tmp_path)
    world.store.register(PIPELINE)
    run = world.context()
    with new_epoch(world.store, PIPELINE, Worker("another"), "a test", 0.3):
        assert not steps.recover_step(run).settled
        with raises(LeaseHeldError, "lease_held") as met, new_epoch(world.store, PIPELINE, run.worker, "stage", 0.3):
            pass
    assert met.error is not None
    with pytest.raises(TaskDeferred) as caught:
        do(ends(met.error), run)
    assert isinstance(caught.value.trigger, TurnTrigger)
    with raises(AirflowException, "lease_held"):  # of the old name of a rename, which the trigger does not watch
        do(ends(LeaseHeldError("another process works on it.", pipeline="other")), run)


class Script:
    """A program that delivers, and has the turn. While it lives it renews its lease."""

    def __init__(self, world: World) -> None:
        self.store, self.run = world.store, RunKey(f"python:{PIPELINE}", "x")
        self.store.register(PIPELINE)
        self.store.enter_turn(PIPELINE, self.run, None)
        self.lease = Worker().lease(0.2)
        self.epoch = self.store.take_epoch(PIPELINE, self.store.pipeline(PIPELINE).epoch, {}, self.lease, "stage")

    def renew(self, *_: object) -> None:
        self.store.renew_lease(PIPELINE, self.epoch, self.lease.holder)


def test_a_run_leaves_the_turn_to_a_program_that_lives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path)
    script = Script(world)
    monkeypatch.setattr("airflow_ft.pipeline.settings.lease_seconds", lambda: 0.2)
    operator = RecoverOperator(task_id="t", spec=spec(PIPELINE, store=f"sqlite:///{tmp_path}/ft.db"))
    with operator.run_context(airflow_context()) as run:
        with monkeypatch.context() as patch, raises(TurnHeldError, "turn_held", holder=script.run):
            patch.setattr("airflow_ft.operators.base.time.sleep", script.renew)
            steps.take_turn(run)
        assert steps.take_turn(run), "its lease does not move"
    assert world.store.pipeline(PIPELINE).turn == RunKey("dag", "run-1", 2)


class Later:
    """Stands for the output of a task, or a mapped value."""

    def iter_references(self) -> Iterator[Any]:
        return iter(())

    def resolve(self, _: Any) -> Any:
        raise NotImplementedError


def test_a_first_run_that_fails_rendering_shows_its_full_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__AIRFLOW_FT__STORE", f"sqlite:///{tmp_path}/ft.db")
    declared = spec("orders", suffix=Later(), checkpointing={"timeout": "{{ params.timeout }}"})
    context: Any = {"ti": SimpleNamespace(dag_id="d", run_id="r", task_id="stage", map_index=-1, try_number=1)}
    for shop, known in ((None, []), ("None", []), ("de", ["orders-de"])):
        operator = StageOperator(task_id="stage", spec=declared)
        operator.suffix, operator.checkpointing = shop, {"timeout": "soon"}  # type: ignore[attr-defined]
        with pytest.raises(AirflowFailException):
            StageOperator.execute.__wrapped__(operator, context)  # type: ignore[attr-defined]
        with closing(open_store(f"sqlite:///{tmp_path}/ft.db")) as store:
            assert [row.name for row in store.pipelines()] == known
    with closing(open_store(f"sqlite:///{tmp_path}/ft.db")) as store:
        assert store.overview("orders-de").condition is Condition.FAILED


@pytest.mark.parametrize(("last", "is_skipped"), [({"check": True}, True), ({"write": False, "check": True}, False)])
def test_a_branch_skips_the_run_only_if_it_is_alone(
    last: dict[str, bool], is_skipped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind a check that has let rows pass, another task's skip must not hide them."""
    known = {"stage": "skipped", "recover": "success", "write": "skipped", "check": "success"}
    monkeypatch.setattr(runs, "task_states", lambda _, ids: {each: known[each] for each in ids})
    assert runs.stage_was_skipped(RUN, "stage", ["recover"], [], last) is is_skipped


def tasks_with_a_rendered_log() -> list[Any]:
    given: Any = {"task_id": "t", "store": "{{ x }}"}
    return [
        RecoverOperator(task_id="t", spec=spec(store="{{ x }}")),
        RecoverAllOperator(**given),
        InjectBarrierOperator(barrier="closing", pipelines=[PIPELINE], **given),
        MaintenanceOperator(pipeline=PIPELINE, action="resume", **given),
    ]


@pytest.mark.parametrize("found", [None, "None"])
@pytest.mark.parametrize("task", tasks_with_a_rendered_log(), ids=lambda task: type(task).__name__)
def test_a_decision_log_that_renders_to_none_is_not_the_default(
    task: Any, found: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__AIRFLOW_FT__STORE", url := f"sqlite:///{tmp_path}/ft.db")
    task.store = found
    with raises(AirflowFailException, "template_without_value", argument="store"):
        task.execute({})
    with closing(open_store(url)) as store:
        assert store.overviews() == []
