"""The streams of a group in their task: a thread for each, which ends for itself.

What if the task dies: all of its threads end, and with them the driver. The task's next try starts each stream that had
neither been stopped nor given up in this run.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Generic, TypeVar

from airflow_ft.protocol.errors import AirflowFtError, FencedError, LeaseHeldError, TransientError, TurnHeldError
from airflow_ft.protocol.failure import Failure
from airflow_ft.protocol.lease import Worker
from airflow_ft.protocol.model import RunKey
from airflow_ft.protocol.pipelines import Event
from airflow_ft.protocol.steps import Confirmation, Context
from airflow_ft.spark.attribution import inherited, named_records, working_for
from airflow_ft.spark.task.answers import EVENTS, stops
from airflow_ft.store.events import run_in

if TYPE_CHECKING:
    from airflow_ft.store.decision_log import DecisionLog

T = TypeVar("T")

_JOIN_SECONDS = 0.5
_END_SECONDS = 10.0
_POLL_SECONDS = 5.0
_STEP_SECONDS = 0.5

log = logging.getLogger(__name__)


class Ends(Generic[T]):
    """Results of streams that ended well, and errors of the others, by name."""

    def __init__(self) -> None:
        self.results: dict[str, T] = {}
        self.errors: dict[str, BaseException] = {}


def run_together(work: Mapping[str, Callable[[], T]], stop: Callable[[], None]) -> Ends[T]:
    """Do the work of each stream in a thread of its own, and return when all have ended. An error ends one thread.

    `stop` ends all of them. It is called when this call is left by an exception, such as the end of the task.
    """
    ends = Ends[T]()

    def run(name: str, do: Callable[[], T]) -> None:
        with working_for(name):
            try:
                ends.results[name] = do()
            except BaseException as error:
                ends.errors[name] = error

    with inherited(), named_records():
        threads = [
            threading.Thread(target=run, args=each, name=f"stream-{each[0]}", daemon=True) for each in work.items()
        ]
        for thread in threads:
            thread.start()
        try:
            while any(thread.is_alive() for thread in threads):
                for thread in threads:
                    thread.join(_JOIN_SECONDS / len(threads))
        except BaseException:
            stop()
            deadline = time.monotonic() + _END_SECONDS
            for thread in threads:
                thread.join(max(0.0, deadline - time.monotonic()))
            raise
    return ends


def keep_trying(
    step: Callable[[bool], T],
    retries: int,
    delay: float,
    why_stop: Callable[[], str],
    has_successor: Callable[[], bool] = lambda: True,
) -> T:
    """Repeat a stream's step as Airflow would repeat its task, while the other streams of the group continue.

    `step` receives whether this is the last try. An error of another kind than ours, such as one of Airflow while its
    API server restarts, is repeated as well: no other process would take up the stream.
    Waits without a count while another run or process works on the pipeline. `why_stop` raises if the task ends. If it
    returns a reason, the stream waits no longer, and its last error is raised.

    A fenced stream is repeated as well, unless `has_successor`: a command that recovers the pipeline takes an epoch
    and ends. A stream with a successor takes no epoch any more (R10). So `has_successor` is asked before each try
    after the first fencing.
    """
    tries = 0
    fenced: FencedError | None = None
    while True:
        try:
            if fenced is not None and has_successor():
                raise fenced
            return step(tries >= retries)
        except (TurnHeldError, LeaseHeldError) as error:
            log.info("%s", error)
            last: Exception = error
            wait = _POLL_SECONDS
        except Exception as error:
            is_final = isinstance(error, AirflowFtError) and not isinstance(error, TransientError | FencedError)
            if is_final or error is fenced or tries >= retries:
                raise
            if isinstance(error, FencedError):
                fenced = error
            last, tries, wait = error, tries + 1, delay
            log.warning("%s", error, exc_info=None if isinstance(error, AirflowFtError) else error)
            log.warning("the stream is tried again in %.0f s (%d of %d)", wait, tries, retries)
        deadline = time.monotonic() + wait
        while True:
            if why := why_stop():  # or it raises: perhaps the error came of the end of the task
                log.info("the stream is not tried again: %s", why)
                raise last
            if time.monotonic() >= deadline:
                break
            time.sleep(min(_STEP_SECONDS, wait))


def has_successor(store: DecisionLog, pipeline: str, run: RunKey, worker: Worker) -> bool:
    """Return whether a newer try of the worker's task has taken an epoch, or another run the turn since its own epoch.

    What if two tries ask, both fenced by a command: the newer one has taken an epoch before, so the older one ends. If
    it had none yet, the older one continues until the newer one takes its first epoch, which fences it for good.
    """
    if store.pipeline(pipeline).turn not in (None, run):
        return True
    has_own = False
    for event in store.events(pipeline, 0, EVENTS):
        detail = event.detail
        if event.kind == "EPOCH" and worker.task and detail.get("task") == worker.task:
            if detail["try"] > worker.try_number:
                return True
            has_own = has_own or detail["try"] == worker.try_number
        elif event.kind == "TURN" and detail.get("has_turn") and not has_own and run_in(detail) != run:
            return True
    return False


def was_stopped(run: Context[DecisionLog], first_try: int | None) -> Confirmation | None:
    """Return what the stream has confirmed if it ended on request in this run; None: it did not.

    `first_try`: of the task since its run began or the task was cleared; None: this one. Tries are compared, since the
    clocks of Airflow and of the decision log may differ.
    """
    store, pipeline = run.store, run.pipeline
    try:
        row, turn = store.run(pipeline, run.run), store.pipeline(pipeline).turn
    except KeyError:
        return None
    if first_try is None or row is None or not row.staged or turn == run.run:
        return None
    if not any(_is_of(event, row.epoch, run.worker.task, first_try) for event in store.events(pipeline, 0, EVENTS)):
        return None
    if store.unsettled(pipeline) or stops(store, pipeline):  # one may be unanswered
        return None
    latest = store.latest_confirmed(pipeline)
    return Confirmation(store.counted(pipeline, run.run), latest.number if latest else 0)


def _is_of(event: Event, epoch: int, task: str, first_try: int) -> bool:
    """Return whether a try of the task since `first_try` has taken the epoch."""
    if event.kind != "EPOCH" or event.detail.get("epoch") != epoch:
        return False
    return event.detail.get("task") == task and bool(event.detail["try"] >= first_try)


def given_up(store: DecisionLog, pipeline: str, run: RunKey, task_id: str, first_try: int | None) -> Failure | None:
    """Return why the stream failed for good in this run; None: it did not. `first_try`: see `was_stopped`.

    Reads the events: another run that takes the turn clears the pipeline's failure.
    """
    if first_try is None:
        return None
    with suppress(KeyError):
        for event in store.events(pipeline, 0, EVENTS):
            if event.kind == "FAILED" and "failure" in event.detail and run_in(event.detail) == run:
                found = Failure.from_json(event.detail["failure"])
                if found.task_id == task_id and found.try_number >= first_try:
                    return found
    return None
