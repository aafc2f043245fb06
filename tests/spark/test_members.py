"""The threads of a group's task: each ends alone, and is repeated as Airflow would repeat its task."""

from __future__ import annotations

import threading

import pytest

from airflow_ft.protocol.errors import FencedError, JobError, LeaseHeldError, StoreUnavailableError, TransientError
from airflow_ft.spark.attribution import current
from airflow_ft.spark.task import members
from airflow_ft.spark.task.members import keep_trying, run_together


def test_an_error_ends_one_and_the_others_go_on() -> None:
    failed = threading.Event()

    def fails() -> str:
        try:
            raise JobError("it is bad.")
        finally:
            failed.set()

    def works() -> str:
        assert failed.wait(10)
        return current()

    ends = run_together({"a": fails, "b": works}, lambda: None)
    assert ends.results == {"b": "b"}
    assert [type(error) for error in ends.errors.values()] == [JobError] and list(ends.errors) == ["a"]


def test_the_end_of_the_task_ends_them_all(monkeypatch: pytest.MonkeyPatch) -> None:
    stop = threading.Event()

    def ended(_: threading.Thread, __: float | None = None) -> None:
        if not stop.is_set():
            raise KeyboardInterrupt

    monkeypatch.setattr(members.threading.Thread, "join", ended)
    with pytest.raises(KeyboardInterrupt):
        run_together({"a": lambda: stop.wait(10)}, stop.set)
    assert stop.is_set()


def _tried(*errors: TransientError, retries: int = 2) -> list[bool]:
    """With these errors one after the other; whether each try was the last one."""
    tries: list[bool] = []

    def step(last: bool) -> None:
        tries.append(last)
        if len(tries) <= len(errors):
            raise errors[len(tries) - 1]

    keep_trying(step, retries, 0.0, lambda: None)
    return tries


def test_a_stream_is_tried_again_while_others_run() -> None:
    away = StoreUnavailableError("it is away.")
    assert _tried(away, away) == [False, False, True]
    with pytest.raises(StoreUnavailableError):
        _tried(away, away, away)


def test_waiting_for_another_run_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members, "_POLL_SECONDS", 0.0)
    assert _tried(*[LeaseHeldError("another one works.")] * 5) == [False] * 6


def test_a_fenced_stream_is_not_tried_again() -> None:
    with pytest.raises(FencedError):
        _tried(FencedError("another process took epoch 2."))


def test_a_stream_that_waits_ends_with_its_task() -> None:
    def check() -> None:
        raise KeyboardInterrupt

    def step(_: bool) -> None:
        raise StoreUnavailableError("it is away.")

    with pytest.raises(KeyboardInterrupt):
        keep_trying(step, 5, 60.0, check)
