"""A query that does not stop when its publication has failed: the process ends, whatever else goes wrong by then."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from airflow_ft.spark.driver import stopper
from airflow_ft.spark.driver.stopper import Stopper


class _Hangs:
    def stop(self) -> None:
        pass


@pytest.mark.parametrize("problem", [None, OSError(28, "No space left on device"), RuntimeError("the JVM is gone")])
def test_a_hanging_job_ends_its_process_even_if_its_report_fails(
    monkeypatch: pytest.MonkeyPatch, problem: Exception | None
) -> None:
    """Else the task would wait for a driver of which no checkpoint can come any more."""
    ended, reported = threading.Event(), []
    monkeypatch.setattr(stopper, "STOP_SECONDS", 0.01)
    monkeypatch.setattr(stopper.os, "_exit", lambda _: ended.set())

    def report(error: BaseException) -> None:
        reported.append(error)
        if problem is not None:
            raise problem

    failed: list[Any] = []
    stop = Stopper(failed.append, report)
    stop.query = _Hangs()
    stop(TimeoutError("too late"))
    assert ended.wait(10.0)
    assert len(reported) == len(failed) == 1
