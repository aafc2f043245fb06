"""`stage`: runs the job in Spark and publishes its checkpoints into the write-ahead log."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_ft import settings
from airflow_ft.core import steps
from airflow_ft.core.arguments import check_job, check_texts, is_resolved_later
from airflow_ft.core.config import CheckpointConfig
from airflow_ft.core.errors import ConfigurationError
from airflow_ft.core.planning import plan_delivery
from airflow_ft.hooks.connections import task_connections
from airflow_ft.hooks.spark import spark_master
from airflow_ft.hooks.store import store_url
from airflow_ft.operators.arguments import (
    check_checkpointing,
    check_places,
    check_sinks,
    check_sources,
    check_spark,
    check_switches,
)
from airflow_ft.operators.base import CheckpointOperator
from airflow_ft.operators.confirm import checkpoint_settings
from airflow_ft.operators.prepare import check_holding
from airflow_ft.templates import is_template, rebuild, spec_fields

if TYPE_CHECKING:
    import pyarrow as pa
    from airflow.sdk import Context

    from airflow_ft.core.errors import AirflowFtError
    from airflow_ft.core.model import Pipeline
    from airflow_ft.core.ports import SinkSpec
    from airflow_ft.sources import Source
    from airflow_ft.spark.launcher import Driver
    from airflow_ft.spark.request import StageRequest

spark_log = logging.getLogger("airflow_ft.spark")


class StageOperator(CheckpointOperator):
    """Reads what is new, computes it, and publishes it as checkpoints: frozen from then on (I1), delivered by others.

    When the run has staged before, nothing is computed and nobody is fenced. Needs the pipeline's turn, which
    `RecoverOperator` takes.

    Args:
        job: "package.module" or "package.module:Object"; see `CheckpointedPipeline`.
        sources: specifications by name.
        sinks: all sinks of the pipeline by name. Before anything is computed their tables and topics are compared with
            the job's columns, as far as they can be reached.
        checkpointing: the time-out of a checkpoint.
        wal_root: folder (path or URI) of the write-ahead log; None: `[airflow_ft] wal_root`.
        spark_master: a master, or "conn:<id>" of a Spark connection; None: `[airflow_ft] spark_master`.
        spark_conf: settings that go before `[airflow_ft] spark_conf`, one by one.
        jars: jar files or folders of them (a list, or text with commas); None: `[airflow_ft] spark_jars`.
        packages: Maven coordinates that Spark fetches besides.
        optional_sinks: names of those sinks that the job may leave out.
        job_args: plain data for the job.
        keep_session: for how long Spark waits for the next run of this pipeline on this machine, which then needs no
            start of a JVM; zero: it ends with the run. None: `[airflow_ft] keep_session`.
        overlap: deliver what is published while Spark goes on; otherwise all of it is left to the tasks behind.
            checkpointing says then also how many checkpoints are delivered as one.
        commit_point: of the delivery; see `PrepareOperator`.

    The other arguments are those of `CheckpointOperator`.
    Result: {"numbers": published, "rows": by sink}; None when there was nothing to do.
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

    def __init__(
        self,
        *,
        job: str,
        sources: Mapping[str, Source],
        sinks: Mapping[str, SinkSpec],
        checkpointing: CheckpointConfig | Mapping[str, Any] | None = None,
        wal_root: str | None = None,
        spark_master: str | None = None,
        spark_conf: Mapping[str, str] | None = None,
        jars: str | Sequence[str] | None = None,
        packages: Sequence[str] = (),
        optional_sinks: Sequence[str] = (),
        job_args: Mapping[str, Any] | None = None,
        keep_session: timedelta | None = None,
        overlap: bool = False,
        commit_point: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if not is_template(job) and not is_resolved_later(job):
            check_job(job)
        check_sources(sources)
        check_sinks(sinks)
        check_checkpointing(checkpointing)
        check_places(wal_root=wal_root, spark_master=spark_master, commit_point=commit_point)
        check_spark(spark_conf, jars, packages, job_args)
        check_texts("optional_sinks", optional_sinks)
        check_switches(overlap=overlap)
        self.job = job
        self.sources = {name: spec_fields(source) for name, source in sources.items()}
        self._source_classes: dict[str, type[Source]] = {name: type(source) for name, source in sources.items()}
        self.sinks = {name: spec_fields(sink) for name, sink in sinks.items()}
        self._sink_classes: dict[str, type[SinkSpec]] = {name: type(sink) for name, sink in sinks.items()}
        self.checkpointing = checkpoint_settings(checkpointing)
        self.wal_root = wal_root
        self.spark_master = spark_master
        self.spark_conf = dict(spark_conf or {})
        self.jars = jars if jars is None or isinstance(jars, str) else list(jars)
        self.packages = list(packages)
        self.optional_sinks = list(optional_sinks)
        self.job_args = dict(job_args or {})
        if keep_session is not None and (not isinstance(keep_session, timedelta) or keep_session < timedelta(0)):
            raise ConfigurationError(
                f"keep_session is {keep_session!r}.",
                pipeline=self.pipeline,
                remedy="give timedelta(minutes=15), for example, or timedelta(0).",
            )
        self.keep_session = None if keep_session is None else keep_session.total_seconds()
        self.overlap = overlap
        self.commit_point = commit_point
        self._driver: Driver | None = None

    def step(self, run: steps.Context, context: Context) -> Any:
        """Stages; see `airflow_ft.spark.stage`."""
        from airflow_ft.sinks.fitting import misfits
        from airflow_ft.sources.progress import GroupOffsets
        from airflow_ft.spark.stage import stage_step

        def make(pipeline: Pipeline, epoch: int, attempt: int) -> StageRequest:
            return self.request(run, pipeline, epoch, attempt)

        sinks = rebuild(self._sink_classes, self.sinks)
        delivery = plan_delivery(sinks, self.commit_point)

        def judge(schemas: Mapping[str, pa.Schema]) -> Sequence[AirflowFtError]:
            return misfits(delivery.participants, task_connections, schemas)

        overlap = None
        if self.overlap:
            config = CheckpointConfig.from_json(self.checkpointing)
            check_holding(sinks, config)
            progress = GroupOffsets(rebuild(self._source_classes, self.sources), task_connections)
            overlap = (delivery, config, progress)
        result = stage_step(run, make, on_line=spark_log.info, on_start=self._remember, overlap=overlap, judge=judge)
        return None if result is None else {"numbers": list(result.numbers), "rows": dict(result.rows)}

    def request(self, run: steps.Context, pipeline: Pipeline, epoch: int, attempt: int) -> StageRequest:
        """What the Spark driver is told; it holds credentials of sources and of the decision log, none of sinks."""
        from airflow_ft.spark.request import StageRequest, listed

        sources = rebuild(self._source_classes, self.sources)
        conn_ids = {source.conn_id for source in sources.values() if source.conn_id}
        config = CheckpointConfig.from_json(self.checkpointing)
        if not all(isinstance(value, str) for value in self.spark_conf.values()):
            raise ConfigurationError(
                "spark_conf has values that are not text.", remedy='write {"spark.ui.enabled": "false"}, for example.'
            )
        return StageRequest(
            pipeline=self.pipeline,
            run=run.run,
            epoch=epoch,
            attempt=attempt,
            base=pipeline.base,
            base_is_clean=pipeline.base_is_clean,
            last_published=pipeline.last_published,
            store_url=store_url(self.store),
            wal_root=self.wal_root or settings.wal_root(),
            job=self.job,
            job_arguments=self.job_args,
            sources={name: source.to_json() for name, source in sources.items()},
            connections={conn_id: task_connections(conn_id) for conn_id in sorted(conn_ids)},
            sinks=tuple(name for name in self.sinks if name not in self.optional_sinks),
            optional_sinks=tuple(self.optional_sinks),
            packages=tuple(self.packages),
            checkpoint_timeout=config.timeout.total_seconds(),
            master=spark_master(self.spark_master or settings.spark_master()),
            conf={**settings.spark_conf(), **self.spark_conf},
            jars=listed(self.jars if self.jars is not None else settings.spark_jars()),
            python_path=_python_path(),
            class_archives=settings.class_archives(),
            keep_session=settings.keep_session() if self.keep_session is None else self.keep_session,
        )

    def _remember(self, driver: Driver) -> None:
        self._driver = driver

    def on_kill(self) -> None:
        """Ends Spark when the task is ended; what was not published is computed again."""
        if self._driver is not None:
            self._driver.kill()


def _python_path() -> tuple[str, ...]:
    """What is on this process's path besides the interpreter's own folders.

    The job usually lies beside the DAG, in a folder that Airflow has put there.
    """
    own = (sys.prefix, sys.base_prefix, sys.exec_prefix)
    return tuple(path for path in sys.path if path and not path.startswith(own))
