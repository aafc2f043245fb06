"""The step `stage` around the driver: epochs, lease and what is recorded. Tests with Spark are in tests/integration."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_ft.pipeline.steps import recover
from airflow_ft.protocol.config import CheckpointConfig
from airflow_ft.protocol.errors import (
    AirflowFtError,
    CheckpointExpiredError,
    ConfigurationError,
    DeclinedError,
    FencedError,
    JobError,
    LeaseHeldError,
    RestartsExhaustedError,
    StageError,
    StateConflictError,
    StorageUnavailableError,
    StoreBehindSinkError,
    StoreUnavailableError,
    TurnHeldError,
    WalCorruptError,
)
from airflow_ft.protocol.lease import Worker, new_epoch
from airflow_ft.protocol.model import PLAIN, AfterAbort, CheckpointState, RunKey, Segment, SparkPosition
from airflow_ft.protocol.pipelines import Pipeline
from airflow_ft.protocol.reasons import AbortReason
from airflow_ft.protocol.resolution import Resolver
from airflow_ft.protocol.steps import Context, commit_step, confirm_step, prepare_step, recover_step
from airflow_ft.spark.request import StageRequest, StageResult
from airflow_ft.spark.state.draining import drain_of, marked
from airflow_ft.spark.state.reset import reset_state
from airflow_ft.spark.task import hung
from airflow_ft.spark.task.hung import HungDriver
from airflow_ft.spark.task.launcher import raise_if_fenced
from airflow_ft.spark.task.stage import Staging, stage_step
from airflow_ft.wal import owners
from tests.protocol.systems import NoArchive, Systems
from tests.protocol.world import PIPELINE, RUN, World
from tests.raising import raises
from tests.waiting import wait_for

pytestmark = pytest.mark.slow

POSITION = SparkPosition("file:///spark/1-1", 4)


class FakeDriver:
    """Stands for Spark's process: ends when it is killed."""

    def __init__(self) -> None:
        self.ended = threading.Event()

    @property
    def killed(self) -> bool:
        return self.ended.is_set()

    def kill(self) -> None:
        self.ended.set()

    def kill_hung(self, error: AirflowFtError) -> None:
        self.kill()


def context(world: World, **changes: Any) -> Context:
    base = world.context(**changes)
    fields = {name: getattr(base, name) for name in Context.__slots__}
    return Context(**{**fields, "lease_seconds": 0.3, "run_is_over": lambda _: False})


@pytest.fixture
def launch(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[..., StageResult]], None]:
    return lambda launcher: monkeypatch.setattr("airflow_ft.spark.task.stage.run_stage", launcher)


def make(pipeline: Pipeline, epoch: int, attempt: int) -> StageRequest:
    return StageRequest(
        pipeline=PIPELINE,
        run=RUN,
        epoch=epoch,
        attempt=attempt,
        base=pipeline.base,
        base_is_clean=pipeline.base_is_clean,
        last_published=pipeline.last_published,
        store_url="sqlite:////none",
        wal_root="/none",
        job="jobs.none",
        sinks=("rows",),
    )


def stage(run: Context, lines: list[str] | None = None, overlap: Any = None, **more: Any) -> StageResult | None:
    on_line = (lines if lines is not None else []).append
    return stage_step(run, Staging(make_request=make, on_line=on_line, **more), overlap)


def take_over(world: World, epoch: int) -> None:
    """Another process takes the next epoch; again, where the owner has renewed its lease between the two calls."""

    def taken() -> bool:
        leases = {lease.holder: lease.counter for lease in world.store.leases(PIPELINE)}
        with suppress(LeaseHeldError):
            return world.store.take_epoch(PIPELINE, epoch, leases, Worker("other").lease(), "test") > epoch
        return False

    wait_for(taken, 60, "another one takes over", 0.001)


def publish(world: World, epoch: int) -> int:
    """A checkpoint, as the Spark driver would publish it."""
    number = world.store.trigger(PIPELINE, epoch, RUN)
    segment = Segment(number, f"{number:064x}", f"file:///wal/{number}", {"rows": 10, "copies": 10}, 100)
    before = world.store.pipeline(PIPELINE).last_published
    world.store.publish(PIPELINE, epoch, number, before, segment, SparkPosition(f"file:///spark/{epoch}-1", number), {})
    return number


def test_a_pipeline_that_another_dag_names_too_is_told(
    tmp_path: Path, launch: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Each row would go to whichever comes first; a program of the same pipeline is its author's own way to run it."""
    world = World(tmp_path)

    def launcher(request: StageRequest, *_: Any, **__: Any) -> StageResult:
        return StageResult((publish(world, request.epoch),) if request.last_published == 0 else (), {}, POSITION)

    launch(launcher)

    def warnings(run: RunKey) -> list[str]:
        caplog.clear()
        assert stage(replace(context(world), run=run)) is not None
        world.store.leave_turn(PIPELINE, run)
        return [text for text in caplog.messages if "share its position" in text]

    assert warnings(RUN) == [], "nothing is published yet"
    assert warnings(RunKey(RUN.dag_id, "the next one")) == []
    assert warnings(RunKey(f"{PLAIN}{PIPELINE}", "by hand")) == []
    [text] = warnings(RunKey("other", "r"))
    assert all(part in text for part in (f"pipeline {PIPELINE!r}", f"DAG {RUN.dag_id}", "checkpoint, 1", "DAG other"))
    assert "another pipeline=" in text


def test_the_next_attempt_continues_in_place_after_a_clean_end(tmp_path: Path, launch: Any) -> None:
    world = World(tmp_path)
    requests = []

    def launcher(
        request: StageRequest, store: Any, *, log: Any, on_start: Any, judge: Any, on_publish: Any, **_: Any
    ) -> StageResult:
        requests.append(request)
        assert not world.store.pipeline(PIPELINE).base_is_clean, "while it works"
        log("a line")
        return StageResult((), {}, POSITION)

    launch(launcher)
    lines: list[str] = []
    assert stage(context(world), lines) is not None
    assert lines == ["a line"]
    row = world.store.run(PIPELINE, RUN)
    assert row is not None and row.staged
    assert world.store.pipeline(PIPELINE).base == POSITION and world.store.pipeline(PIPELINE).base_is_clean
    world.store.leave_turn(PIPELINE, RUN)
    stage(context(world, run=RunKey("dag", "run-2")))
    assert [(r.base, r.base_is_clean) for r in requests] == [(None, False), (POSITION, True)]
    assert requests[1].epoch > requests[0].epoch and requests[1].attempt > requests[0].attempt


def drain(world: World, epoch: int) -> int:
    """A checkpoint that drains the state of the one before it."""
    base = world.store.pipeline(PIPELINE).base
    assert base is not None
    number = world.store.trigger(PIPELINE, epoch, RUN)
    segment = Segment(number, f"{number:064x}", f"file:///wal/{number}", {"rows": 1, "copies": 1}, 100)
    world.store.publish(PIPELINE, epoch, number, number - 1, segment, None, marked({"numbers": {}}, base))
    return number


def launch_drain(world: World, launch: Any) -> None:
    """Let drivers publish a checkpoint, and the drain behind it."""

    def launcher(request: StageRequest, store: Any, **_: Any) -> StageResult:
        publish(world, request.epoch)
        drain(world, request.epoch)
        return StageResult((), {}, request.base)

    launch(launcher)


def test_after_a_drain_a_run_is_refused_unless_it_is_to_go_on(tmp_path: Path, launch: Any) -> None:
    world = World(tmp_path)
    launched: list[int] = []

    def launcher(request: StageRequest, store: Any, **_: Any) -> StageResult:
        launched.append(request.attempt)
        if len(launched) == 1:
            publish(world, request.epoch)
            drain(world, request.epoch)
        return StageResult((), {}, request.base)

    launch(launcher)
    stage(context(world))
    world.steps(world.context())
    other = context(world, run=RunKey("dag", "run-2"))
    with raises(ConfigurationError, "pipeline_drained", checkpoint=2) as drained:
        stage(other)
    assert drained.error is not None
    assert "airflow ft reset-state" in drained.error.remedy and "resume_drained=True" in drained.error.remedy
    assert len(launched) == 1
    assert stage(other, resume_drained=True) is not None and len(launched) == 2


def test_recover_looks_at_the_files_of_a_drained_pipeline(tmp_path: Path, launch: Any) -> None:
    """The stage does not: it has nothing to compute."""
    world = World(tmp_path)

    def launcher(request: StageRequest, store: Any, **_: Any) -> StageResult:
        publish(world, request.epoch)
        drain(world, request.epoch)
        return StageResult((), {}, request.base)

    launch(launcher)
    stage(context(world))
    root = tmp_path / "files"
    owners.register(world.store, str(root), PIPELINE)
    (root / PIPELINE / "99-0").mkdir()
    other = replace(context(world, run=RunKey("dag", "run-2")), run_is_over=lambda _: True)
    before = world.store.pipeline(PIPELINE).epoch
    with raises(StoreBehindSinkError, "log_behind_files", found=[99, 0]):
        recover(other, None, {}, str(root))
    assert world.store.pipeline(PIPELINE).epoch == before


@pytest.mark.parametrize("aborted", [False, True])
def test_the_next_run_delivers_a_drain(aborted: bool, tmp_path: Path, launch: Any) -> None:
    """The run that has drained could not deliver it: each later run would be refused, and the drain never arrive."""
    world = World(tmp_path)

    launch_drain(world, launch)
    stage(context(world))
    store = world.store
    if aborted:
        epoch = store.pipeline(PIPELINE).epoch
        store.abort(PIPELINE, epoch, 2, AbortReason.USER, "by ada", AfterAbort.CARRIED)
    with raises(StateConflictError, "action_refused", checkpoint=1) as refused:
        reset_state(store, PIPELINE, store.pipeline(PIPELINE).epoch, "by ada")
    assert refused.error is not None and "Trigger a run" in refused.error.remedy
    assert "rewind" not in refused.error.remedy, "it would drop the drained rows"
    store.leave_turn(PIPELINE, RUN)
    launch(lambda *_, **__: pytest.fail("nothing is launched"))
    second = context(world, run=RunKey("dag", "run-2"))
    recover_step(second)
    assert stage(second) == StageResult((), {}, None)
    row = store.run(PIPELINE, second.run)
    assert row is not None and row.staged and not row.complete, "it has read nothing"
    for name in world.delivery.names:
        prepare_step(second, world.delivery, world.config, name)
    for name in world.delivery.names:
        commit_step(second, name)
    assert store.checkpoint(PIPELINE, 2).is_confirmed
    confirm_step(second, world.config, NoArchive())
    with raises(ConfigurationError, "pipeline_drained", checkpoint=2):
        stage(context(world, run=RunKey("dag", "run-3")))


def test_a_drain_with_a_rewound_successor_names_the_way_out(tmp_path: Path, launch: Any) -> None:
    world = World(tmp_path)

    def launcher(request: StageRequest, store: Any, **_: Any) -> StageResult:
        if request.last_published == 0:
            publish(world, request.epoch)
            drain(world, request.epoch)
        else:
            publish(world, request.epoch)
        return StageResult((), {}, request.base)

    launch(launcher)
    stage(context(world))
    world.store.leave_turn(PIPELINE, RUN)
    second = context(world, run=RunKey("dag", "run-2"))
    recover_step(second)
    stage(second, resume_drained=True)
    world.store.leave_turn(PIPELINE, second.run)
    person = Resolver(world.store, PIPELINE, Systems(world.systems), "by ada", Worker("", 1), lease_seconds=0.03)
    person.abort(3, AfterAbort.REWOUND)
    third = context(world, run=RunKey("dag", "run-3"))
    recover_step(third)
    with raises(ConfigurationError, "pipeline_drained", checkpoint=2) as drained:
        stage(third)
    assert drained.error is not None and "resume_drained=True" in drained.error.remedy


def test_a_retry_after_a_finished_drain_computes_nothing(tmp_path: Path, launch: Any) -> None:
    world = World(tmp_path)

    def launcher(request: StageRequest, store: Any, **_: Any) -> StageResult:
        publish(world, request.epoch)
        drain(world, request.epoch)
        raise KeyboardInterrupt

    launch(launcher)
    with pytest.raises(KeyboardInterrupt):
        stage(context(world))
    began = world.store.run(PIPELINE, RUN)
    launch(lambda *_, **__: pytest.fail("nothing is launched"))
    assert stage(context(world)) == StageResult((), {}, None)
    row = world.store.run(PIPELINE, RUN)
    assert began is not None and row is not None and row.staged and row.complete
    assert row.stage_began == began.stage_began, "what came later was not read"


def test_a_rewind_takes_a_drain_back(tmp_path: Path, launch: Any) -> None:
    world = World(tmp_path)

    launch_drain(world, launch)
    stage(context(world))
    store = world.store
    found = drain_of(store, PIPELINE)
    assert found is not None and found.number == 2
    first = store.position_before(PIPELINE, 2)
    assert first is not None and drain_of(store, PIPELINE, (1, first)) is None, "number 1 is older than the drain"
    store.rewind(PIPELINE, store.pipeline(PIPELINE).epoch, 2, store.position_before(PIPELINE, 2), "refused")
    assert drain_of(store, PIPELINE) is None


def test_a_savepoint_of_a_drain_says_so_after_later_publications(tmp_path: Path, launch: Any) -> None:
    """It asks for the number that it covers: the newest one may have gone on behind the drain."""
    world = World(tmp_path)

    def launcher(request: StageRequest, store: Any, **_: Any) -> StageResult:
        publish(world, request.epoch)
        drain(world, request.epoch)
        publish(world, request.epoch)
        return StageResult((), {}, request.base)

    launch(launcher)
    stage(context(world))
    assert drain_of(world.store, PIPELINE) is None
    covered = world.store.position_before(PIPELINE, 3)
    assert covered is not None
    found = drain_of(world.store, PIPELINE, (2, covered))
    assert found is not None and found.number == 2


def test_a_staged_run_computes_nothing_and_takes_no_epoch(tmp_path: Path, launch: Any) -> None:
    world = World(tmp_path)
    world.stage(1)
    epoch = world.store.pipeline(PIPELINE).epoch
    launch(lambda *_, **__: pytest.fail("it was computed again"))
    world.store.leave_turn(PIPELINE, RUN)
    world.store.enter_turn(PIPELINE, RunKey("dag", "another"), None)  # also beside another run: nothing is taken
    assert stage(context(world)) is None
    assert world.store.pipeline(PIPELINE).epoch == epoch


def test_what_another_task_has_staged_is_not_taken_for_this_ones(tmp_path: Path, launch: Any) -> None:
    """Two groups of a DAG that render to one pipeline have one run: the second one's rows would never be computed."""
    world = World(tmp_path)
    launch(lambda *_, **__: StageResult((), {}, POSITION))
    assert stage(context(world)) is not None
    row = world.store.run(PIPELINE, RUN)
    assert row is not None and row.stage_task == context(world).worker.task and row.complete
    launch(lambda *_, **__: pytest.fail("it was computed"))
    before = world.store.pipeline(PIPELINE)
    theirs = replace(context(world), worker=Worker("other"), is_own_stage=lambda task: task == "other")
    with pytest.raises(ConfigurationError) as caught:
        stage(theirs)
    assert row.stage_task in caught.value.what
    assert world.store.pipeline(PIPELINE) == before and stage(context(world)) is None


def test_a_stage_of_another_task_is_found_after_taking_the_epoch(tmp_path: Path, launch: Any) -> None:
    world = World(tmp_path)
    launch(lambda *_, **__: pytest.fail("it was computed"))
    theirs = replace(context(world), worker=Worker("other"), is_own_stage=lambda task: task == "other")
    take_epoch = world.store.take_epoch

    def late(*args: Any, **kwargs: Any) -> int:
        if world.store.pipeline(PIPELINE).epoch == 0:  # the other one begins, and dies, after this one has looked
            epoch = take_epoch(PIPELINE, 0, {}, Worker("first").lease(), "test")
            world.store.begin_stage(PIPELINE, epoch, RUN, "first")
            for lease in world.store.leases(PIPELINE):
                world.store.release_lease(PIPELINE, lease.holder)
        return take_epoch(*args, **kwargs)

    world.store.take_epoch = late  # type: ignore[method-assign]
    with pytest.raises(ConfigurationError) as caught:
        stage(theirs)
    assert "first" in caught.value.what
    row = world.store.run(PIPELINE, RUN)
    assert row is not None and row.stage_task == "first"


def test_a_stage_that_leaves_input_to_the_next_one_says_so(tmp_path: Path, launch: Any) -> None:
    world = World(tmp_path)
    launch(lambda *_, **__: StageResult((), {}, None, complete=False))
    assert stage(context(world)) is not None
    row = world.store.run(PIPELINE, RUN)
    assert row is not None and row.staged and not row.complete


def test_a_run_without_the_turn_takes_no_epoch(tmp_path: Path, launch: Any) -> None:
    world = World(tmp_path)
    world.store.register(PIPELINE)
    world.store.enter_turn(PIPELINE, RunKey("dag", "another"), None)
    launch(lambda *_, **__: pytest.fail("it was computed"))
    with pytest.raises(TurnHeldError):
        stage(context(world))
    assert world.store.pipeline(PIPELINE).epoch == 0


@pytest.mark.parametrize("error", [JobError("it raised."), StageError("killed.")])
def test_a_failed_attempt_is_not_the_end_of_the_stage(error: AirflowFtError, tmp_path: Path, launch: Any) -> None:
    world = World(tmp_path)

    def launcher(
        request: StageRequest, store: Any, *, log: Any, on_start: Any, judge: Any, on_publish: Any, **_: Any
    ) -> StageResult:
        world.store.trigger(PIPELINE, request.epoch, RUN)
        raise error

    launch(launcher)
    with pytest.raises(type(error)):
        stage(context(world))
    row = world.store.run(PIPELINE, RUN)
    assert row is not None and not row.staged
    assert not world.store.pipeline(PIPELINE).base_is_clean
    assert world.store.leases(PIPELINE) == []
    assert world.store.checkpoint(PIPELINE, 1).reason is error.abort_reason, "known at once, by whoever knows why"
    launch(lambda *_, **__: StageResult((), {}, POSITION))
    stage(context(world, try_number=2))
    assert world.store.checkpoint(PIPELINE, 1).state is CheckpointState.ABORTED, "it was never published"


def test_what_a_driver_leaves_that_was_ended_is_stopped(tmp_path: Path, launch: Any) -> None:
    world = World(tmp_path)
    driver = FakeDriver()

    def launcher(
        request: StageRequest, store: Any, *, log: Any, on_start: Any, judge: Any, on_publish: Any, **_: Any
    ) -> StageResult:
        on_start(driver)
        world.store.trigger(PIPELINE, request.epoch, RUN)
        driver.kill()  # as the task's `on_kill` does, and a stream that is to stop at once
        raise StageError("the Spark driver was ended on request.")

    launch(launcher)
    with pytest.raises(StageError):
        stage(context(world))
    checkpoint = world.store.checkpoint(PIPELINE, 1)
    assert checkpoint.reason is AbortReason.STOPPED and checkpoint.message == "the Spark driver was ended on request."


def test_the_driver_is_ended_when_somebody_takes_over(tmp_path: Path, launch: Any) -> None:
    world = World(tmp_path)
    driver = FakeDriver()

    def launcher(
        request: StageRequest, store: Any, *, log: Any, on_start: Any, judge: Any, on_publish: Any, **_: Any
    ) -> StageResult:
        on_start(driver)
        take_over(world, request.epoch)
        assert driver.ended.wait(60), "nobody ended it"
        raise StageError("it was ended on request.")

    launch(launcher)
    with pytest.raises(StageError):
        stage(context(world))


def test_a_fenced_attempt_does_not_end_its_successors_stage(tmp_path: Path, launch: Any) -> None:
    world = World(tmp_path)

    def launcher(
        request: StageRequest, store: Any, *, log: Any, on_start: Any, judge: Any, on_publish: Any, **_: Any
    ) -> StageResult:
        take_over(world, request.epoch)
        return StageResult((), {}, POSITION)

    launch(launcher)
    with pytest.raises(FencedError):
        stage(context(world))
    row = world.store.run(PIPELINE, RUN)
    assert row is not None and not row.staged
    assert world.store.pipeline(PIPELINE).base is None


@pytest.mark.parametrize(
    "error",
    [
        StageError("killed"),
        CheckpointExpiredError("it was not staged in time"),
        StorageUnavailableError("it answers no more"),
        RestartsExhaustedError("a file is missing"),
        WalCorruptError("its base is missing"),
    ],
    ids=["failed", "expired", "away", "restarted", "files"],
)
def test_what_a_driver_reports_after_somebody_took_over_is_that(error: AirflowFtError, tmp_path: Path) -> None:
    world = World(tmp_path)
    store = world.store
    store.register(PIPELINE)
    epoch = store.take_epoch(PIPELINE, 0, {}, Worker("first").lease(), "test")
    request = make(store.pipeline(PIPELINE), epoch, 1)
    raise_if_fenced(store, request, error)  # nobody did: it is what it says
    take_over(world, epoch)
    raise_if_fenced(store, request, JobError("the job's own"))
    with pytest.raises(FencedError) as caught:
        raise_if_fenced(store, request, error)
    assert caught.value.__cause__ is error


def test_what_is_published_is_delivered_while_spark_goes_on(tmp_path: Path, launch: Any) -> None:
    world = World(tmp_path)

    def launcher(
        request: StageRequest, store: Any, *, log: Any, on_start: Any, judge: Any, on_publish: Any, **_: Any
    ) -> StageResult:
        for number in (1, 2):
            assert publish(world, request.epoch) == number
            wait_for(
                lambda number=number: world.store.checkpoint(PIPELINE, number).is_confirmed, 30, "it is confirmed", 0.01
            )
        return StageResult((1, 2), {}, POSITION)

    launch(launcher)
    assert stage(context(world), overlap=(world.delivery, world.config, lambda _: None, NoArchive())) is not None
    world.steps(context(world))
    world.check_exactly_once([1, 2])


def test_an_unavailable_sink_is_retried_without_ending_the_stage(tmp_path: Path, launch: Any) -> None:
    world = World(tmp_path)
    world.systems["log"].away = True

    def launcher(
        request: StageRequest, store: Any, *, log: Any, on_start: Any, judge: Any, on_publish: Any, **_: Any
    ) -> StageResult:
        publish(world, request.epoch)
        wait_for(lambda: "db" in world.store.checkpoint(PIPELINE, 1).votes, 30, "it has voted", 0.01)
        world.systems["log"].away = False
        wait_for(lambda: world.store.checkpoint(PIPELINE, 1).is_confirmed, 30, "it is confirmed", 0.01)
        world.systems["log"].away = True
        publish(world, request.epoch)
        return StageResult((1, 2), {}, POSITION)

    launch(launcher)
    assert stage(context(world), overlap=(world.delivery, world.config, lambda _: None, NoArchive())) is not None
    world.systems["log"].away = False
    world.steps(context(world))
    world.check_exactly_once([1, 2])


def test_refused_rows_end_the_driver_and_are_the_reported_reason(tmp_path: Path, launch: Any) -> None:
    world = World(tmp_path)
    world.systems["db"].declines_in_prepare = True
    driver = FakeDriver()

    def launcher(
        request: StageRequest, store: Any, *, log: Any, on_start: Any, judge: Any, on_publish: Any, **_: Any
    ) -> StageResult:
        on_start(driver)
        publish(world, request.epoch)
        assert driver.ended.wait(60), "nobody ended it"
        raise StageError("it was ended on request.")

    launch(launcher)
    with pytest.raises(DeclinedError):
        stage(context(world), overlap=(world.delivery, world.config, lambda _: None, NoArchive()))
    assert world.store.checkpoint(PIPELINE, 1).reason is AbortReason.DECLINED
    row = world.store.run(PIPELINE, RUN)
    assert row is not None and not row.staged


def test_a_driver_that_hangs_is_killed(tmp_path: Path, launch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Code of the job that never returns can hold Python's lock: no thread of the driver ends the checkpoint."""
    monkeypatch.setattr(hung, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr(hung, "GRACE_SECONDS", 0.2)
    world = World(tmp_path)
    numbers: list[int] = []
    config = CheckpointConfig(timeout=timedelta(seconds=1))

    def launcher(request: StageRequest, store: Any, *, on_start: Any, **_: Any) -> StageResult:
        driver = FakeDriver()
        on_start(driver)
        publish(world, request.epoch)
        numbers.append(world.store.trigger(PIPELINE, request.epoch, RUN))
        assert driver.ended.wait(60)
        raise StageError("the driver was killed.", code="driver_killed")

    launch(launcher)
    with raises(CheckpointExpiredError, "checkpoint_expired", checkpoint=2):
        make_request = lambda *of: replace(make(*of), checkpointing=config)  # noqa: E731
        stage_step(context(world), Staging(make_request=make_request, on_line=lambda _: None))
    assert numbers == [2] and world.store.checkpoint(PIPELINE, 2).reason is AbortReason.EXPIRED
    assert world.store.checkpoint(PIPELINE, 1).state is CheckpointState.STAGED


def test_a_driver_hangs_if_one_checkpoint_is_overdue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]

    def unreachable(*_: Any) -> Any:
        raise StoreUnavailableError("it is away.")

    monkeypatch.setattr(hung, "time", SimpleNamespace(monotonic=lambda: now[0]))
    world = World(tmp_path)
    world.store.register(PIPELINE)
    with new_epoch(world.store, PIPELINE, Worker("t", 1), "a test") as (epoch, _):
        watch = HungDriver(world.store, PIPELINE, epoch)
        watch.timeout = 10.0
        world.store.begin_stage(PIPELINE, epoch, RUN)
        for _ in range(5):
            now[0] += 100.0
            publish(world, epoch)
            watch.check()
        world.store.trigger(PIPELINE, epoch, RUN)
        for _ in range(2):
            now[0] += 100.0
            watch.check()
        now[0] += 100.0
        with monkeypatch.context() as away:
            away.setattr(world.store, "open_checkpoints", unreachable)
            watch.check()
        now[0] += 100.0
        with raises(CheckpointExpiredError, "checkpoint_expired", checkpoint=6):
            watch.check()
