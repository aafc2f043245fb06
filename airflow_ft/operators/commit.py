"""`commit`: makes one participant's rows visible, for every number that is decided or that it decides."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowSkipException

from airflow_ft.core import steps
from airflow_ft.core.arguments import check_text
from airflow_ft.core.numbers import MOST_LISTED
from airflow_ft.operators.base import CheckpointOperator

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_ft.core.model import Checkpoint
    from airflow_ft.spec import PipelineSpec


class CommitOperator(CheckpointOperator):
    """Delivers one participant's part, from the stored plans alone; skipped when nothing is decided for it.

    Args:
        participant: the Airflow connection whose sinks it commits.

    The other arguments are those of `CheckpointOperator`. Result: {"numbers": [...]} that it has proof of, at most the
    newest 1,000.
    """

    template_fields: Sequence[str] = (*CheckpointOperator.template_fields, "participant")

    def __init__(self, *, participant: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_text("participant", participant)
        self.participant = participant

    def step(self, spec: PipelineSpec, run: steps.Context, context: Context) -> Any:
        """Commits; AirflowSkipException when there was nothing to commit."""
        numbers: Sequence[int] = self._proven(steps.commit_step(run, self.participant))
        if not numbers:  # another try, or recover, or an overlapping stage may have committed this run's numbers before
            numbers = run.store.proven(run.pipeline, run.run, self.participant, MOST_LISTED)
        if not numbers:
            raise AirflowSkipException(f"nothing is decided that waits for {self.participant}")
        return {"numbers": list(numbers[-MOST_LISTED:])}

    def _proven(self, checkpoints: Iterable[Checkpoint]) -> list[int]:
        """The numbers that this participant has proof of (I6)."""
        votes = ((checkpoint.number, checkpoint.votes.get(self.participant)) for checkpoint in checkpoints)
        return [number for number, vote in votes if vote is not None and vote.proof is not None]
