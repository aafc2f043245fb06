"""A query that does not stop when its publication has failed: the process ends, whatever else goes wrong by then."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_ft.protocol.errors import StageError
from airflow_ft.spark.driver import group, stopper
from airflow_ft.spark.driver.stopper import Stopper, await_query_end
from tests.raising import raises


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


def _with_query(name: str) -> Any:
    return SimpleNamespace(streams=SimpleNamespace(active=[SimpleNamespace(name=name)]))


def test_a_query_that_does_not_end_is_an_error_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopper, "END_SECONDS", -1.0)
    with raises(StageError, "query_not_ended", pipeline="orders"):
        await_query_end(_with_query("orders"), "orders")
    await_query_end(_with_query("other"), "orders")


def test_a_stream_waits_for_its_query_in_a_former_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group gives it a session of its own with each start, and Spark lets no two queries have one identity."""
    monkeypatch.setattr(stopper, "END_SECONDS", -1.0)
    monkeypatch.setitem(group._sessions, "orders", _with_query("orders"))
    member: Any = object.__new__(group._Member)
    member._learn = lambda _: None
    with raises(StageError, "query_not_ended", pipeline="orders"):
        member._session(SimpleNamespace(pipeline="orders"), {})
