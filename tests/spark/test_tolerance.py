"""Which failures of checkpoints a stream tolerates, and which go to its restart strategy."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_ft.protocol.config import CheckpointConfig
from airflow_ft.protocol.errors import (
    AirflowFtError,
    CheckpointExpiredError,
    JobError,
    SealError,
    StageError,
    TerminalError,
)
from airflow_ft.protocol.restart import FixedDelay, Restarts
from airflow_ft.spark.driver import job_restarts
from airflow_ft.spark.driver.ending import Ending
from airflow_ft.spark.driver.job_restarts import JobRestarts
from airflow_ft.spark.driver.publisher import PublishedCounts
from airflow_ft.spark.reports import rebuild_error
from airflow_ft.spark.request import StageRequest
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
        self._restarts = JobRestarts(self.request, waits, PublishedCounts(), self.ending)  # type: ignore[arg-type]
        self._restarts._restarts = restarts

    def fails(self, error: AirflowFtError) -> None:
        """An attempt that has begun to compute fails, and the next one begins."""
        spark: Any = None
        self.ending.begin()
        again = self._restarts.after(self.store, spark, self.request, error)
        assert again is not None
        self.request = self.ending.request = again


@pytest.mark.parametrize("error", [CheckpointExpiredError, SealError, StageError, JobError])
def test_so_many_failed_checkpoints_in_a_row_are_no_restart_and_other_failures_always_are(
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
def test_what_fails_at_once_and_is_tolerated_without_end_is_no_loop_without_a_pause(
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
def test_what_the_strategy_has_given_up_on_is_not_restarted_by_whoever_started_the_driver(
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
