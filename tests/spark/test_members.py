"""The threads of a group's task: each ends alone, and is repeated as Airflow would repeat its task."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from airflow_ft.protocol.errors import FencedError, JobError, LeaseHeldError, StoreUnavailableError
from airflow_ft.protocol.lease import Worker
from airflow_ft.protocol.model import RunKey
from airflow_ft.protocol.noting import note_failure
from airflow_ft.protocol.pipelines import RequestKind
from airflow_ft.protocol.steps import Confirmation, Context
from airflow_ft.spark.attribution import current
from airflow_ft.spark.task import members
from airflow_ft.spark.task.members import given_up, has_successor, keep_trying, run_together, was_stopped
from airflow_ft.store import open_store
from airflow_ft.store.decision_log import DecisionLog


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


def _tried(*errors: Exception, retries: int = 2, successors: Sequence[bool] = ()) -> list[bool]:
    """With these errors one after the other; whether each try was the last one."""
    tries: list[bool] = []

    def step(last: bool) -> None:
        tries.append(last)
        if len(tries) <= len(errors):
            raise errors[len(tries) - 1]

    answers = iter(successors)
    keep_trying(step, retries, 0.0, lambda: "", lambda: next(answers))
    return tries


def test_a_stream_is_tried_again_while_others_run() -> None:
    away = StoreUnavailableError("it is away.")
    assert _tried(away, away) == [False, False, True]
    with pytest.raises(StoreUnavailableError):
        _tried(away, away, away)


def test_an_unknown_error_is_retried_and_a_terminal_one_is_not() -> None:
    assert _tried(RuntimeError("the API server restarts.")) == [False, False]
    with pytest.raises(JobError):
        _tried(JobError("it is bad."))


def test_waiting_for_another_run_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members, "_POLL_SECONDS", 0.0)
    assert _tried(*[LeaseHeldError("another one works.")] * 5) == [False] * 6


FENCED = FencedError("another process took epoch 2.")


def test_a_fenced_stream_is_retried_unless_it_has_a_successor() -> None:
    assert _tried(FENCED, successors=[False]) == [False, False]
    with pytest.raises(FencedError):
        _tried(FENCED, successors=[True])
    with pytest.raises(FencedError):
        _tried(FENCED, retries=0)


def test_a_fenced_stream_ends_once_a_successor_has_the_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members, "_POLL_SECONDS", 0.0)
    with pytest.raises(FencedError):
        _tried(FENCED, LeaseHeldError("a newer try works."), successors=[False, True])


def test_an_unavailable_log_does_not_end_a_fenced_stream() -> None:
    answers: list[bool | Exception] = [StoreUnavailableError("it is away."), False]
    tries = 0

    def step(_: bool) -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise FENCED

    def has_one() -> bool:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    keep_trying(step, 3, 0.0, lambda: "", has_one)
    assert (tries, answers) == (2, [])


@pytest.mark.parametrize("error", [StoreUnavailableError("it is away."), LeaseHeldError("another one works.")])
def test_a_paused_dag_ends_a_stream_that_waits(error: Exception) -> None:
    def step(_: bool) -> None:
        raise error

    with pytest.raises(type(error)):
        keep_trying(step, 5, 60.0, lambda: "the DAG is paused")


def test_a_stream_that_waits_ends_with_its_task() -> None:
    def check() -> str:
        raise KeyboardInterrupt

    def step(_: bool) -> None:
        raise StoreUnavailableError("it is away.")

    with pytest.raises(KeyboardInterrupt):
        keep_trying(step, 5, 60.0, check)


RUN = RunKey("small", "run-1")
TASK = "small/run-1/streams"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DecisionLog]:
    with open_store(f"sqlite:///{tmp_path / 'ft.db'}") as found:
        found.register("orders")
        yield found


def _staged(store: DecisionLog, try_number: int = 1) -> None:
    """A stream of the run that has staged its last checkpoint, and has the turn."""
    store.enter_turn("orders", RUN, None)
    lease = Worker(TASK, try_number).lease()
    epoch = store.take_epoch("orders", store.pipeline("orders").epoch, {}, lease, "a test")
    store.begin_stage("orders", epoch, RUN, TASK, {"streaming": True})
    store.end_stage("orders", epoch, RUN, None, complete=False)
    store.release_lease("orders", lease.holder)


def _was_stopped(store: DecisionLog, first_try: int | None = 1, run: RunKey = RUN, pipeline: str = "orders") -> bool:
    context = Context(store=store, pipeline=pipeline, run=run, participants=_nothing, worker=Worker(TASK, 9))
    return was_stopped(context, first_try) is not None


def _nothing(_: Any) -> Any:
    raise AssertionError("no sink is asked")


def test_a_retry_does_not_restart_a_stopped_stream(store: DecisionLog) -> None:
    """A cleared run or another run starts it."""
    assert not _was_stopped(store, pipeline="unknown")
    assert not _was_stopped(store), "it has not begun"
    _staged(store)
    assert not _was_stopped(store), "it has the turn, and may have something to deliver"
    store.leave_turn("orders", RUN)
    assert _was_stopped(store)
    assert not _was_stopped(store, None), "this is the first try"
    assert not _was_stopped(store, 2), "the task was cleared since"
    assert not _was_stopped(store, run=RunKey("small", "run-2"))
    _staged(store, try_number=2)
    store.leave_turn("orders", RUN)
    assert _was_stopped(store, 2)
    store.ask("orders", RequestKind.STOP, {}, "a test")
    assert not _was_stopped(store), "a request waits for its answer"


def test_a_retry_returns_what_a_stopped_stream_has_confirmed(store: DecisionLog) -> None:
    """The try that has confirmed it may have ended before Airflow learned that."""
    _staged(store)
    store.leave_turn("orders", RUN, confirmed=True)
    context = Context(store=store, pipeline="orders", run=RUN, participants=_nothing, worker=Worker(TASK, 2))
    assert was_stopped(context, 1) == Confirmation(store.counted("orders", RUN), 0)


def test_a_retry_does_not_restart_a_failed_stream(store: DecisionLog) -> None:
    """A cleared run or another run starts it."""
    assert given_up(store, "unknown", RUN, "streams", 1) is None
    assert given_up(store, "orders", RUN, "streams", 1) is None
    note_failure(store, "orders", RUN, JobError("it is bad."), task_id="streams", try_number=3)
    found = given_up(store, "orders", RUN, "streams", 3)
    assert found is not None and found.code == JobError.code
    assert given_up(store, "orders", RUN, "streams", None) is None
    assert given_up(store, "orders", RUN, "streams", 4) is None
    other = RunKey("small", "run-2")
    assert given_up(store, "orders", other, "streams", 1) is None
    store.leave_turn("orders", RUN)
    store.enter_turn("orders", other, None)
    store.leave_turn("orders", other)
    assert given_up(store, "orders", RUN, "streams", 3) == found, "the other run was stopped"


def _epoch(store: DecisionLog, run: RunKey = RUN, try_number: int = 1, task: str | None = None) -> None:
    """A process takes the next epoch and ends."""
    lease = Worker(f"small/{run.run_id}/streams" if task is None else task, try_number).lease()
    store.take_epoch("orders", store.pipeline("orders").epoch, {}, lease, "a test")
    store.release_lease("orders", lease.holder)


def _has_successor(store: DecisionLog, try_number: int = 1) -> bool:
    return has_successor(store, "orders", RUN, Worker("small/run-1/streams", try_number))


def test_a_command_is_no_successor(store: DecisionLog) -> None:
    store.enter_turn("orders", RUN, None)
    _epoch(store)
    _epoch(store, task="")
    _epoch(store, task="maintenance/run-7/sweep")
    assert not _has_successor(store)


def test_of_two_tries_that_a_command_has_fenced_the_older_ends(store: DecisionLog) -> None:
    store.enter_turn("orders", RUN, None)
    _epoch(store)
    _epoch(store, try_number=2)
    _epoch(store, task="")
    assert _has_successor(store, try_number=1)
    assert not _has_successor(store, try_number=2)
    _epoch(store)  # the older one had asked before
    assert not _has_successor(store, try_number=2)
    assert _has_successor(store, try_number=1)


def test_another_run_is_a_successor_also_when_it_has_ended(store: DecisionLog) -> None:
    other = RunKey("small", "run-2")
    store.enter_turn("orders", RUN, None)
    _epoch(store)
    assert store.enter_turn("orders", other, None) == RUN
    assert not _has_successor(store), "it waits for its turn"
    store.enter_turn("orders", other, None, ended=[RUN])
    _epoch(store, other)
    assert _has_successor(store)
    store.leave_turn("orders", other)
    assert _has_successor(store)
    store.enter_turn("orders", RUN, None)
    _epoch(store)
    assert not _has_successor(store), "it is the newest again"
