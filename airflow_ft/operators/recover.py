"""`recover`: settles what earlier runs left, and takes the pipeline's turn for this run."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import TaskDeferred

from airflow_ft.operators.base import CheckpointOperator
from airflow_ft.operators.emitting import declare_outlets, emit
from airflow_ft.pipeline import steps as pipeline_steps
from airflow_ft.pipeline.resolved import wal_root_of
from airflow_ft.pipeline.runs import first_try
from airflow_ft.protocol import steps
from airflow_ft.protocol.arguments import check_seconds, check_type, wrong
from airflow_ft.protocol.confirmed import confirmed_of
from airflow_ft.protocol.errors import LeaseHeldError, NotDeliveredError, TurnHeldError

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_ft.pipeline.actions.actor import Actor
    from airflow_ft.pipeline.spec import PipelineSpec
    from airflow_ft.protocol.recovery import Recovery
    from airflow_ft.store.decision_log import DecisionLog


class RecoverOperator(CheckpointOperator):
    """Deliver decided checkpoints and settle those in doubt; does nothing when there are none.

    While another run or process works on the pipeline it defers, and continues when that one is over. Before that it
    rewinds the pipeline, once, if the specification says so (`rewind`). It restores the savepoint of the run, once,
    before it settles what could still be aborted. Updates the pipeline's asset if it completed a checkpoint.

    Args:
        poll_interval: seconds between two looks at the decision log while it is deferred.
        turn_timeout: longest total wait for others, with all retries. Then the task fails. None: no limit. It limits
            `recover` alone: other tasks wait without a limit.

    The other arguments are those of `CheckpointOperator`. Result: {"completed": [numbers]}.
    """

    role = "recover"
    template_fields: Sequence[str] = (*CheckpointOperator.template_fields, "rewind", "from_savepoint", "wal_root")

    def __init__(
        self,
        *,
        poll_interval: float = 5.0,
        turn_timeout: timedelta | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_seconds("poll_interval", poll_interval)
        if poll_interval == 0:
            raise wrong("poll_interval", "0", "Give a number of seconds above 0.")
        check_type("turn_timeout", turn_timeout, timedelta, "Give timedelta(hours=1), for example.", optional=True)
        self.poll_interval = poll_interval
        self.turn_timeout = turn_timeout
        declare_outlets(self)

    def step(self, spec: PipelineSpec, run: steps.Context[DecisionLog], context: Context) -> Any:
        """Recover, or defer while another process works on the pipeline."""
        rewind = rewinding(self, context) if spec.is_rewind else None
        waited = timedelta(0) if self.turn_timeout is None else self._waited(context, run.store.now())
        left = None if self.turn_timeout is None else self.turn_timeout - waited
        try:
            recovery = recover_or_wait(self, run, spec, self.poll_interval, left, rewind=rewind)
        except TaskDeferred:
            if self.turn_timeout is not None:
                self._keep(context, (run.store.now() - waited).isoformat())
            raise
        emit(self, context, run, confirmed_of(run.store, run.pipeline, recovery.completed, run.run))
        return {"completed": list(recovery.completed)}

    def _waited(self, context: Context, now: datetime) -> timedelta:
        """Return how long the task has waited for others, and end the wait of its last deferral."""
        kept = context.get("task_state_store")
        found: Any = None if kept is None else kept.get(self._key(context))
        if isinstance(found, str):
            found = max(0.0, (now - datetime.fromisoformat(found)).total_seconds())
            self._keep(context, found)
        return timedelta(seconds=found or 0.0)

    def _keep(self, context: Context, waited: float | str) -> None:
        """Store the seconds waited so far; during a wait, its start time minus the earlier waits."""
        kept = context.get("task_state_store")
        if kept is not None and self.turn_timeout is not None:
            kept.set(self._key(context), waited, retention=self.turn_timeout + timedelta(days=30))

    def _key(self, context: Context) -> str:
        return f"airflow_ft_waited_{first_try(context, self.retries)}"  # a task that is cleared waits as long again

    def rehearse(self, spec: PipelineSpec, context: Context) -> Any:
        """Nothing: a dry run beside other runs changes nothing of theirs."""
        self.outlets = []
        return {"completed": []}


def rewinding(operator: CheckpointOperator, context: Context) -> Actor:
    """Return who has this run rewind its pipeline."""
    from airflow_ft.operators.acting import actor_of

    return actor_of(operator.log, context, "rewind")


def recover_or_wait(
    operator: CheckpointOperator,
    run: steps.Context[DecisionLog],
    spec: PipelineSpec,
    poll_interval: float,
    timeout: timedelta | None,
    *,
    again: bool = False,
    rewind: Actor | None = None,
) -> Recovery:
    """Recover, and restore the savepoint of `spec`. While another process works on the pipeline, defer the task, which
    continues in its method `resume`.

    `timeout`: time left to wait. `rewind`: requester of a rewind before that; None: no rewind.

    Raises:
        NotDeliveredError: another process works on the pipeline, and no time is left.
    """
    try:
        if rewind is not None:
            pipeline_steps.rewind(run, rewind, again=again)
        return pipeline_steps.recover(run, spec.savepoint, spec.sources, wal_root_of(spec), again=again)
    except (TurnHeldError, LeaseHeldError) as error:
        if error.pipeline not in ("", run.pipeline):  # the old name of a rename: not watched
            raise
        if timeout is not None and timeout <= timedelta(0):
            raise NotDeliveredError(
                f"the task has waited for turn_timeout, and another process still works on the pipeline: {error.what}",
                code="turn_timeout",
                remedy="Open the log of that run or process. If it hangs, mark the run as failed in Airflow, or end the"
                " process. Then clear this task.",
                pipeline=run.pipeline,
            ) from error
        operator.wait_for_turn(error, run.run, poll_interval, timeout)
