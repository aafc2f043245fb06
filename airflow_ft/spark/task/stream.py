"""The step of a stream without Airflow: stage, deliver in parallel, and restart after failures, until it is stopped.

There are two kinds of restart. A job that raises is restarted in its driver, whose JVM continues
(`spark.driver.job_restarts`). A dead driver, servers that stay unavailable and checkpoints that expired in their
delivery end the driver. This process then starts another one, with a new epoch. Both use the same strategy, with
separate counts.

What if the process dies ...
- anywhere: as `airflow_ft.spark.task.stage` says. The task's next try continues.
- after a request to stop, before its answer: the request is still open, so the next try stops at once; if it was a
  request to drain, after the drain.
- after it took a savepoint for a request: the next try answers with that one, because the state may be dropped by then.
- while it deletes checkpoints: as `airflow_ft.spark.task.cleanup` says.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from airflow_ft.protocol.errors import (
    AirflowFtError,
    FencedError,
    StoreUnavailableError,
    TerminalError,
    TransientError,
    TurnHeldError,
)
from airflow_ft.protocol.lease import new_epoch
from airflow_ft.protocol.pipelines import Pipeline, Request
from airflow_ft.protocol.planning import stranded
from airflow_ft.protocol.restart import RestartStrategy, given_up, is_tolerated, wait_after
from airflow_ft.protocol.steps import (
    Confirmation,
    Context,
    commit_step,
    confirm_step,
    delivering,
    prepare_step,
    require_active,
    require_own_stage,
    take_turn,
)
from airflow_ft.spark.savepoints.stopping import AT_ONCE, DRAIN, SAVEPOINT
from airflow_ft.spark.savepoints.taking import take_once
from airflow_ft.spark.state.draining import drain_of
from airflow_ft.spark.task.answers import Stopped, answer_early, asks, is_open, stops
from airflow_ft.spark.task.cleanup import clean_up, deletes
from airflow_ft.spark.task.launcher import Driver
from airflow_ft.spark.task.shared import DIED, ENDED_BY_OTHER, WAIT, SharedDriver
from airflow_ft.spark.task.stage import Beside, Staging, look_first, stage
from airflow_ft.spark.task.standby import Standby

if TYPE_CHECKING:
    from airflow_ft.spark.request import StageRequest
    from airflow_ft.store.decision_log import DecisionLog

log = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0


class StreamEnd(NamedTuple):
    """The end of `stream_step`: its epoch, and why a requested drain had nothing to deliver."""

    epoch: int
    undrained: str = ""


def stream_step(
    context: Context[DecisionLog],
    staging: Staging,
    overlap: Beside,
    *,
    strategy: RestartStrategy,
    why_stop: Callable[[], str] = lambda: "",
    last_try: bool = False,
    shared: SharedDriver | None = None,
) -> StreamEnd:
    """Run a stream until a request to stop (`ask`), or until `why_stop` returns a reason.

    `shared`: the driver of its group of streams; None: it has drivers of its own. A `preflight` that fails counts as a
    restart, too.

    Epoch 0: another process may have worked before, so the checkpoints are not this stream's to delete (I5). Published
    checkpoints may still need delivery (`finish_step`). `answer_stops` answers the requests after that.

    Raises permanent errors, and transient ones when the strategy is exhausted. After a TerminalError, or on the
    `last_try`, there is no retry: then the checkpoints are deleted if the pipeline keeps none.
    """
    store, pipeline, run = context.store, context.pipeline, context.run
    before_turn = store.register(pipeline).epoch  # a later holder of the turn takes a later one
    require_active(store, pipeline)
    require_own_stage(context)
    take_turn(context, again=True)
    early = stops(store, pipeline)
    before = store.run(pipeline, run)  # read after them: no try of this run had begun when they were made
    if early and (before is None or before.epoch == 0):
        answer_early(context, early)
    stopping = _Stopping(store, pipeline, why_stop)
    restarts, tolerable = strategy.begin(time.monotonic()), overlap[1].tolerable_failures
    epoch, undrained = 0, ""
    looked = False
    standby = Standby()

    def make(row: Pipeline, taken: int, attempt: int) -> StageRequest:
        nonlocal epoch
        epoch = taken
        return staging.make_request(row, taken, attempt)

    def compute() -> bool:
        """Return whether a driver has ended on request; otherwise nothing is left to compute."""
        nonlocal looked, undrained
        while not stopping.is_over():
            try:
                if not looked:
                    look_first(context, staging)
                    looked = True
                undrained = stage(
                    context,
                    replace(staging, make_request=make),
                    overlap,
                    streaming=True,
                    look=stopping.look,
                    standby=standby,
                    shared=shared,
                ).undrained
                return True
            except (FencedError, TurnHeldError):
                raise
            except TransientError as error:
                why_stop()  # raises if the task is being ended: `on_kill` has killed the driver, which is no failure
                if stopping.killed:
                    log.info("stopped the driver at once, as requested; its unpublished rows are computed again")
                    return False
                if stopping.is_over():
                    log.warning("%s", error)
                    log.info("the stream does not restart, because it was stopped")
                    return False
                if error.code in (ENDED_BY_OTHER, DIED):
                    log.warning("%s", error)
                    log.warning("the stream restarts, and does not count it")
                    stopping.wait(error.fields.get(WAIT, _LOOK_SECONDS))
                    continue
                if is_tolerated(error, store, pipeline, tolerable):  # its job hangs, or restarts did not help
                    log.warning("%s", error)
                    log.warning("the stream restarts at once: tolerable_failures is %d", tolerable)
                    continue
                wait = wait_after(error, restarts, "the stream")
                if wait is None:
                    last = given_up(error, strategy)
                    raise last from (error.__cause__ if last is error else error)
                stopping.wait(wait)
        return False

    while True:
        try:
            if not staging.resume_drained and (drain := drain_of(store, pipeline)) and drain.run != run:
                # Its own run may have given up, and this one is refused: no other process would deliver it (I7).
                _deliver(context, overlap)
            try:
                if compute():
                    return StreamEnd(epoch, undrained)
            finally:
                standby.end()
        except AirflowFtError as error:
            if last_try or isinstance(error, TerminalError):
                _end_failed(context, overlap, epoch)
            raise
        last = epoch or before_turn
        with new_epoch(store, pipeline, context.worker, f"the end of {run}", context.lease_seconds) as (epoch, _):
            store.begin_stage(pipeline, epoch, run, context.worker.task, staging.spec)
            if stopping.is_to_drain():  # read under our epoch: now no other process can give up a drain
                log.info("a sink refused the checkpoint of the drain: draining again")
                continue
            log.info("the stream has staged its last checkpoint")
            store.end_stage(pipeline, epoch, run, None, complete=False)
        return StreamEnd(epoch if epoch == last + 1 else 0)


def finish_step(
    context: Context[DecisionLog], overlap: Beside, end: StreamEnd, *, counts: bool = True
) -> tuple[Confirmation, Stopped]:
    """For a stream that was stopped: delivers what is left, deletes what is not to be kept, confirms.

    Also returns the answer for those who have asked for it (`answer_stops`). Raises what these steps raise. `counts`:
    see `RunLog.leave_turn`.
    """
    _, config, progress, archive = overlap
    _deliver(context, overlap)
    asked = stops(context.store, context.pipeline)
    seen_requests = [request.id for request in asked]
    texts, savepoints = _take_savepoints(context, asked)
    has_more = not end.undrained and _has_more(context, asked)  # before it is deleted: answers a later drain, too
    # A failed request for a savepoint or a drain still needs what would be deleted.
    if all(savepoints.values()) and not (has_more and asks(asked, DRAIN)):
        said = clean_up(
            *(context, end.epoch, config, archive, progress),
            failed=False,
            has_more=has_more,
            seen_requests=seen_requests,
        )
    else:
        base = context.store.pipeline(context.pipeline).base
        has_any = base is not None and base.batch >= 0  # else an earlier try has deleted them
        said = "its checkpoints are kept" if has_any and deletes(config, failed=False) else ""
    confirmation = confirm_step(context, config, archive, progress, counts=counts)
    outcome = f"stopped; {confirmation.latest} is the newest confirmed checkpoint"
    text = "; ".join(filter(None, [outcome, *texts, said]))
    return confirmation, Stopped(text, savepoints, has_more, end.undrained)


def _has_more(context: Context[DecisionLog], asked: Sequence[Request]) -> bool:
    """Return whether a drain would deliver more. A stop that is none must not fail because storage is away."""
    try:
        return is_open(context)
    except (AirflowFtError, OSError) as error:
        if asks(asked, DRAIN):
            raise
        log.warning("cannot look for state that was not drained: %s", error)
        return True


def _take_savepoints(context: Context[DecisionLog], asked: Sequence[Request]) -> tuple[list[str], dict[int, bool]]:
    """For those who have asked to stop with one: where they are, for people, and by request whether it was taken."""
    outcomes, taken = [], {}
    for request in asked:
        if folder := request.arguments.get(SAVEPOINT):
            try:
                taken[request.id] = False
                uri, savepoint = take_once(context.store, context.pipeline, folder, request.asked_by, request.id)
                outcomes.append(f"savepoint of checkpoint {savepoint.number}: {uri}")
                taken[request.id] = True
            except (AirflowFtError, OSError) as error:
                log.exception("the savepoint in %s failed", folder)
                outcomes.append(f"the savepoint in {folder} failed: {error}")
    return list(dict.fromkeys(outcomes)), taken


def _end_failed(context: Context[DecisionLog], overlap: Beside, epoch: int) -> None:
    """Deliver staged checkpoints first if none are to be kept: only confirmed ones can be deleted.

    Deletes nothing while a request for a savepoint or a drain is open: the next try still needs the state.
    """
    _, config, progress, archive = overlap
    if not deletes(config, failed=True):
        return
    try:
        _deliver(context, overlap)
    except AirflowFtError as error:
        log.warning("the next run delivers the staged checkpoints: %s", error)
    try:
        asked = stops(context.store, context.pipeline)
        needed = asks(asked, SAVEPOINT) or (asks(asked, DRAIN) and is_open(context))
    except (AirflowFtError, OSError) as error:
        log.warning("its checkpoints are kept, since requests to stop, or the state, cannot be read: %s", error)
        return
    if needed:
        log.warning("a request to stop with a savepoint or a drain is open, so checkpoints are kept. Clear the task")
        return
    seen_requests = [request.id for request in asked]
    clean_up(context, epoch, config, archive, progress, failed=True, seen_requests=seen_requests)


def _deliver(context: Context[DecisionLog], overlap: Beside) -> None:
    delivery, config, _, _ = overlap
    store, pipeline = context.store, context.pipeline
    if stranded(store.open_checkpoints(pipeline)):  # the driver that would have carried them has ended
        require_active(store, pipeline)
        if take_turn(context):
            with delivering(context) as coordinator:
                coordinator.carry_stranded()
    for name in delivery.names:
        prepare_step(context, delivery, config, name)
    for name in delivery.names:
        commit_step(context, name)


class _Stopping:
    """Requests to stop the stream. Retries a failed read."""

    def __init__(self, store: DecisionLog, pipeline: str, why_stop: Callable[[], str]) -> None:
        self._store, self._pipeline, self._why_stop = store, pipeline, why_stop
        self._asked = ""
        self._at_once = self._drain = self.killed = False

    def is_asked(self) -> bool:
        """Looks, and remembers."""
        try:
            for request in stops(self._store, self._pipeline):
                self._at_once = self._at_once or bool(request.arguments.get(AT_ONCE))
                self._drain = self._drain or bool(request.arguments.get(DRAIN))
                self._log_once(f"{request.asked_by} requested it" + (" at once" if self._at_once else ""))
            if not self._asked and (why := self._why_stop()):
                self._log_once(why)
        except StoreUnavailableError as error:
            log.debug("requests to stop cannot be read: %s", error)
        return bool(self._asked)

    def is_to_drain(self) -> bool:
        """Return whether a drain was requested that no process has made."""
        return self._drain and not self.killed and drain_of(self._store, self._pipeline) is None

    def is_over(self) -> bool:
        """Return whether the stream is to stop and has no drain left to make. False if the log cannot be read."""
        try:
            return self.is_asked() and not self.is_to_drain()
        except StoreUnavailableError as error:
            log.debug("a drain cannot be looked for: %s", error)
            return False

    def look(self, driver: Driver | None) -> None:
        """Each second, beside the driver."""
        if driver is None or not self.is_asked():
            return
        if self._at_once:
            self.killed = True
            driver.kill()
        else:
            driver.end(drain=self._drain)

    def wait(self, seconds: float) -> None:
        """Until then, or until it is to stop, and has nothing more to do before."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0 and (not self.is_asked() or self._drain):
            time.sleep(min(_LOOK_SECONDS, left))

    def _log_once(self, why: str) -> None:
        if why != self._asked:
            log.info("stopping the stream: %s", why)
            self._asked = why
