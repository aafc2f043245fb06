"""`confirmed`: succeeds only on proof (I9), so downstream tasks may rely on every row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_ft.operators.base import CheckpointOperator
from airflow_ft.operators.emitting import declare_outlets, emit
from airflow_ft.pipeline import steps as pipeline_steps
from airflow_ft.pipeline.connections import task_connections
from airflow_ft.pipeline.resolved import delivery_context
from airflow_ft.protocol import steps
from airflow_ft.protocol.from_savepoint import is_given

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_ft.pipeline.spec import PipelineSpec
    from airflow_ft.store.decision_log import DecisionLog


class ConfirmOperator(CheckpointOperator):
    """Fails unless every checkpoint that this run published is confirmed in every sink; then retains and prunes.

    Quarantines nothing in a run that has not restored its savepoint (`from_savepoint`).

    Updates the pipeline's asset and those of the sinks that got rows, unless the run had nothing to deliver. Gives the
    pipeline's turn to the next run.

    The arguments are those of `CheckpointOperator`. The result is a mapping:

    - "numbers": [...], with "count", "first" and "last". Above 1,000 numbers the list is None; the other fields remain.
    - "latest": newest confirmed number of the pipeline.
    - "rows": confirmed in this run.
    - "recovered": the numbers that earlier runs computed but did not count. "recovered_rows": their part of "rows".
    - "set_aside": of these, rows by sink that the sink refused and a person set aside (`airflow ft in-doubt`).

    Each checkpoint is in the result of one run.
    """

    role = "confirmed"
    template_fields: Sequence[str] = (
        *CheckpointOperator.template_fields,
        "sources",
        "checkpointing",
        "wal_root",
        "from_savepoint",
    )
    unchecked = ("from_savepoint",)
    from_savepoint: Any

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        declare_outlets(self)

    def step(self, spec: PipelineSpec, run: steps.Context[DecisionLog], context: Context) -> Any:
        """Confirms; NotDeliveredError (which fails the task) says which numbers are not, and why."""
        self.skip_if_skipped(run)
        restores = is_given(self.from_savepoint)
        confirmation = pipeline_steps.confirm(run, delivery_context(spec), spec.sources, task_connections, restores)
        emit(self, context, run, confirmation.confirmed)
        return pipeline_steps.report_confirmed(confirmation)

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """Return the facts for OpenLineage (`airflow_ft.operators.openlineage`); its provider calls this."""
        from airflow_ft.operators.openlineage import lineage

        return lineage(self, task_instance, writes=True)

    def get_openlineage_facets_on_failure(self, task_instance: Any) -> Any:
        """Return the facets without row counts, which the next try reports."""
        from airflow_ft.operators.openlineage import lineage

        return lineage(self, task_instance, writes=True, rows=False)
