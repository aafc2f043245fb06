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
from airflow_ft.protocol.restart import FixedDelay
from airflow_ft.spark.driver import runner
from airflow_ft.spark.reports import rebuild_error
from airflow_ft.spark.request import StageRequest
from airflow_ft.store.sqlite import SqliteStore
from tests.store.scene import PIPELINE, RUN, Scene


def _attempt(scene: Scene, folder: Path, **checkpointing: Any) -> runner.Attempt:
    scene.take()
    request = StageRequest(
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
    return runner.Attempt(request, folder / "report", None)


@pytest.mark.parametrize("error", [CheckpointExpiredError, SealError, StageError, JobError])
def test_so_many_failed_checkpoints_in_a_row_are_no_restart_and_other_failures_always_are(
    error: type[AirflowFtError], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "_is_alive", lambda _: True)
    spark: Any = None
    with SqliteStore(tmp_path / "ft.db") as store:
        scene = Scene(store)
        attempt = _attempt(scene, tmp_path, tolerable_failures=2)
        attempt._requests = _Waits()  # type: ignore[assignment]
        restarts = FixedDelay(attempts=100, delay=timedelta(0)).begin(0.0)

        def fails() -> int:
            """One checkpoint more; how many restarts there were by now."""
            attempt._began = True
            scene.trigger()
            store.give_up(PIPELINE, 1, error.abort_reason, "a test")
            assert not attempt._is_over_after(store, spark, error("a test"), restarts)
            return restarts.count

        counts = error.abort_reason.counts
        assert [fails() for _ in range(4)] == ([0, 0, 1, 2] if counts else [1, 2, 3, 4])
        scene.complete(scene.stage(1, goes_on=True)[0])
        assert fails() == (2 if counts else 5)


class _Waits:
    """The task asks for nothing; remembers how long it was waited for that."""

    def __init__(self) -> None:
        self.within: list[float] = []

    def is_to_drain(self) -> bool:
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
    monkeypatch.setattr(runner, "_is_alive", lambda _: True)
    spark: Any = None
    with SqliteStore(tmp_path / "ft.db") as store:
        scene = Scene(store)
        attempt = _attempt(scene, tmp_path, tolerable_failures=-1, interval=timedelta(seconds=interval))
        attempt._requests = waits = _Waits()  # type: ignore[assignment]
        restarts = FixedDelay(attempts=1, delay=timedelta(0)).begin(0.0)
        for _ in range(3):
            attempt._began = True
            scene.trigger()
            store.give_up(PIPELINE, 1, error.abort_reason, "a test")
            assert not attempt._is_over_after(store, spark, error("a test"), restarts)
    assert waits.within == [pause] * 3


@pytest.mark.parametrize("error", [CheckpointExpiredError, SealError, StageError, JobError])
def test_what_the_strategy_has_given_up_on_is_not_restarted_by_whoever_started_the_driver(
    error: type[AirflowFtError], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its strategy would count from the beginning, and so would Airflow's retries after that."""
    monkeypatch.setattr(runner, "_is_alive", lambda _: True)
    spark: Any = None
    with SqliteStore(tmp_path / "ft.db") as store:
        attempt = _attempt(Scene(store), tmp_path)
        restarts = FixedDelay(attempts=1, delay=timedelta(0)).begin(0.0)
        failed = error("a test.", remedy="mend it.", sink="s")
        store.give_up(PIPELINE, 1, failed.abort_reason, "a test")
        attempt._began = True
        restarts.failed(0.0, 0.5)
        with pytest.raises(error) as caught:
            attempt._is_over_after(store, spark, failed, restarts)
        attempt.report(caught.value)
    told = rebuild_error(json.loads((tmp_path / "report").read_text())["error"])
    assert isinstance(told, TerminalError) and (told.sink, told.remedy) == ("s", "mend it.")
    assert ("a test. It is not restarted any more (once, after 0 s)." in told.what) == (error is not JobError)
