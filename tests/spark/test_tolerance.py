"""Which failures of checkpoints a stream tolerates, and which go to its restart strategy."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_ft.core.config import CheckpointConfig
from airflow_ft.core.errors import AirflowFtError, CheckpointExpiredError, JobError, SealError, StageError
from airflow_ft.core.restart import FixedDelay
from airflow_ft.spark.driver import runner
from airflow_ft.spark.request import StageRequest
from airflow_ft.store.sqlite import SqliteStore
from tests.store.scene import PIPELINE, RUN, Scene


@pytest.mark.parametrize("error", [CheckpointExpiredError, SealError, StageError, JobError])
def test_so_many_failed_checkpoints_in_a_row_are_no_restart_and_other_failures_always_are(
    error: type[AirflowFtError], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "_is_alive", lambda _: True)
    spark: Any = None
    with SqliteStore(tmp_path / "ft.db") as store:
        scene = Scene(store)
        scene.take()
        request = StageRequest(
            pipeline=PIPELINE,
            run=RUN,
            epoch=1,
            attempt=store.begin_stage(PIPELINE, 1, RUN),
            store_url="",
            wal_root="/wal",
            job="jobs.p",
            sinks=("s",),
            streaming=True,
            checkpointing=CheckpointConfig(tolerable_failures=2),
        )
        attempt = runner.Attempt(request, tmp_path / "report", None)
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
