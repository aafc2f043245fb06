"""`airflow_ft.run`: a pipeline in this process, without a running Airflow: a script, a notebook, cron.

It does what the tasks of `CheckpointedPipeline` do, in their order, over the same decision log, write-ahead log and
sinks. If the process dies, the same rules hold: the next process continues, under the same run id or another one.
"""

from __future__ import annotations

import logging
import os
import socket
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from airflow_ft.pipeline import settings
from airflow_ft.pipeline.resolved import delivery_context, resolve
from airflow_ft.pipeline.retries import USUAL
from airflow_ft.pipeline.script_errors import for_scripts
from airflow_ft.pipeline.spec import PipelineSpec, take_spec
from airflow_ft.protocol import steps
from airflow_ft.protocol.arguments import check_text, check_type, late_text
from airflow_ft.protocol.connections import ConnectionResolver
from airflow_ft.protocol.errors import (
    AirflowFtError,
    ConfigurationError,
    DeclinedError,
    LeaseHeldError,
    SinkAccessError,
    TransientError,
    TurnHeldError,
    UnfitTargetError,
)
from airflow_ft.protocol.lease import Abandoned, LeaseWatch, Worker
from airflow_ft.protocol.model import PLAIN, ParticipantPlan, RunKey
from airflow_ft.protocol.noting import note_failure
from airflow_ft.protocol.restart import wait_after

if TYPE_CHECKING:
    from airflow_ft.pipeline.resolved import ResolvedPipeline
    from airflow_ft.store.decision_log import DecisionLog

P = ParamSpec("P")
T = TypeVar("T")

_OWN = ("run_id", "turn_timeout")
# In job_args and in Spark's settings braces may be meant.
_NOT_RENDERED = (
    "pipeline",
    "suffix",
    "job",
    "sources",
    "position",
    "sinks",
    "checkpointing",
    "restart",
    "commit_point",
    "store",
    "wal_root",
    "spark_master",
    "from_savepoint",
)
_POLL_SECONDS = 1.0

log = logging.getLogger(__name__)


def ending_with_the_message(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function that scripts call: its errors have no causes and no inner frames of this package.

    The log has both on level DEBUG.
    """

    @wraps(function)
    def call(*args: P.args, **arguments: P.kwargs) -> T:
        try:
            return function(*args, **arguments)
        except AirflowFtError as error:
            log.debug("%s failed", function.__name__, exc_info=True)
            error.__cause__ = error.__context__ = None
            error.__suppress_context__ = False
            ours = error
        raise ours.with_traceback(None)  # outside `except`: `__context__` is then the caller's

    return call


@ending_with_the_message
def run(
    spec: PipelineSpec | None = None,
    *,
    run_id: str | None = None,
    turn_timeout: timedelta | None = None,
    **arguments: Any,
) -> dict[str, Any]:
    """Run a pipeline once, here: read new input, and deliver it exactly once into all its sinks, or into none.

    Args:
        spec: the pipeline.
        run_id: a name of this run that is stable over repetitions, such as the day: a run that died continues, and a
            finished one does nothing. None: a new one by the clock. Checkpoints of earlier runs are delivered in any
            case.
        turn_timeout: longest wait for other runs of the pipeline, None: without end.
        arguments: instead of `spec` those of `PipelineSpec`, by name. Nothing is rendered: no Jinja.

    Connections are those that the `airflow` command finds: environment variables (AIRFLOW_CONN_<ID>), secrets
    backends, Airflow's database if there is one. `restart` applies to each step. By default a step is retried three
    times after transient errors, 15 seconds apart. A refused login, a missing privilege and a table that does not fit
    end the run at once.

    Returns {"numbers": [...], "count", "first", "last", "latest", "rows", "recovered", "recovered_rows", "set_aside"}:
    the checkpoints and rows confirmed in this run, as `CheckpointedPipeline.output`. See `ConfirmOperator`.

    Raises an AirflowFtError after a failure: decided rows are delivered nevertheless, or by the next run.
    """
    from airflow_ft.pipeline.connections import server_connections

    declared = spec_of(spec, arguments, _OWN)
    if declared.is_external:
        raise ConfigurationError(
            "the pipeline has a position and no job, so this call has no rows.",
            code="rows_missing",
            remedy="Call airflow_ft.deliver(rows, ...) with the rows of that position.",
            pipeline=declared.pipeline,
        )
    return PlainRun(declared, server_connections, run_id=run_id, turn_timeout=turn_timeout).deliver()


def spec_of(spec: PipelineSpec | None, arguments: Mapping[str, Any], own: tuple[str, ...]) -> PipelineSpec:
    """The specification that was given as a whole or by its arguments; `own` are the caller's other ones."""
    if spec is None:
        return take_spec(arguments, own)[0]
    if arguments:
        raise ConfigurationError(
            f"{', '.join(sorted(arguments))} cannot be given together with spec.",
            code="arguments_conflict",
            remedy="Write them into PipelineSpec(...).",
            arguments=["spec", *sorted(arguments)],
        )
    check_type("spec", spec, PipelineSpec, 'Give PipelineSpec(pipeline="orders", ...).')
    return spec


Stage = Callable[["ResolvedPipeline", "steps.Context[DecisionLog]", ConnectionResolver], object]


def _stage(pipeline: ResolvedPipeline, context: steps.Context[DecisionLog], connections: ConnectionResolver) -> object:
    from airflow_ft.pipeline import steps as pipeline_steps

    return pipeline_steps.stage(pipeline, context, connections)


class PlainRun:
    """One run of a pipeline in this process. `connections` reads Airflow's connections.

    `stage` publishes what is new, once in a run.
    """

    def __init__(
        self,
        spec: PipelineSpec,
        connections: ConnectionResolver,
        *,
        run_id: str | None = None,
        turn_timeout: timedelta | None = None,
        stage: Stage = _stage,
    ) -> None:
        check_type("spec", spec, PipelineSpec, 'Give PipelineSpec(pipeline="orders", ...).')
        check_text("run_id", run_id, optional=True)
        check_type(
            "turn_timeout", turn_timeout, timedelta, "Give a timedelta, such as timedelta(hours=1).", optional=True
        )
        _check_plain(spec)
        self._spec, self._connections, self._turn_timeout = spec, connections, turn_timeout
        self._key = RunKey(f"{PLAIN}{spec.pipeline}", run_id or new_run_id())
        self._waited = 0.0
        self._stage = stage
        self._participants: Sequence[ParticipantPlan] = ()
        self._noted: BaseException | None = None
        # Shared by all steps: `stage` need not watch leases again that `recover` has watched for its turn.
        self._watch = LeaseWatch()

    def deliver(self) -> dict[str, Any]:
        """All steps; see `run`."""
        from airflow_ft.pipeline.decision_log import check_store, open_configured_store

        check_store(self._spec.store)
        with closing(open_configured_store(self._spec.store, self._connections)) as store:
            try:
                return self._steps(store)
            except BaseException as error:
                self._note(store, error)
                # It has ended: others need not wait for its lease.
                with suppress(AirflowFtError, KeyError):
                    store.leave_turn(self._spec.pipeline, self._key)
                raise

    def _note(self, store: DecisionLog, error: BaseException) -> None:
        if isinstance(error, AirflowFtError):
            for_scripts(error, self._spec.pipeline, gives_rows=self._spec.is_external)
        if error is self._noted and not getattr(error, "unstored", False):
            return
        follows, self._noted = self._noted is not None, error
        # Before its first plan, nothing else in the log names the sinks.
        participants = self._participants
        note_failure(store, self._spec.pipeline, self._key, error, follows=follows, participants=participants)

    def _steps(self, store: DecisionLog) -> dict[str, Any]:
        from airflow_ft.pipeline import steps as pipeline

        spec, connections = self._spec, self._connections
        delivery = delivery_context(spec)
        plan = delivery.plan(spec.sinks, spec.commit_point)
        self._participants = plan.participants
        failures: list[AirflowFtError] = []

        def done(step: Callable[[steps.Context[DecisionLog]], Any]) -> bool:
            try:
                self._again(store, step)
            except AirflowFtError as error:
                if not failures:  # while the run has the turn, which `confirm` gives back
                    self._note(store, error)
                failures.append(error)
                return False
            return True

        def recover(context: steps.Context[DecisionLog]) -> None:
            pipeline.recover(context, spec.savepoint, spec.sources, delivery.wal_root)

        def stage(context: steps.Context[DecisionLog]) -> None:
            self._stage(resolve(spec), context, connections)

        # As in Airflow, a failed step does not keep decided rows from delivery (I3, I7). So only `stage` reads the
        # settings of Spark.
        if has_published := done(recover) and done(stage):
            pipeline.log_plan(plan)
            for name in plan.names:
                done(partial(pipeline.prepare, delivery=delivery, plan=plan, participant=name))
        restores = spec.savepoint is not None and spec.savepoint.is_given
        for name in plan.names:
            done(partial(pipeline.commit, participant=name, restores=restores))
        try:
            confirmation = self._again(
                store,
                lambda context: pipeline.confirm(context, delivery, spec.sources, connections, restores),
            )
        except AirflowFtError as error:
            failures.append(error)
        if failures:
            if has_published and spec.is_external:
                _say_what_is_kept(failures)
            raise failures[0]
        return pipeline.report_confirmed(confirmation)

    def _again(self, store: DecisionLog, step: Callable[[steps.Context[DecisionLog]], T]) -> T:
        """Run a step; retries it after a transient error, and while other runs work on the pipeline."""
        restarts = (self._spec.strategy if self._spec.restart is not None else USUAL).begin(time.monotonic())
        abandoned = self._abandoned(store)
        number = 1
        while True:
            try:
                return step(self._context(store, number, abandoned))
            except (TurnHeldError, LeaseHeldError) as error:
                self._wait(error)
            except TransientError as error:
                # If the decision log was away, an owner that is alive could not renew its lease either.
                self._watch = LeaseWatch()
                # A person must correct a password or a table, which takes longer. `restart=` asks for retries.
                needs_a_person = isinstance(error, SinkAccessError | UnfitTargetError) and self._spec.restart is None
                wait = None if needs_a_person else wait_after(error, restarts, "the step")
                if wait is None:
                    raise
                time.sleep(wait)
                number += 1
                abandoned = self._abandoned(store)

    def _abandoned(self, store: DecisionLog) -> Abandoned:
        return Abandoned(store, self._spec.pipeline, settings.lease_seconds(), self._watch)

    def _wait(self, error: AirflowFtError) -> None:
        """For others; raises the error when that has taken too long."""
        if self._turn_timeout is not None and self._waited >= self._turn_timeout.total_seconds():
            raise error
        if self._waited == 0:
            log.info("%s", error)
        time.sleep(_POLL_SECONDS)
        self._waited += _POLL_SECONDS

    def _context(self, store: DecisionLog, try_number: int, abandoned: Abandoned) -> steps.Context[DecisionLog]:
        from airflow_ft.pipeline.decision_log import participant_factory

        return steps.Context(
            store=store,
            pipeline=self._spec.pipeline,
            run=self._key,
            participants=participant_factory(self._connections),
            worker=Worker(f"{self._key} ({socket.gethostname()}:{os.getpid()})", try_number, abandoned.watch),
            lease_seconds=settings.lease_seconds(),
            run_is_over=abandoned,
        )


def _say_what_is_kept(failures: Sequence[AirflowFtError]) -> None:
    """Let the first error say that the rows are kept. UnfitTargetError says it itself, and DeclinedError says which."""
    first = failures[0]
    if not isinstance(first, TransientError) or isinstance(first, UnfitTargetError):
        return
    if not any(isinstance(each, DeclinedError) for each in failures):
        first.remedy += " The rows are kept: the same call with the same position continues."


def new_run_id() -> str:
    """Return a unique run id of the current time."""
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%fZ}-{uuid.uuid4().hex[:8]}"


def _check_plain(spec: PipelineSpec) -> None:
    """ConfigurationError for what needs Airflow: a stream, and Jinja."""
    for name, what, remedy in (
        (
            "streaming",
            "a stream (streaming=True) needs Airflow to run it.",
            "Leave streaming out: each run reads what is new. Or write a DAG with CheckpointedPipeline.",
        ),
        (
            "dry_run",
            f"dry_run is {spec.dry_run!r}, but airflow_ft.run delivers rows.",
            "Leave dry_run out, or call airflow_ft.dry_run(...).",
        ),
        (
            "rewind",
            f"rewind is {spec.rewind!r}, but a run outside Airflow does not rewind.",
            f"Leave rewind out, and run `airflow ft rewind {spec.pipeline}` before.",
        ),
    ):
        if getattr(spec, name):
            raise ConfigurationError(what, code="needs_airflow", remedy=remedy, pipeline=spec.pipeline, argument=name)
    check_plain_values(spec)


def check_plain_values(spec: PipelineSpec) -> None:
    """ConfigurationError for Jinja."""
    for name in _NOT_RENDERED:
        if late := late_text(spec.plain(name)):
            raise ConfigurationError(
                f"{name} contains Jinja ({late}), which only Airflow renders.",
                code="template_not_rendered",
                remedy=f"Write the value itself as {name}.",
                pipeline=spec.pipeline,
                argument=name,
                value=late,
            )
