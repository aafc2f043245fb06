"""`confirmed`: succeeds on proof alone (I9); what stands behind it in the DAG may rely on every row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_ft import pipeline_steps
from airflow_ft.assets import declared_asset
from airflow_ft.core import steps
from airflow_ft.hooks.connections import task_connections
from airflow_ft.operators.base import CheckpointOperator
from airflow_ft.operators.recover import emit

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_ft.spec import PipelineSpec


class ConfirmOperator(CheckpointOperator):
    """Fails unless every checkpoint that this run published is confirmed in every sink; then retains and prunes.

    Updates the pipeline's asset, unless the run had nothing to deliver. Gives the pipeline's turn to the next run.

    The arguments are those of `CheckpointOperator`.
    Result: {"numbers": [...], "count", "first", "last": of these, "latest": newest confirmed number of the pipeline,
    "rows": confirmed in this run, "set_aside": of these, rows by sink that the sink refused and a person has set aside
    (`airflow ft in-doubt`)}. Of more than 1,000 numbers `numbers` is None, and the others tell.
    """

    role = "confirmed"
    template_fields: Sequence[str] = (*CheckpointOperator.template_fields, "sources", "checkpointing", "wal_root")
    template_fields_renderers = {"sources": "json", "checkpointing": "json"}  # noqa: RUF012 - as Airflow declares it

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if self.spec.emit_asset:
            self.add_outlets([declared_asset(self.pipeline, self.suffix)])

    def step(self, spec: PipelineSpec, run: steps.Context, context: Context) -> Any:
        """Confirms; NotDeliveredError (which fails the task) says which numbers are not, and why."""
        confirmation = pipeline_steps.confirm(spec, run, task_connections)
        emit(self, context, confirmation.confirmed)
        return pipeline_steps.told(confirmation)
