"""How a stream ends, without Spark: stopped, or failed for good; what is deleted then is in `test_cleanup`."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_ft.protocol.errors import (
    AirflowFtError,
    CheckpointExpiredError,
    JobError,
    LeaseHeldError,
    RestartsExhaustedError,
    SinkAccessError,
    StageError,
    StorageUnavailableError,
    StoreUnavailableError,
    TerminalError,
)
from airflow_ft.protocol.model import ExternalizedRetention
from airflow_ft.protocol.pipelines import RequestKind
from airflow_ft.protocol.reasons import AbortReason
from airflow_ft.protocol.restart import FixedDelay, NoRestart
from airflow_ft.protocol.steps import recover_step
from airflow_ft.spark.request import StageRequest, StageResult
from airflow_ft.spark.savepoints.metadata import Savepoint, write_metadata
from airflow_ft.spark.savepoints.stopping import DRAIN, SAVEPOINT
from airflow_ft.spark.task import answers, stream
from airflow_ft.spark.task.answers import answer_stops
from airflow_ft.spark.task.stage import Staging
from airflow_ft.spark.task.stream import StreamEnd, finish_step, stream_step
from tests.protocol.systems import NoArchive
from tests.protocol.world import PIPELINE, World
from tests.raising import raises
from tests.spark.test_stage_step import FakeDriver, context, make, publish

STAGING = Staging(make_request=make, on_line=lambda _: None)


class Ending:
    """A stream that publishes a checkpoint that a sink cannot take yet, and then ends."""

    def __init__(self, world: World, patch: pytest.MonkeyPatch, error: AirflowFtError | None = None) -> None:
        self.world, self.error = world, error
        self.asks: dict[str, Any] | None = {} if error is None else None
        self.seen: Any = None
        self.run = context(world)
        config = replace(world.config, externalized_retention=ExternalizedRetention.NO_EXTERNALIZED_CHECKPOINTS)
        self.overlap: Any = (world.delivery, config, lambda _: None, NoArchive())
        self.cleaned: list[tuple[bool, int, bool]] = []
        patch.setattr("airflow_ft.spark.task.stage.run_stage", self._launch)
        patch.setattr(stream, "clean_up", self._clean_up)
        world.systems["log"].away = True

    def _launch(self, request: StageRequest, *_: Any, on_start: Any, **__: Any) -> StageResult:
        on_start(FakeDriver())
        publish(self.world, request.epoch)
        if self.asks is not None:
            self.world.store.ask(PIPELINE, RequestKind.STOP, self.asks, "a test")
        if self.error is not None:
            raise self.error
        return StageResult((1,), {}, None, complete=False)

    def _clean_up(self, run: Any, epoch: int, *_: Any, failed: bool, seen_requests: Any = None, **__: Any) -> str:
        self.seen = seen_requests
        is_mine = epoch == self.world.store.pipeline(PIPELINE).epoch
        self.cleaned.append((is_mine, self.world.store.undelivered(PIPELINE), failed))
        return "its checkpoints are deleted"

    def step(self, **more: Any) -> StreamEnd:
        return stream_step(self.run, STAGING, self.overlap, strategy=NoRestart(), **more)


@pytest.mark.parametrize(
    ("error", "last_try", "is_over"),
    [
        (JobError("the value 15 is bad"), False, True),
        (StageError("the driver was killed"), False, True),
        (SinkAccessError("there is no table"), False, True),
        (StoreUnavailableError("the decision log is away"), False, False),
        (LeaseHeldError("an older owner is at work on it"), False, False),
        (StoreUnavailableError("the decision log is away"), True, True),
    ],
)
def test_what_nobody_tries_again_has_failed_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: AirflowFtError, last_try: bool, is_over: bool
) -> None:
    """What is staged is delivered first, where that is possible: only what is confirmed can be deleted.

    Airflow tries nothing again that the restart strategy has given up on: that would begin the strategy anew.
    """
    ending = Ending(World(tmp_path), monkeypatch, error)
    with pytest.raises(AirflowFtError, check=lambda found: error.what in found.what) as caught:
        ending.step(last_try=last_try)
    assert isinstance(caught.value, TerminalError) == (is_over and not last_try)
    assert ending.cleaned == ([(True, 1, True)] if is_over else [])
    ending.world.systems["log"].away = False
    ending.cleaned.clear()
    with pytest.raises(AirflowFtError, check=lambda found: error.what in found.what):
        ending.step(last_try=last_try)
    assert ending.cleaned == ([(True, 0, True)] if is_over else [])


class Killed(Exception):
    """As `on_kill` has the operator raise it."""


@pytest.mark.parametrize("log_is_away", [False, True])
def test_a_task_that_is_ended_is_no_failure_of_its_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log_is_away: bool
) -> None:
    """`on_kill` ends the driver. Airflow retries the task, which continues with the stream's state."""
    ending, killed = Ending(World(tmp_path), monkeypatch, StageError("the driver was killed")), False

    def launch(*arguments: Any, **more: Any) -> StageResult:
        nonlocal killed
        killed = True
        if log_is_away:
            monkeypatch.setattr(stream, "stops", away)
        return ending._launch(*arguments, **more)

    def away(*_: Any) -> Any:
        raise StoreUnavailableError("the decision log is away")

    def why_stop() -> str:
        if killed:
            raise Killed
        return ""

    monkeypatch.setattr("airflow_ft.spark.task.stage.run_stage", launch)
    with pytest.raises(Killed):
        ending.step(why_stop=why_stop, last_try=True)
    assert ending.cleaned == []


def test_a_driver_that_dies_while_it_stops_needs_no_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ending = Ending(World(tmp_path), monkeypatch, StageError("the driver was killed"))
    ending.asks = {}
    end = ending.step()
    assert ending.cleaned == [] and end.epoch == ending.world.store.pipeline(PIPELINE).epoch


def test_a_drain_is_retried_though_the_log_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ending = Ending(World(tmp_path), monkeypatch)
    ending.asks, outage = {DRAIN: True}, iter([StoreUnavailableError("the decision log is away")] * 3)
    launched = 0

    def drain_of(*_: Any) -> None:
        if (error := next(outage, None)) is not None:
            raise error

    def launch(*arguments: Any, **more: Any) -> StageResult:
        nonlocal launched
        launched += 1
        monkeypatch.setattr(stream, "drain_of", drain_of)
        result = ending._launch(*arguments, **more)
        if launched == 1:
            raise StoreUnavailableError("the decision log is away")
        return result

    monkeypatch.setattr("airflow_ft.spark.task.stage.run_stage", launch)
    strategy = FixedDelay(attempts=1, delay=timedelta(milliseconds=1))
    stream_step(ending.run, STAGING, ending.overlap, strategy=strategy)
    assert launched == 2


@pytest.mark.parametrize(("asks", "deletes"), [({}, True), ({SAVEPOINT: "/there"}, False), ({DRAIN: True}, False)])
def test_a_failed_stream_keeps_what_a_stop_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asks: dict[str, Any], deletes: bool
) -> None:
    monkeypatch.setattr(answers, "has_state", lambda _: True)
    ending = Ending(World(tmp_path), monkeypatch, JobError("the value 15 is bad"))
    ending.asks = asks
    with pytest.raises(AirflowFtError):
        ending.step()
    assert bool(ending.cleaned) is deletes
    assert ending.seen == ([1] if deletes else None), "a later request keeps the state, too"


def test_a_stop_delivers_rows_of_an_expired_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """I7: the stop comes before a driver has given these rows another number."""
    ending = Ending(World(tmp_path), monkeypatch)
    config = replace(ending.overlap[1], timeout=timedelta(seconds=1))
    ending.overlap = (ending.overlap[0], config, *ending.overlap[2:])

    def launch(request: StageRequest, *_: Any, on_start: Any, **__: Any) -> StageResult:
        on_start(driver := FakeDriver())
        publish(ending.world, request.epoch)
        assert driver.ended.wait(30)
        ending.world.store.ask(PIPELINE, RequestKind.STOP, {}, "a test")
        raise StageError("the driver was killed")

    monkeypatch.setattr("airflow_ft.spark.task.stage.run_stage", launch)
    strategy = FixedDelay(attempts=2, delay=timedelta(milliseconds=1))
    end = stream_step(ending.run, STAGING, ending.overlap, strategy=strategy)
    assert ending.world.store.checkpoint(PIPELINE, 1).reason is AbortReason.EXPIRED
    ending.world.systems["log"].away = False
    confirmation, _ = finish_step(ending.run, ending.overlap, end)
    assert confirmation.latest == 2 and ending.world.systems["log"].rows == [1]


def test_the_answer_to_a_stop_tells_the_fate_of_the_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ending = Ending(World(tmp_path), monkeypatch)
    end = ending.step()
    assert ending.cleaned == [], "not before all is delivered"
    ending.world.systems["log"].away = False
    confirmation, outcome = finish_step(ending.run, ending.overlap, end)
    assert ending.cleaned == [(True, 0, False)] and confirmation.latest == 1
    answer_stops(ending.run, outcome)
    answer = ending.world.store.request(PIPELINE, 1).outcome
    assert answer == "stopped; 1 is the newest confirmed checkpoint; its checkpoints are deleted"


@pytest.mark.parametrize("is_early", [True, False])
def test_a_stop_is_heard_from_the_turn_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_early: bool) -> None:
    """The operator recovers first, which may wait long for a dead lease."""
    ending = Ending(World(tmp_path), monkeypatch)
    store = ending.world.store
    store.register(PIPELINE)
    for asks in (is_early, not is_early):
        if asks:
            store.ask(PIPELINE, RequestKind.STOP, {SAVEPOINT: "/there"}, "a test")
        recover_step(ending.run, again=True)
    with store._database.write() as tx:  # the clock was changed in between
        tx.change("UPDATE request SET asked_at = asked_at + ?", 10**9 if is_early else -(10**9))
    ending.step()
    assert bool(store.checkpoints(PIPELINE)) is is_early, "else no driver was started"
    said = "nothing was running; no savepoint was taken"
    request = store.request(PIPELINE, 1)
    assert (request.outcome, request.missing) == ((said, (SAVEPOINT,)) if is_early else ("", ()))


@pytest.mark.parametrize("is_there", [True, False])
def test_an_early_answer_names_the_savepoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_there: bool) -> None:
    """The run before took it, and died before its answer. It may have been deleted since."""
    ending = Ending(World(tmp_path), monkeypatch)
    store, uri = ending.world.store, (tmp_path / "s").as_uri()
    store.register(PIPELINE)
    if is_there:
        (tmp_path / "s").mkdir()
        taken = Savepoint("1", PIPELINE, store.installation, 1, 0, store.now(), "ada", {}, (), "", False, {}, {}, {})
        write_metadata(uri, taken)
    asked = store.ask(PIPELINE, RequestKind.STOP, {SAVEPOINT: "/there", DRAIN: True}, "a test")
    store.note_savepoint(PIPELINE, 1, f"in {uri}: a test", {"uri": uri, "request": asked})
    recover_step(ending.run, again=True)
    ending.step()
    request = store.request(PIPELINE, asked)
    said = f"savepoint of checkpoint 1: {uri}" if is_there else f"the savepoint in {uri} cannot be read (look again: "
    assert request.outcome.startswith(f"nothing was running; nothing was drained; {said}")
    assert request.missing == (() if is_there else (SAVEPOINT,)), "there is no state to drain"


def test_an_early_answer_says_that_a_drain_is_not_delivered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run before staged it and could not deliver it: a sink may still refuse it."""
    ending = Ending(World(tmp_path), monkeypatch)
    store = ending.world.store
    drain = SimpleNamespace(number=2, is_confirmed=False, run=ending.run.run)
    monkeypatch.setattr("airflow_ft.spark.task.answers.drain_of", lambda *_: drain)
    store.register(PIPELINE)
    asked = store.ask(PIPELINE, RequestKind.STOP, {DRAIN: True}, "a test")
    recover_step(ending.run, again=True)
    ending.step()
    request = store.request(PIPELINE, asked)
    assert request.outcome.endswith("checkpoint 2 has drained the state, but is not delivered yet")
    assert request.missing == (DRAIN,)


@pytest.mark.parametrize("drains", [False, True])
def test_only_a_stop_with_a_drain_needs_the_storage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drains: bool
) -> None:
    ending = Ending(World(tmp_path), monkeypatch)
    end = ending.step()
    ending.world.systems["log"].away = False

    def away(_: Any) -> bool:
        raise StorageUnavailableError("it is away.")

    monkeypatch.setattr("airflow_ft.spark.task.stream.is_open", away)
    if drains:
        ending.world.store.ask(PIPELINE, RequestKind.STOP, {DRAIN: True}, "a test")
    with raises(StorageUnavailableError, "storage_unavailable") if drains else nullcontext():
        assert finish_step(ending.run, ending.overlap, end)[1].is_open


def test_only_the_first_driver_waits_until_the_sinks_are_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ending = Ending(World(tmp_path), monkeypatch)
    said: list[str] = []

    def look() -> None:
        said.append("looked")
        if len(said) == 1:
            raise SinkAccessError("there is no table.")

    def launch(*arguments: Any, **more: Any) -> StageResult:
        said.append("launched")
        if said.count("launched") == 1:
            raise StageError("the driver was killed")
        return ending._launch(*arguments, **more)

    monkeypatch.setattr("airflow_ft.spark.task.stage.run_stage", launch)
    strategy = FixedDelay(attempts=2, delay=timedelta(milliseconds=1))
    stream_step(ending.run, replace(STAGING, preflight=look), ending.overlap, strategy=strategy)
    assert said == ["looked", "looked", "launched", "launched"]


@pytest.mark.parametrize("tolerable", [0, -1])
def test_tolerance_covers_a_checkpoint_that_ended_its_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tolerable: int
) -> None:
    """A job that hangs does not end when its checkpoint has expired: its process has to."""
    ending = Ending(World(tmp_path), monkeypatch)
    ending.overlap = (ending.overlap[0], replace(ending.overlap[1], tolerable_failures=tolerable), *ending.overlap[2:])
    errors = iter([CheckpointExpiredError("it was not staged in time"), None])

    def launch(request: StageRequest, *arguments: Any, **more: Any) -> StageResult:
        if (error := next(errors)) is not None:
            number = ending.world.store.trigger(PIPELINE, request.epoch, request.run)
            ending.world.store.give_up(PIPELINE, request.epoch, error.abort_reason, f"of {number}")
            raise error
        return ending._launch(request, *arguments, **more)

    monkeypatch.setattr("airflow_ft.spark.task.stage.run_stage", launch)
    if tolerable:
        ending.step()
    else:
        with pytest.raises(RestartsExhaustedError):
            ending.step()
    assert len(list(errors)) == (0 if tolerable else 1)


def test_nothing_is_begun_when_the_sinks_do_not_become_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ending = Ending(World(tmp_path), monkeypatch, JobError("it was started"))

    def lacks() -> None:
        raise SinkAccessError("there is no table.")

    with pytest.raises(RestartsExhaustedError):
        stream_step(ending.run, replace(STAGING, preflight=lacks), ending.overlap, strategy=NoRestart())
    assert ending.world.store.pipeline(PIPELINE).epoch == 0
