"""`commit`: makes one participant's rows visible, for every number that is decided or that it decides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowSkipException

from airflow_ft.operators.base import CheckpointOperator
from airflow_ft.pipeline import steps as pipeline_steps
from airflow_ft.protocol import steps
from airflow_ft.protocol.arguments import check_text
from airflow_ft.protocol.from_savepoint import is_given

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_ft.pipeline.spec import PipelineSpec
    from airflow_ft.store.decision_log import DecisionLog


class CommitOperator(CheckpointOperator):
    """Delivers one participant's part, from the stored plans alone; skipped when nothing is decided for it.

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
        """Commits; AirflowSkipException when there was nothing to commit."""
        self.skip_if_skipped(run)
        numbers = pipeline_steps.commit(run, self.participant, is_given(self.from_savepoint))
        if not numbers:
            raise AirflowSkipException(f"no decided checkpoint waits for {self.participant}")
        return {"numbers": numbers}
