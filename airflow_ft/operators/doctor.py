"""`doctor` as a task: examines a pipeline's systems before, or beside, its runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_ft.operators.base import CheckpointOperator
from airflow_ft.operators.failing import fail
from airflow_ft.pipeline.connections import task_connections
from airflow_ft.pipeline.decision_log import open_configured_store, participant_factory
from airflow_ft.pipeline.resolved import delivery_context, spark_settings
from airflow_ft.protocol.arguments import check_type
from airflow_ft.protocol.doctor import Verdict
from airflow_ft.protocol.errors import AirflowFtError
from airflow_ft.protocol.failure import with_fix

if TYPE_CHECKING:
    from airflow.sdk import Context


class DoctorOperator(CheckpointOperator):
    """Runs every preflight of a pipeline, and fails when one finds a problem. Writes nothing that stays.

    Args:
        fail_on_warning: whether a warning fails the task too.

    The other arguments are those of `CheckpointOperator`.
    Result: a list of {"subject", "check", "verdict", "text", "remedy"}.
    """

    is_of_run = False
    usual = None
    template_fields: Sequence[str] = (
        *CheckpointOperator.template_fields,
        "sinks",
        "sources",
        "wal_root",
        "spark_master",
        "spark_conf",
        "jars",
        "packages",
        "commit_point",
        "checkpointing",
    )

    def __init__(self, *, fail_on_warning: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_type("fail_on_warning", fail_on_warning, bool, "Give True or False.")
        self.fail_on_warning = fail_on_warning

    def execute(self, context: Context) -> Any:
        """Examines, logs each check, and fails on a problem."""
        try:
            return self._examine()
        except AirflowFtError as error:
            fail(self.log, error, context)

    def _examine(self) -> list[dict[str, str]]:
        from airflow_ft.pipeline.actions.examining import require
        from airflow_ft.pipeline.doctor import Patient, examine, module_of
        from airflow_ft.pipeline.output_mode import declared_mode

        spec = self.rendered()
        delivery, spark = delivery_context(spec), spark_settings(spec)
        patient = Patient.of(
            spec.pipeline,
            delivery.wal_root,
            spark,
            delivery.plan(spec.sinks, spec.commit_point),
            spec.sources,
            job=module_of(spec.job),
            output_mode=declared_mode(spec.job),
            computes=not spec.is_external,
            dag_file=self.dag_file,
        )
        checks = examine(patient, lambda: open_configured_store(spec.store), task_connections, participant_factory())
        for check in checks:
            say = self.log.info if check.verdict is Verdict.OK else self.log.warning
            text = with_fix(check.text, check.remedy)
            say("%s: %s: %s: %s", check.verdict.value, check.subject, check.name, text)
        require(checks, spec.pipeline, warnings=self.fail_on_warning)
        return [check.to_json() for check in checks]
