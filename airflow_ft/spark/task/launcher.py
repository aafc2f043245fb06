"""Running one attempt at staging in a Spark driver of its own, from an Airflow task or any other process."""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_ft.protocol.errors import (
    AirflowFtError,
    FencedError,
    RestartsExhaustedError,
    StoreUnavailableError,
    TransientError,
    WalCorruptError,
)
from airflow_ft.protocol.lag import Unit
from airflow_ft.protocol.meter import MOST_EVENTS
from airflow_ft.protocol.reasons import FAILURE, AbortReason, WaitReason
from airflow_ft.spark.fitting import Answers, Judge
from airflow_ft.spark.process import Driver
from airflow_ft.spark.reports import hidden, rebuild_error
from airflow_ft.spark.request import StageRequest, StageResult
from airflow_ft.spark.session import kubernetes, masters, yarn
from airflow_ft.spark.session.session_leases import SessionLease, borrow
from airflow_ft.spark.session.submit import (
    MAIN,
    RESULT,
    driver_environment,
    end_driver,
    environment,
    prepare,
    write_main,
)
from airflow_ft.spark.state.settings import refuse_changed
from airflow_ft.spark.task.beginning import Beginning
from airflow_ft.spark.task.shared import SharedDriver
from airflow_ft.spark.task.standby import Standby, hand_over
from airflow_ft.spark.task.story import Story
from airflow_ft.spark.task.symptoms import Symptoms, driver_died

if TYPE_CHECKING:
    from airflow_ft.protocol.decision_log import QueryLog
    from airflow_ft.store.decision_log import DecisionLog

logger = logging.getLogger("airflow_ft.spark")

WAITED = re.compile(rf"not triggered for (?P<seconds>[\d.]+) s: (?P<reason>{'|'.join(WaitReason)})$")
STATE = re.compile(r"state after batch \d+: (\d+) bytes of changes; full snapshot (\d+) bytes, (\d+) batches before$")
LAG = re.compile(rf"source (?P<source>\S+): (?P<behind>[\d,]+) (?P<unit>{'|'.join(Unit)}|record|file) behind")
DEAD_LETTERS = re.compile(r"checkpoint \d+: (?P<dead>\d+) of \d+ rows are dead letters \((?P<sink>\S+)\)$")
_PUBLISHED = re.compile(r"checkpoint \d+ published")

__all__ = ["Driver", "StageRequest", "StageResult", "run_stage"]


def run_stage(
    request: StageRequest,
    store: DecisionLog,
    *,
    log: Callable[[str], None],
    on_start: Callable[[Driver], None] = lambda _: None,
    judge: Judge | None = None,
    on_publish: Callable[[], None] = lambda: None,
    standby: Standby | None = None,
    shared: SharedDriver | None = None,
) -> StageResult:
    """Run the job in a Spark driver until all input is read and published, a stream until it is stopped.

    `log` receives the relevant lines of the driver's output (`spark.task.story`), without secrets. The logger
    `airflow_ft.spark` receives the rest at level DEBUG. `on_start` receives the process, for `on_kill`. `judge`
    receives the columns of each sink before anything is computed (`airflow_ft.spark.fitting`). `on_publish` is called
    for each published checkpoint. `shared` is a driver that computes several streams; None: this stage starts its own.
    When this returns or raises, the driver has ended. When this process is killed, the driver dies with it. If a driver
    waits in `standby`, it gets the request. From the first published checkpoint on `standby` keeps the next one.

    In every case published checkpoints stay published, and the store knows them.

    Raises:
        JobError: the user's code raised, or returned the wrong thing.
        UnfitTargetError: a sink would not accept the columns, and nothing was computed.
        ConfigurationError: a setting is wrong.
        FencedError: another process took over.
        CheckpointExpiredError: a checkpoint expired.
        StoreUnavailableError: `unanswered`: a publication is in doubt, which the next owner's epoch settles.
        WalCorruptError: files of the log are damaged.
        StageError: the driver was killed or failed for another reason.
    """
    refuse_changed(request.pipeline, request.base, request.conf)
    _require_cluster(request)
    hide = request.redactor()
    request = replace(request, ask_sinks=judge is not None)
    if shared is not None:
        request = replace(request, keep_session=0.0)
    beginning = Beginning(request, lambda line: log(hide(line)))
    with (
        (standby or Standby()).place(request) as (folder, waiting),
        _jvm(request, beginning, starts=waiting is None and shared is None) as session_lease,
        Answers(folder, judge) if judge else nullcontext() as answers,
    ):
        driver = _start(folder, request, session_lease, waiting) if shared is None else shared.start(folder, request)
        try:
            on_start(driver)
        except BaseException:
            driver.kill(0)
            driver.wait(lambda _: None, folder / RESULT)
            raise
        symptoms, story = Symptoms() if shared is None else shared.symptoms, Story()

        def look_and_log(line: str) -> None:
            match = _PUBLISHED.match(line)
            if match:
                on_publish()
                if shared is None:  # in a group, it may be another stream that saw the cause
                    symptoms.survived()
                if standby is not None:
                    standby.keep(request)
            if failure := FAILURE.match(line):
                store.meter.failed(request.pipeline, AbortReason(failure["reason"]))
                _trace(store, request.pipeline, int(failure["number"]))
            elif waited := WAITED.match(line):
                store.meter.waited(request.pipeline, WaitReason(waited["reason"]), float(waited["seconds"]))
                match = waited
            elif dead := DEAD_LETTERS.match(line):
                store.meter.dead_letters(request.pipeline, dead["sink"], int(dead["dead"]))
                match = dead
            elif state := STATE.match(line):
                store.meter.state(request.pipeline, *map(int, state.groups()))
            elif lag := LAG.match(line):
                behind = int(lag["behind"].replace(",", ""))
                store.meter.lag(request.pipeline, lag["source"], Unit(lag["unit"].rstrip("s") + "s"), behind)
                match = lag
            if match and request.streaming:  # there is one a second, for days
                logger.debug("%s", line)
                return
            shown = hide(line)
            symptoms.look(shown)  # the other streams of a group report them, too
            if story.shows(line):
                log(beginning.shown(shown))
            else:
                logger.debug("%s", shown)
            if answers:
                answers.look()

        code = driver.wait(look_and_log, folder / RESULT)
        try:
            report = json.loads((folder / RESULT).read_text(encoding="utf-8"))
        except FileNotFoundError:
            found = shared.error_of(driver) if shared is not None else None
            report = {"error": found or _ended(driver, code, request, symptoms)}
        if session_lease is not None and "result" in report and code == 0:
            session_lease.end(keep=True)
    if "result" in report:
        return StageResult.from_json(report["result"])
    error = rebuild_error(hidden(report["error"], hide))
    raise_if_fenced(store, request, error)
    raise error


def _trace(store: DecisionLog, pipeline: str, number: int) -> None:
    """Trace a checkpoint that the driver aborted."""
    if store.meter.traces:
        with suppress(AirflowFtError):
            found, events = store.checkpoint(pipeline, number), store.events(pipeline, number, MOST_EVENTS)
            store.meter.ended(found, events)


def _require_cluster(request: StageRequest) -> None:
    """Refuse what Spark would wait for on a cluster."""
    master = request.master or request.conf.get("spark.master", "")
    if yarn.is_yarn(master):
        yarn.require_cluster(request.conf, request.pipeline)
    elif kubernetes.is_kubernetes(master):
        kubernetes.require_cluster(master, request.conf, request.pipeline)
    elif masters.is_standalone(master):
        masters.require_master(master, request.pipeline)


@contextmanager
def _jvm(request: StageRequest, beginning: Beginning, *, starts: bool) -> Iterator[SessionLease | None]:
    """One that is kept between runs, if that is wanted; unless it is given back before, it ends with this.

    `starts`: without a kept one the stage starts a driver with a JVM of its own.
    """
    session_lease = None
    if request.keep_session:
        session_lease = borrow(request, on_found=beginning.continues, on_start=beginning.starts)
    elif starts:
        beginning.starts()
    try:
        yield session_lease
    finally:
        if session_lease is not None:
            session_lease.end(keep=False)


def _start(folder: Path, request: StageRequest, session_lease: SessionLease | None, waiting: Driver | None) -> Driver:
    """Start a driver, or give the request to the one that is `waiting` in the folder."""
    if waiting is not None:
        hand_over(waiting, folder, request)
        return waiting
    end = end_driver(folder)
    if session_lease is None:
        return Driver(prepare(folder, request), environment(request), end=end)
    write_main(folder, request, session_lease.fileno())
    command = [sys.executable, str(folder / MAIN)]
    return Driver(
        command, driver_environment(request), pass_fds=[session_lease.fileno()], share=session_lease.share, end=end
    )


def _ended(driver: Driver, code: int, request: StageRequest, symptoms: Symptoms) -> dict[str, Any]:
    """The error of a driver that could not report one itself."""
    rows = (
        "AT_MOST_ONCE loses unpublished rows"
        if request.starts_from_scratch
        else "The next attempt computes the rows again"
    )
    remedy = f"Look for the cause in the task's log. {rows}."
    found = driver_died("the Spark driver", code, symptoms, remedy, was_killed=driver.killed)
    return {**found, "pipeline": request.pipeline}


def raise_if_fenced(store: QueryLog, request: StageRequest, error: Exception) -> None:
    """Raise FencedError in place of a driver's error if another process took over according to the store.

    The old driver may have been stopped at any point, or miss files that the newer owner has deleted.
    """
    if not isinstance(error, TransientError | RestartsExhaustedError | WalCorruptError):
        return
    with suppress(StoreUnavailableError):
        epoch = store.pipeline(request.pipeline).epoch
        if epoch > request.epoch:
            raise FencedError(
                f"another attempt took epoch {epoch} while this one ran with epoch {request.epoch}.",
                pipeline=request.pipeline,
                remedy="Do nothing: the newer attempt continues.",
                epoch=request.epoch,
                newest=epoch,
            ) from error
