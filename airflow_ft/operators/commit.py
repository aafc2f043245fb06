"""`commit`: makes one participant's rows visible, for every number that is decided or that it decides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowSkipException

from airflow_ft.operators.base import CheckpointOperator
from airflow_ft.pipeline import steps as pipeline_steps
from airflow_ft.protocol import steps
from airflow_ft.protocol.arguments import check_text
from airflow_ft.protocol.errors import NotDeliveredError, StateConflictError, TurnHeldError
from airflow_ft.protocol.from_savepoint import is_given

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_ft.pipeline.spec import PipelineSpec
    from airflow_ft.store.decision_log import DecisionLog


class CommitOperator(CheckpointOperator):
    """Deliver one participant's part, from the stored plans alone.

    Skipped if the run has no rows. Fails if it must run again, because the stage has not finished or rows are not
    decided: then "Clear only failed tasks" in Airflow also clears this task.

    Decides nothing in a run that has not restored its savepoint (`from_savepoint`).

    Args:
        participant: the Airflow connection whose sinks it commits.

    The other arguments are those of `CheckpointOperator`. Result: {"numbers": [...]} that it has proof of, at most the
    newest 1,000.
    """

    template_fields: Sequence[str] = (*CheckpointOperator.template_fields, "participant", "from_savepoint")
    unchecked = ("from_savepoint",)

    from_savepoint: Any

    def __init__(self, *, participant: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_text("participant", participant)
        self.participant = participant

    def step(self, spec: PipelineSpec, run: steps.Context[DecisionLog], context: Context) -> Any:
        """Commit. Raise AirflowSkipException if nothing is to be committed, NotDeliveredError if it is too early."""
        self.skip_if_skipped(run)
        numbers, left = list[int](), ""
        try:
            numbers = pipeline_steps.commit(run, self.participant, is_given(self.from_savepoint))
        except TurnHeldError:  # without a stage do not wait: the run that has the turn delivers what is decided
            if _is_staged(run):
                raise
        except StateConflictError as error:
            if error.code != "earlier_first" or not (left := pipeline_steps.undecided(run)):
                raise
        if left := left or pipeline_steps.undecided(run):
            # Like upstream_failed in Airflow: no callback, and the page shows the task that failed before this one.
            self.on_failure_callback, self.email_on_failure, self.is_of_run = [], False, False
            remedy = steps.CLEAR_FAILED if _is_staged(run) else steps.CLEAR_STAGE
            raise NotDeliveredError(f"{left}.", remedy=remedy, pipeline=run.pipeline)
        if not numbers:
            raise AirflowSkipException(f"no decided checkpoint waits for {self.participant}")
        return {"numbers": numbers}


def _is_staged(run: steps.Context[DecisionLog]) -> bool:
    """Return whether the run's stage has ended, and none of the run's rows must be computed again."""
    row = run.store.run(run.pipeline, run.run)
    return row is not None and row.staged
