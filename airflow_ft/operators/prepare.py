"""`prepare`: plans what is staged, and asks one participant for its vote."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_ft.operators.base import CheckpointOperator
from airflow_ft.pipeline import steps as pipeline_steps
from airflow_ft.pipeline.resolved import delivery_context
from airflow_ft.protocol import steps
from airflow_ft.protocol.announced import Announcement
from airflow_ft.protocol.arguments import check_text
from airflow_ft.protocol.numbers import MOST_LISTED

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_ft.pipeline.spec import PipelineSpec
    from airflow_ft.store.decision_log import DecisionLog


NOTHING = {"branch": ""}
"""The result of `AnnounceOperator` has this one item if no checkpoint has several branches."""


class PrepareOperator(CheckpointOperator):
    """Asks one participant whether it can take every staged checkpoint's rows; nothing becomes visible.

    Args:
        participant: the Airflow connection that is asked.
        announced: the result of `AnnounceOperator`, whose attempt continues; None: there is none.

    The other arguments are those of `CheckpointOperator`. Result: {"numbers": {number: state}}, at most
    the newest 1,000.
    """

    template_fields: Sequence[str] = (
        *CheckpointOperator.template_fields,
        "participant",
        "sinks",
        "commit_point",
        "checkpointing",
        "wal_root",
        "announced",
    )

    def __init__(self, *, participant: str, announced: Any = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_text("participant", participant)
        self.participant = participant
        self.announced = announced

    def step(self, spec: PipelineSpec, run: steps.Context[DecisionLog], context: Context) -> Any:
        """Plans and votes; a refusal aborts the checkpoint and rewinds the pipeline."""
        delivery = delivery_context(spec)
        plan = delivery.plan(spec.sinks, spec.commit_point)
        first = self.announced[0] if self.announced else NOTHING
        announced = Announcement.from_json(first) if first["branch"] else None
        pipeline_steps.log_plan(plan)
        prepared = pipeline_steps.prepare(run, delivery, plan, self.participant, announced)
        return {"numbers": {str(checkpoint.number): checkpoint.state.value for checkpoint in prepared[-MOST_LISTED:]}}
