"""`doctor` as a task: examines a pipeline's systems before, or beside, its runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowFailException

from airflow_ft import settings
from airflow_ft.core.doctor import Verdict, worst
from airflow_ft.core.errors import AirflowFtError
from airflow_ft.core.planning import plan_delivery
from airflow_ft.core.ports import SinkSpec
from airflow_ft.hooks.connections import task_connections
from airflow_ft.hooks.spark import spark_master
from airflow_ft.hooks.store import open_configured_store, participant_factory
from airflow_ft.operators.arguments import check_places, check_sinks, check_sources, check_spark, check_switches
from airflow_ft.operators.base import CheckpointOperator
from airflow_ft.operators.failing import fail
from airflow_ft.templates import rebuild, spec_fields

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_ft.sources import Source


class DoctorOperator(CheckpointOperator):
    """Runs every preflight of a pipeline, and fails when one finds a problem. Writes nothing that stays.

    Args:
        sinks: as of `CheckpointedPipeline`; None: those of the pipeline's newest plan.
        sources: as of `CheckpointedPipeline`.
        wal_root, spark_master, jars: as of `CheckpointedPipeline`.
        fail_on_warning: whether a warning fails the task too.

    The other arguments are those of `CheckpointOperator`.
    Result: a list of {"subject", "check", "verdict", "text", "remedy"}.
    """

    template_fields: Sequence[str] = (
        *CheckpointOperator.template_fields,
        "sinks",
        "sources",
        "wal_root",
        "spark_master",
        "jars",
    )
    template_fields_renderers = {"sinks": "json", "sources": "json"}  # noqa: RUF012 - as Airflow declares it

    def __init__(
        self,
        *,
        sinks: Mapping[str, SinkSpec] | None = None,
        sources: Mapping[str, Source] | None = None,
        wal_root: str | None = None,
        spark_master: str | None = None,
        jars: str | Sequence[str] | None = None,
        fail_on_warning: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_sinks({} if sinks is None else sinks)
        check_sources({} if sources is None else sources, required=False)
        check_places(wal_root=wal_root, spark_master=spark_master)
        check_spark(None, jars, (), None)
        check_switches(fail_on_warning=fail_on_warning)
        self.sinks = {name: spec_fields(sink) for name, sink in (sinks or {}).items()}
        self._sink_classes: dict[str, type[SinkSpec]] = {name: type(sink) for name, sink in (sinks or {}).items()}
        self.sources = {name: spec_fields(source) for name, source in (sources or {}).items()}
        self._source_classes: dict[str, type[Source]] = {n: type(source) for n, source in (sources or {}).items()}
        self.wal_root = wal_root
        self.spark_master = spark_master
        self.jars = jars if jars is None or isinstance(jars, str) else list(jars)
        self.fail_on_warning = fail_on_warning

    def execute(self, context: Context) -> Any:
        """Examines, logs each check, and fails on a problem."""
        try:
            return self._examine()
        except AirflowFtError as error:
            fail(self.log, error)

    def _examine(self) -> list[dict[str, str]]:
        from airflow_ft.doctor import Patient, examine
        from airflow_ft.spark.request import listed

        self.check_rendered()
        sinks = rebuild(self._sink_classes, self.sinks)
        patient = Patient(
            pipeline=self.pipeline,
            wal_root=self.wal_root or settings.wal_root(),
            participants={p.name: p for p in plan_delivery(sinks).participants} if sinks else {},
            sources=rebuild(self._source_classes, self.sources),
            spark_master=spark_master(self.spark_master or settings.spark_master()),
            jars=listed(self.jars if self.jars is not None else settings.spark_jars()),
            spark_conf=settings.spark_conf(),
        )
        checks = examine(patient, lambda: open_configured_store(self.store), task_connections, participant_factory())
        for check in checks:
            say = self.log.info if check.verdict is Verdict.OK else self.log.warning
            remedy = f" Remedy: {check.remedy}" if check.remedy else ""
            say("%s: %s: %s: %s%s", check.verdict.value, check.subject, check.name, check.text, remedy)
        verdict = worst(checks)
        if verdict is Verdict.PROBLEM or (verdict is Verdict.WARNING and self.fail_on_warning):
            bad = [c for c in checks if c.verdict is not Verdict.OK and (self.fail_on_warning or c.verdict is verdict)]
            raise AirflowFailException("; ".join(f"{c.subject}: {c.name}: {c.text}" for c in bad))
        return [check.to_json() for check in checks]
