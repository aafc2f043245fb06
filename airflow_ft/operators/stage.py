"""`stage`: runs the job in Spark and publishes its checkpoints into the write-ahead log."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_ft import settings
from airflow_ft.core import steps
from airflow_ft.core.model import CheckpointingMode
from airflow_ft.hooks.connections import task_connections
from airflow_ft.hooks.spark import spark_master
from airflow_ft.hooks.store import store_url
from airflow_ft.operators.base import CheckpointOperator

if TYPE_CHECKING:
    import pyarrow as pa
    from airflow.sdk import Context

    from airflow_ft.core.config import CheckpointConfig
    from airflow_ft.core.errors import AirflowFtError
    from airflow_ft.core.model import Pipeline, RunKey
    from airflow_ft.core.planning import Delivery
    from airflow_ft.core.ports import Archive, Progress
    from airflow_ft.spark.request import StageRequest
    from airflow_ft.spark.task.launcher import Driver
    from airflow_ft.spec import PipelineSpec

spark_log = logging.getLogger("airflow_ft.spark")


class StageOperator(CheckpointOperator):
    """Reads what is new, computes it, and publishes it as checkpoints: frozen from then on (I1), delivered by others.

    When the run has staged before, nothing is computed and nobody is fenced. Needs the pipeline's turn, which
    `RecoverOperator` takes.

    Before anything is computed the sinks' tables and topics are compared with the job's columns, as far as they can be
    reached.

    The arguments are those of `CheckpointOperator`.
    Result: {"numbers": published, "count", "first", "last": of these, "rows": by sink}; None when there was nothing to
    do. Of more than 1,000 numbers `numbers` is None.
    """

    role = "stage"
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
        "optional_sinks",
        "job_args",
        "commit_point",
    )
    template_fields_renderers = {  # noqa: RUF012 - as Airflow declares it
        "sources": "json",
        "sinks": "json",
        "checkpointing": "json",
        "spark_conf": "json",
        "job_args": "json",
    }

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._driver: Driver | None = None
        if self.spec.is_rendered:
            settings.with_checkpointing(self.spec).check_mode()

    def step(self, spec: PipelineSpec, run: steps.Context, context: Context) -> Any:
        """Stages; see `airflow_ft.spark.task.stage`."""
        from airflow_ft.spark.task.stage import stage_step

        spec = settings.resolved(spec)
        result = stage_step(run, **self.staging(spec, run), overlap=delivering(spec) if spec.overlap else None)
        return None if result is None else {**result.published.told(), "rows": dict(result.rows)}

    def staging(self, spec: PipelineSpec, run: steps.Context) -> dict[str, Any]:
        """What the step is told, in any case; `spec` has its defaults."""
        from airflow.sdk.log import redact  # type: ignore[attr-defined]

        from airflow_ft.sinks.fitting import misfits

        delivery = spec.delivery

        def make(pipeline: Pipeline, epoch: int, attempt: int) -> StageRequest:
            return request(spec, run.run, pipeline, epoch, attempt)

        def judge(schemas: Mapping[str, pa.Schema]) -> Sequence[AirflowFtError]:
            return misfits(delivery.participants, task_connections, schemas)

        return {
            "make_request": make,
            "on_line": spark_log.info,
            "on_start": self._remember,
            "spec": redact(self._kept(spec)),  # hides what Airflow knows to be secret, wherever Jinja has put it
            "judge": judge,
            # With AT_MOST_ONCE nothing is gone on with, so nothing can come once more.
            "resume_drained": spec.config.resume_drained or spec.config.mode is CheckpointingMode.AT_MOST_ONCE,
        }

    def _kept(self, spec: PipelineSpec) -> dict[str, Any]:
        """What the decision log keeps of it: of arguments and settings that may hold secrets what the DAG says.

        So they are not rendered, and of the provider's settings there are the names.
        """
        configured = dict.fromkeys(settings.spark_conf(), f"[{settings.SECTION}] spark_conf")
        declared = replace(spec, job_args=self.spec.job_args, spark_conf={**configured, **self.spec.spark_conf})
        return declared.to_json()

    def _remember(self, driver: Driver) -> None:
        self._driver = driver

    def on_kill(self) -> None:
        """Ends Spark when the task is ended; what was not published is computed again."""
        if self._driver is not None:
            self._driver.kill()


def delivering(spec: PipelineSpec) -> tuple[Delivery, CheckpointConfig, Progress, Archive]:
    """What a delivery beside the stage needs; `spec` has its defaults."""
    from airflow_ft.sources.progress import GroupOffsets
    from airflow_ft.wal.retention import WalArchive

    progress = GroupOffsets(spec.sources, task_connections)
    return spec.delivery, spec.config, progress, WalArchive(spec.wal_root or "")


def request(spec: PipelineSpec, run: RunKey, pipeline: Pipeline, epoch: int, attempt: int) -> StageRequest:
    """What the Spark driver is told; it holds credentials of sources and of the decision log, none of sinks.

    `spec` has its defaults.
    """
    from airflow_ft.spark.request import RETAINED_BATCHES, StageRequest, listed

    # A stream looks at all that Spark retains with each checkpoint, so that should be no more than it may need.
    is_short = spec.streaming and not spec.config.unaligned
    conn_ids = {source.conn_id for source in spec.sources.values() if source.conn_id}
    assert spec.wal_root is not None and spec.jars is not None and spec.keep_session is not None
    return StageRequest(
        pipeline=spec.pipeline,
        run=run,
        epoch=epoch,
        attempt=attempt,
        base=pipeline.base,
        base_is_clean=pipeline.base_is_clean,
        last_published=pipeline.last_published,
        store_url=store_url(spec.store),
        wal_root=spec.wal_root,
        job=spec.job,
        job_arguments=spec.job_args,
        sources={name: source.to_json() for name, source in spec.sources.items()},
        connections={conn_id: task_connections(conn_id) for conn_id in sorted(conn_ids)},
        sinks=tuple(name for name in spec.sinks if name not in spec.optional_sinks),
        optional_sinks=tuple(spec.optional_sinks),
        packages=tuple(spec.packages),
        checkpointing=spec.config,
        streaming=spec.streaming,
        retained_batches=RETAINED_BATCHES if not is_short else max(100, 2 * spec.config.concurrent),
        restart=spec.strategy.to_json() if spec.streaming else None,
        master=spark_master(spec.spark_master or ""),
        conf=spec.spark_conf,
        jars=listed(spec.jars),
        python_path=_python_path(),
        class_archives=settings.class_archives(),
        keep_session=spec.keep_session.total_seconds(),
    )


def _python_path() -> tuple[str, ...]:
    """What is on this process's path besides the interpreter's own folders.

    The job usually lies beside the DAG, in a folder that Airflow has put there.
    """
    own = (sys.prefix, sys.base_prefix, sys.exec_prefix)
    return tuple(path for path in sys.path if path and not path.startswith(own))
