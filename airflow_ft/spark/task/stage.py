"""The step `stage` without Airflow: takes an epoch, runs the Spark driver under a lease, records that it ended.

What if the process dies ...
- before `begin_stage`: an epoch was taken for nothing; a try of the same task takes the next one at once.
- while the driver runs: it dies with this process. What it had published stays (I1), the number under way becomes
  ABORTED(FENCED) with the next epoch, and the next attempt works in its own copy of Spark's location.
- after the driver, before `end_stage`: the next attempt finds nothing new to compute, and ends the stage; if the
  pipeline was drained, without a driver.
- while something is delivered beside the stage (`overlap`): as when a task of delivery dies.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_ft.protocol.config import CheckpointConfig
from airflow_ft.protocol.errors import (
    AirflowFtError,
    FencedError,
    StateConflictError,
)
from airflow_ft.protocol.lease import new_epoch
from airflow_ft.protocol.model import Checkpoint
from airflow_ft.protocol.overlap import Overlap
from airflow_ft.protocol.pipelines import Pipeline
from airflow_ft.protocol.planning import Delivery, live_plans
from airflow_ft.protocol.reasons import AbortReason
from airflow_ft.protocol.retention import Progress
from airflow_ft.protocol.steps import Context, require_active, require_own_stage, take_turn
from airflow_ft.protocol.write_ahead_log import Archive
from airflow_ft.spark.fitting import Judge
from airflow_ft.spark.request import StageResult
from airflow_ft.spark.state.draining import drain_of, refuse
from airflow_ft.spark.task.hung import HungDriver
from airflow_ft.spark.task.launcher import Driver, run_stage
from airflow_ft.spark.task.shared import SharedDriver
from airflow_ft.spark.task.standby import Standby

if TYPE_CHECKING:
    from airflow_ft.spark.request import StageRequest
    from airflow_ft.store.decision_log import DecisionLog

_LOOK_SECONDS = 1.0

logger = logging.getLogger(__name__)

MakeRequest = Callable[[Pipeline, int, int], "StageRequest"]
"""(the pipeline as it was before this attempt, epoch, attempt) -> the request to the driver."""
Beside = tuple[Delivery, CheckpointConfig, Progress, Archive]
"""Dependencies of the delivery beside the stage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Staging:
    """Dependencies of each stage of a pipeline.

    `on_line` receives Spark's lines, `on_start` the driver's process; `spec` is stored as the run's specification.
    `preflight` raises problems of the sinks before anything is started (`look_first`). `judge` returns which of the
    job's columns the sinks would refuse, before any row is computed: a plain use binds
    `airflow_ft.sinks.fitting.schema_problems`.
    """

    make_request: MakeRequest
    on_line: Callable[[str], None]
    on_start: Callable[[Driver], None] = lambda _: None
    spec: Mapping[str, Any] | None = None
    preflight: Callable[[], None] | None = None
    judge: Judge | None = None
    resume_drained: bool = False


def stage_step(context: Context[DecisionLog], staging: Staging, overlap: Beside | None = None) -> StageResult | None:
    """Stage a run, once: returns None if it has been staged before, and then takes no epoch.

    With `overlap` published checkpoints are delivered while Spark works.

    Raises what the launcher raises, and with `overlap` permanent errors of a delivery, such as DeclinedError.

    Raises:
        ConfigurationError: a confirmed checkpoint has drained the pipeline, without `resume_drained`.
        TurnHeldError: another run has the turn.
        JobError: the user's code raised.
        FencedError: another process took over; the driver is ended.
    """
    store, pipeline, run = context.store, context.pipeline, context.run
    store.register(pipeline)
    require_active(store, pipeline)
    require_own_stage(context)
    row = store.run(pipeline, run)
    if (row is not None and row.staged) or not take_turn(context):
        logger.info("an earlier try of run %s has staged everything: nothing to compute", run)
        return None
    look_first(context, staging)
    return stage(context, staging, overlap)


def look_first(context: Context[DecisionLog], staging: Staging) -> None:
    """Looks at the sinks, unless there is nothing to compute, or something is planned that waits for its delivery (I7).

    A sink that lacks something must not keep the others from what is decided.
    """
    store, pipeline = context.store, context.pipeline
    _warn_of_other_dag(context)
    if staging.preflight is None:
        return
    if live_plans(store.open_checkpoints(pipeline)) or (not staging.resume_drained and drain_of(store, pipeline)):
        return
    staging.preflight()


def _warn_of_other_dag(context: Context[DecisionLog]) -> None:
    """Each pipeline has one place where it has read to, so two DAGs that name it would divide its rows by chance.

    Not refused: a DAG may have been renamed, and a second one may deliver the same into the same sinks.
    """
    newest = next(iter(context.store.checkpoints(context.pipeline, 1)), None)
    other = None if newest is None else newest.run
    if newest is None or other is None or other.is_plain or context.run.is_plain:
        return
    if other.dag_id == context.run.dag_id:
        return
    logger.warning(
        "pipeline %r: the DAG %s wrote its newest checkpoint, %d, and this is DAG %s. DAGs with the same pipeline share"
        " its position, so each row goes only into the sinks of the DAG that reads it first. Unless %s is the former"
        " name of this DAG, give one of them another pipeline=.",
        context.pipeline,
        other.dag_id,
        newest.number,
        context.run.dag_id,
        other.dag_id,
    )


def stage(
    context: Context[DecisionLog],
    staging: Staging,
    overlap: Beside | None,
    *,
    streaming: bool = False,
    look: Callable[[Driver | None], None] = lambda _: None,
    standby: Standby | None = None,
    shared: SharedDriver | None = None,
) -> StageResult:
    """Take an epoch and stage, as `stage_step`, for a run that has the turn; a stream until it is stopped.

    `shared`: the driver that computes it beside other streams; None: one of its own. `look` is called every second
    with the driver, if it has started. An exception of `look` ends the driver. `standby`: as in `run_stage`.
    """
    store, pipeline, run = context.store, context.pipeline, context.run
    why = f"stage of {run}"
    with new_epoch(store, pipeline, context.worker, why, context.lease_seconds) as (epoch, keeper):
        if not staging.resume_drained and (drain := drain_of(store, pipeline)):
            return _after(drain, context, epoch, complete=not streaming)
        beside = Overlap(context, epoch, *overlap, streaming=streaming) if overlap else None
        if beside:
            beside.settle_plans()
        before = store.pipeline(pipeline)  # read before begin_stage marks the base unclean
        require_own_stage(context)  # again: from this epoch on no other task begins the stage of this run
        attempt = store.begin_stage(pipeline, epoch, run, context.worker.task, staging.spec)
        hung = HungDriver(store, pipeline, epoch)
        checks = [keeper.check, beside.check] if beside else [keeper.check]
        watch = _Watch(checks, look, hung)
        try:
            with beside or nullcontext(), watch:

                def started(driver: Driver) -> None:
                    watch.driver = driver
                    staging.on_start(driver)

                request = staging.make_request(before, epoch, attempt)
                hung.timeout = request.checkpointing.timeout.total_seconds()
                result = run_stage(
                    request,
                    store,
                    log=staging.on_line,
                    on_start=started,
                    judge=staging.judge,
                    on_publish=beside.wake if beside else lambda: None,
                    standby=standby,
                    shared=shared,
                )
        except AirflowFtError as error:
            stopped = watch.driver is not None and watch.driver.killed
            found = error
            if hung.error is not None and shared is None and not isinstance(error, FencedError):
                found = hung.error  # else the group reports its own error
            give_up(context, epoch, found, AbortReason.STOPPED if stopped and found is error else found.abort_reason)
            if beside:
                beside.check()  # refused rows end the driver: they are the reason, not its end
            if found is not error:
                raise found from error
            raise
        for check in checks:
            check()
        store.end_stage(pipeline, epoch, run, result.position, complete=result.complete)
    return result


def _after(drain: Checkpoint, context: Context[DecisionLog], epoch: int, *, complete: bool) -> StageResult:
    """End the stage of a run that has nothing to compute after a drain; raise once the drain is confirmed.

    An earlier try of the run has drained the pipeline and died, or an earlier run could not deliver the drain. Then
    this run delivers it (I7). Without that, every later run would be refused, and the drain stay undelivered.
    """
    store, pipeline, run = context.store, context.pipeline, context.run
    row = store.run(pipeline, run)
    is_own = drain.run == run and row is not None and not row.staged
    if drain.is_confirmed and not is_own:
        raise refuse(drain)
    logger.info("checkpoint %d of run %s has drained the pipeline: nothing left to compute", drain.number, drain.run)
    store.adopt_run(pipeline, epoch, run)  # not a new stage: what came after that one began was not read
    try:
        store.end_stage(pipeline, epoch, run, None, complete=complete and is_own)
    except StateConflictError as error:
        if error.code != "rewound":
            raise
        raise refuse(drain) from error  # what came after the drain was rewound: only a run that resumes computes it
    return StageResult((), {}, None)


def give_up(context: Context[DecisionLog], epoch: int, error: AirflowFtError, reason: AbortReason) -> None:
    """Says why what the driver has left unpublished failed, if it could not: the next owner would not know."""
    if isinstance(error, FencedError):
        return
    try:
        context.store.give_up(context.pipeline, epoch, reason, error.what)
    except AirflowFtError as problem:
        logger.warning("unpublished checkpoints could not be marked as aborted: %s", problem)


class _Watch:
    """Ends the driver as soon as a check raises: a cheap early stop, safety does not rest on it."""

    def __init__(
        self, checks: Sequence[Callable[[], None]], look: Callable[[Driver | None], None], hung: HungDriver
    ) -> None:
        self.driver: Driver | None = None
        self._checks, self._look, self._hung = checks, look, hung
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch-stage", daemon=True)

    def _run(self) -> None:
        while not self._stop.wait(_LOOK_SECONDS):
            try:
                for check in self._checks:
                    check()
                self._look(self.driver)
                self._hung.check()
            except Exception as error:
                logger.warning("stopping the Spark driver: %s", error)
                if self.driver is not None:
                    hung = self._hung.error
                    if hung is not None and error is hung:
                        self.driver.kill_hung(hung)
                    else:
                        self.driver.kill()
                    return

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
