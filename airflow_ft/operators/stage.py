"""`stage`: runs the job in Spark and publishes its checkpoints into the write-ahead log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_ft.operators.base import CheckpointOperator
from airflow_ft.operators.emitting import declare_inlets
from airflow_ft.pipeline import steps as pipeline_steps
from airflow_ft.pipeline.connections import task_connections
from airflow_ft.pipeline.resolved import checkpointing_of, resolve
from airflow_ft.protocol import steps
from airflow_ft.protocol.errors import ConfigurationError

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_ft.pipeline.spec import PipelineSpec
    from airflow_ft.spark.task.launcher import Driver
    from airflow_ft.store.decision_log import DecisionLog


class StageOperator(CheckpointOperator):
    """Read new input, compute its rows, and publish them as checkpoints: frozen from then on (I1), delivered by other
    tasks.

    If the run has staged before, it computes nothing and fences no process. Needs the pipeline's turn, which
    `RecoverOperator` takes.

    Before anything is computed the sinks' tables and topics are compared with the job's columns, as far as they can be
    reached.

    The arguments are those of `CheckpointOperator`. Result: {"numbers": published, "count", "first", "last": of these,
    "rows": by sink}; None when there was nothing to do. Of more than 1,000 numbers `numbers` is None. Of a dry run the
    result of `DryRun.to_json`.
    """

    role = "stage"
    writes: ClassVar[bool] = False
    """Whether it also delivers. OpenLineage then gets the outputs."""
    template_fields: Sequence[str] = (
        *CheckpointOperator.template_fields,
        "job",
        "sources",
        "sinks",
        "checkpointing",
        "wal_root",
        "spark_master",
        "spark_conf",
        "jars",
        "packages",
        "job_args",
        "commit_point",
        "from_savepoint",
    )

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if self.spec.is_external:
            raise ConfigurationError(
                "the pipeline has a position, so another task computes its rows.",
                code="arguments_conflict",
                remedy="Use ExternalFolderOperator and ExternalStageOperator, or give a job instead of a position.",
                pipeline=self.spec.pipeline,
                arguments=["position", "job"],
            )
        self._driver: Driver | None = None
        declare_inlets(self)
        if self.spec.is_rendered:
            replace(self.spec, checkpointing=checkpointing_of(self.spec)).check_mode()

    def step(self, spec: PipelineSpec, run: steps.Context[DecisionLog], context: Context) -> Any:
        """Stages; see `airflow_ft.pipeline.steps`."""
        return pipeline_steps.stage(resolve(spec, self.spec), run, task_connections, self._remember)

    def rehearse(self, spec: PipelineSpec, context: Context) -> Any:
        """Compute and log what would be delivered.

        Shows rows only if the author asks for them: more people may read logs than the tables.

        Raises:
            FoundProblemsError: a sink would refuse it.
        """
        from airflow_ft.pipeline.actions.examining import require
        from airflow_ft.pipeline.dry_run import rehearse

        self.outlets = []
        found = rehearse(resolve(spec), task_connections, samples=spec.dry_run_samples, on_start=self._remember)
        for line in found.lines():
            self.log.info("%s", line)
        require(found.checks, spec.pipeline)
        return found.to_json()

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """Return the facts for OpenLineage (`airflow_ft.operators.openlineage`); its provider calls this."""
        from airflow_ft.operators.openlineage import lineage

        return lineage(self, task_instance, writes=self.writes)

    def get_openlineage_facets_on_failure(self, task_instance: Any) -> Any:
        """Return the facets without row counts, which the next try reports."""
        from airflow_ft.operators.openlineage import lineage

        return lineage(self, task_instance, writes=self.writes, rows=False)

    def _remember(self, driver: Driver) -> None:
        self._driver = driver

    def on_kill(self) -> None:
        """Ends Spark when the task is ended; what was not published is computed again."""
        if self._driver is not None:
            self._driver.kill()
