"""Which failures of checkpoints a stream tolerates, and which go to its restart strategy."""

from __future__ import annotations

import json
import time
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_ft.protocol.config import CheckpointConfig
from airflow_ft.protocol.errors import (
    AirflowFtError,
    CheckpointExpiredError,
    JobError,
    RestartsExhaustedError,
    SealError,
    StageError,
    StoreUnavailableError,
    TerminalError,
)
from airflow_ft.protocol.model import CheckpointState
from airflow_ft.protocol.reasons import AbortReason
from airflow_ft.protocol.restart import FailureRate, FixedDelay, Restarts
from airflow_ft.spark.driver import job_restarts
from airflow_ft.spark.driver.ending import Ending
from airflow_ft.spark.driver.executors import MOST_LOSSES
from airflow_ft.spark.driver.job_restarts import MOST_RESTARTS, JobRestarts
from airflow_ft.spark.driver.publisher import PublishedCounts
from airflow_ft.spark.driver.requests import Requests
from airflow_ft.spark.reports import rebuild_error
from airflow_ft.spark.request import StageRequest
from airflow_ft.spark.session.submit import DRAIN, END, KILL
from airflow_ft.store.sqlite import SqliteStore
from tests.store.scene import PIPELINE, RUN, Scene


class _Driver:
    """The restarts of a driver, with a strategy that the test counts."""

    def __init__(self, scene: Scene, folder: Path, waits: _Waits, restarts: Restarts, **checkpointing: Any) -> None:
        scene.take()
        self.request = StageRequest(
            pipeline=PIPELINE,
            run=RUN,
            epoch=1,
            attempt=scene.store.begin_stage(PIPELINE, 1, RUN),
            store_url="",
            wal_root="/wal",
            job="jobs.p",
            sinks=("s",),
            streaming=True,
            checkpointing=CheckpointConfig(**checkpointing),
        )
        self.store = scene.store
        self.ending = Ending(self.request, folder / "report")
        self._counts = PublishedCounts()
        self._restarts = JobRestarts(self.request, waits, self._counts, self.ending)  # type: ignore[arg-type]
        self._restarts._restarts = restarts

    def publishes(self) -> None:
        """One checkpoint."""
        self._counts.numbers = self._counts.numbers.plus(1)

    def fails(self, error: AirflowFtError) -> None:
        """An attempt that has begun to compute fails, and the next one begins."""
        spark: Any = None
        self.ending.begin()
        again = self._restarts.after(self.store, spark, self.request, error)
        assert again is not None
        self.request = self.ending.request = again


@pytest.mark.parametrize("error", [CheckpointExpiredError, SealError, StageError, JobError])
def test_tolerable_checkpoint_failures_do_not_count_as_restarts(
    error: type[AirflowFtError], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_restarts, "is_alive", lambda _: True)
    with SqliteStore(tmp_path / "ft.db") as store:
        scene = Scene(store)
        restarts = FixedDelay(attempts=100, delay=timedelta(0)).begin(0.0)
        driver = _Driver(scene, tmp_path, _Waits(), restarts, tolerable_failures=2)

        def fails() -> int:
            """One checkpoint more; how many restarts there were by now."""
            scene.trigger()
            store.give_up(PIPELINE, 1, error.abort_reason, "a test")
            driver.fails(error("a test"))
            return restarts.count

        counts = error.abort_reason.counts
        assert [fails() for _ in range(4)] == ([0, 0, 1, 2] if counts else [1, 2, 3, 4])
        scene.complete(scene.stage(1, continues=True)[0])
        assert fails() == (2 if counts else 5)


class _Waits:
    """The task asks for nothing; remembers how long it was waited for that."""

    def __init__(self) -> None:
        self.within: list[float] = []

    def is_to_drain(self) -> bool:
        return False

    def is_killed(self) -> bool:
        return False

    def is_to_end(self, within: float = 0.0) -> bool:
        self.within.append(within)
        return False


@pytest.mark.parametrize(
    ("error", "interval", "pause"),
    [(SealError, 30, 30.0), (SealError, 0, 1.0), (CheckpointExpiredError, 30, 0.0)],
)
def test_a_checkpoint_failing_at_once_is_retried_after_a_pause(
    error: type[AirflowFtError], interval: int, pause: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each try leaves an aborted checkpoint in the log, and files on the very disk that is full. The next one is due
    after the interval, as in Flink; one that has expired has taken longer than that.
    """
    monkeypatch.setattr(job_restarts, "is_alive", lambda _: True)
    waits, pauses = _Waits(), timedelta(seconds=interval)
    with SqliteStore(tmp_path / "ft.db") as store:
        scene = Scene(store)
        restarts = FixedDelay(attempts=1, delay=timedelta(0)).begin(0.0)
        driver = _Driver(scene, tmp_path, waits, restarts, tolerable_failures=-1, interval=pauses)
        for _ in range(3):
            scene.trigger()
            store.give_up(PIPELINE, 1, error.abort_reason, "a test")
            driver.fails(error("a test"))
    assert waits.within == [pause] * 3


@pytest.mark.parametrize("error", [CheckpointExpiredError, SealError, StageError, JobError])
def test_a_failure_that_the_strategy_gave_up_on_is_terminal(
    error: type[AirflowFtError], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its strategy would count from the beginning, and so would Airflow's retries after that."""
    monkeypatch.setattr(job_restarts, "is_alive", lambda _: True)
    with SqliteStore(tmp_path / "ft.db") as store:
        restarts = FixedDelay(attempts=1, delay=timedelta(0)).begin(0.0)
        driver = _Driver(Scene(store), tmp_path, _Waits(), restarts)
        failed = error("a test.", remedy="mend it.", sink="s")
        store.give_up(PIPELINE, 1, failed.abort_reason, "a test")
        restarts.failed(0.0, 0.5)
        with pytest.raises(error) as caught:
            driver.fails(failed)
        driver.ending.report(caught.value)
    data = rebuild_error(json.loads((tmp_path / "report").read_text())["error"])
    assert isinstance(data, TerminalError) and (data.sink, data.remedy) == ("s", "mend it.")
    assert ("a test. It is not restarted any more (once, after 0 s)." in data.what) == (error is not JobError)


def test_a_failure_rate_is_reached_before_another_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_restarts, "is_alive", lambda _: True)
    rate = FailureRate(max_failures_per_interval=8, failure_rate_interval=timedelta(hours=1), delay=timedelta(0))
    with SqliteStore(tmp_path / "ft.db") as store:
        driver = _Driver(Scene(store), tmp_path, _Waits(), rate.begin(time.monotonic()))
        for _ in range(8):
            driver.fails(StageError("a test"))
        with pytest.raises(StageError):
            driver.fails(StageError("a test"))
        assert isinstance(driver.ending.first, RestartsExhaustedError)


def test_restarts_that_do_not_help_end_with_another_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Local files of the JVM may be lost. An error of the job would be the same in another one."""
    monkeypatch.setattr(job_restarts, "is_alive", lambda _: True)
    endless = FixedDelay(attempts=None, delay=timedelta(0))
    with SqliteStore(tmp_path / "ft.db") as store:
        driver = _Driver(Scene(store), tmp_path, _Waits(), endless.begin(0.0))
        for _ in range(MOST_RESTARTS + 1):
            driver.fails(JobError("a test"))
        for _ in range(MOST_RESTARTS):
            driver.fails(StageError("a test"))
        driver.publishes()
        for _ in range(MOST_RESTARTS):
            driver.fails(StageError("a test"))
        with pytest.raises(StageError):
            driver.fails(StageError("a test"))


class _Away:
    """A decision log whose next writes of a new attempt are not answered; `arrives`: the write happens nevertheless."""

    def __init__(self, store: SqliteStore, times: int, *, arrives: bool = False) -> None:
        self._store, self.left, self._arrives = store, times, arrives

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def begin_again(self, *given: Any) -> int:
        if self.left:
            self.left -= 1
            if self._arrives:
                self._store.begin_again(*given)
            raise StoreUnavailableError("it is away.", unanswered=self._arrives)
        return self._store.begin_again(*given)


@pytest.mark.parametrize("arrives", [False, True])
def test_the_driver_waits_while_the_decision_log_is_unavailable(
    arrives: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The JVM continues with a new attempt of the same epoch, and the restart strategy does not count it."""
    monkeypatch.setattr(job_restarts, "is_alive", lambda _: True)
    waits = _Waits()
    with SqliteStore(tmp_path / "ft.db") as store:
        scene = Scene(store)
        restarts = FixedDelay(attempts=0).begin(0.0)
        driver = _Driver(scene, tmp_path, waits, restarts)
        driver.store = _Away(store, 2, arrives=arrives)  # type: ignore[assignment]
        number, attempt = scene.trigger(), driver.request.attempt
        driver.fails(StoreUnavailableError("COMMIT was not answered.", unanswered=True))
        found = store.checkpoint(PIPELINE, number)
    assert (driver.request.epoch, driver.request.attempt) == (1, attempt + (3 if arrives else 1))
    assert (found.state, found.reason) == (CheckpointState.ABORTED, AbortReason.PUBLISH_FAILED)
    assert restarts.count == 0


def test_a_new_attempt_begins_at_an_unanswered_publication(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_restarts, "is_alive", lambda _: True)
    with SqliteStore(tmp_path / "ft.db") as store:
        scene = Scene(store)
        driver = _Driver(scene, tmp_path, _Waits(), FixedDelay(attempts=0).begin(0.0))
        number = scene.trigger()
        scene.publish(number)
        driver.fails(StoreUnavailableError("COMMIT was not answered.", unanswered=True))
        base = store.pipeline(PIPELINE).base
    assert (driver.request.base, driver.request.last_published) == (base, number)


def test_a_stop_during_a_restart_leaves_no_checkpoint_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The decision log was away when the attempt failed, so its checkpoint was not aborted."""
    monkeypatch.setattr(job_restarts, "is_alive", lambda _: True)
    waits = _Waits()
    monkeypatch.setattr(waits, "is_to_end", lambda within=0.0: True)
    with SqliteStore(tmp_path / "ft.db") as store:
        scene = Scene(store)
        driver = _Driver(scene, tmp_path, waits, FixedDelay(attempts=1).begin(0.0))
        number = scene.trigger()
        driver.ending.begin()
        spark: Any = None
        assert driver._restarts.after(store, spark, driver.request, JobError("a test")) is None
        found = store.checkpoint(PIPELINE, number)
        assert found is not None and found.state is CheckpointState.ABORTED


@pytest.mark.parametrize("asked", ["end", "kill", "late", "often"])
def test_a_driver_does_not_wait_for_the_decision_log_for_ever(
    asked: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_restarts, "is_alive", lambda _: True)
    if asked == "late":
        monkeypatch.setattr(job_restarts, "_LOG_AWAY", -1.0)
    waits = _Waits()
    with SqliteStore(tmp_path / "ft.db") as store:
        driver = _Driver(Scene(store), tmp_path, waits, FixedDelay(attempts=0).begin(0.0))
        if asked == "often":  # and nothing was published in between
            for _ in range(MOST_LOSSES):
                driver.fails(StoreUnavailableError("it is away."))
        else:
            driver.store = _Away(store, 1_000)  # type: ignore[assignment]
            monkeypatch.setattr(waits, "is_to_end", lambda within=0.0: asked == "end" and within > 0)
            monkeypatch.setattr(waits, "is_killed", lambda: asked == "kill" and driver.store.left < 1_000)
        with pytest.raises(StoreUnavailableError):
            driver.fails(StoreUnavailableError("it is away."))


def test_a_drain_that_waits_to_restart_ends_at_once_on_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_restarts, "is_alive", lambda _: True)
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        (tmp_path / KILL).touch()

    (tmp_path / END).write_text(DRAIN)
    monkeypatch.setattr(job_restarts, "time", SimpleNamespace(sleep=sleep, monotonic=lambda: sum(slept)))
    with SqliteStore(tmp_path / "ft.db") as store:
        restarts = FixedDelay(attempts=1, delay=timedelta(minutes=1)).begin(0.0)
        waits: Any = Requests(tmp_path)
        driver = _Driver(Scene(store), tmp_path, waits, restarts)
        driver.ending.begin()
        spark: Any = None
        assert driver._restarts.after(store, spark, driver.request, StageError("a test")) is None
    assert sum(slept) < 30, "after 30 s the task would end the process of all streams"


def test_a_drain_waits_before_it_restarts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_restarts, "is_alive", lambda _: True)
    slept: list[float] = []
    (tmp_path / END).write_text(DRAIN)
    monkeypatch.setattr(job_restarts, "time", SimpleNamespace(sleep=slept.append, monotonic=lambda: sum(slept)))
    monkeypatch.setattr(job_restarts, "drain_of", lambda *_: None)
    with SqliteStore(tmp_path / "ft.db") as store:
        restarts = FixedDelay(attempts=1, delay=timedelta(minutes=1)).begin(0.0)
        waits: Any = Requests(tmp_path)
        driver = _Driver(Scene(store), tmp_path, waits, restarts)
        driver.fails(StageError("a test"))
    assert sum(slept) == 60.0
