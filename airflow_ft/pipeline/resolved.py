"""`resolve`: the author's `PipelineSpec`, once rendered, with the provider's configuration for what it leaves open.

Each task, command and program resolves its specification once, at its door. Everything below the door takes a value of
this module, or the few fields that it needs, so nothing is optional there and nothing is resolved again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_ft.clients.bucket_limits import check_bucket_spark
from airflow_ft.pipeline import settings
from airflow_ft.protocol.dead_letters import DeadLetters
from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.protocol.inline_job import InlineJob
from airflow_ft.protocol.planning import plan_delivery
from airflow_ft.spark.request import listed
from airflow_ft.spark.session.kubernetes import is_kubernetes

if TYPE_CHECKING:
    from airflow_ft.pipeline.spec import PipelineSpec
    from airflow_ft.protocol.config import CheckpointConfig
    from airflow_ft.protocol.from_savepoint import FromSavepoint
    from airflow_ft.protocol.planning import Delivery
    from airflow_ft.protocol.restart import RestartStrategy
    from airflow_ft.protocol.sink_spec import SinkSpec
    from airflow_ft.sources import Source


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryContext:
    """The inputs of a delivery besides its plan: the folder of the write-ahead log, and the settings of checkpoints."""

    wal_root: str
    checkpointing: CheckpointConfig

    def plan(self, sinks: Mapping[str, SinkSpec], commit_point: str | None) -> Delivery:
        """Return who takes part in a delivery, and who decides. Raises what `plan_delivery` raises."""
        return plan_delivery(sinks, commit_point, self.checkpointing.mode)


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkSettings:
    """Settings for the start of Spark.

    master: text, or "conn:<id>" of a Spark connection; "": the launcher chooses. configured: names in `conf` that only
    the provider's configuration has. jars: files and folders. packages: Maven coordinates.
    """

    master: str
    conf: Mapping[str, str] = field(repr=False)
    configured: frozenset[str]
    jars: tuple[str, ...]
    packages: tuple[str, ...]
    keep_session: timedelta
    standby: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedPipeline:
    """A pipeline as its stage runs it: rendered, checked and complete.

    job: "" if another program computes the rows. required_sinks, optional_sinks: names of sinks that the job must
    return, and may return.

    restart: a stream's strategy; None: the pipeline is scheduled. store: as the author writes it; None: `[airflow_ft]
    store`. savepoint: what the run starts from; None: the pipeline's own state. stored: what the decision log keeps of
    it.
    """

    pipeline: str
    job: str | InlineJob
    job_args: Mapping[str, Any] = field(repr=False)
    sources: Mapping[str, Source]
    required_sinks: tuple[str, ...]
    optional_sinks: tuple[str, ...]
    dead_letters: DeadLetters | None
    plan: Delivery
    checkpointing: CheckpointConfig
    restart: RestartStrategy | None
    store: str | None
    wal_root: str
    spark: SparkSettings
    overlap: bool
    savepoint: FromSavepoint | None
    stored: Mapping[str, Any] = field(repr=False)

    @property
    def streaming(self) -> bool:
        """Return whether the pipeline is a stream."""
        return self.restart is not None


def resolve(spec: PipelineSpec, declared: PipelineSpec | None = None) -> ResolvedPipeline:
    """Return the pipeline of a rendered specification, complete.

    `declared`: the specification before rendering, for what may hold secrets in the decision log; None: `spec`.

    Raises:
        ConfigurationError: the specification and the provider's configuration do not go together.
    """
    found = _with_log(spec)
    spark, wal_root = spark_settings(spec), found.wal_root
    assert isinstance(wal_root, str)
    master = spark.master
    check_bucket_spark(wal_root, "" if master.startswith("conn:") else master, spark.conf)
    job = "" if spec.is_external else spec.job
    assert isinstance(job, str | InlineJob)
    return ResolvedPipeline(
        pipeline=spec.pipeline,
        job=job,
        job_args=spec.job_args,
        sources=spec.sources,
        required_sinks=tuple(name for name in spec.sinks if name not in spec.optional),
        optional_sinks=tuple(name for name in spec.sinks if name in spec.optional),
        dead_letters=DeadLetters.of(spec.dead_letters),
        plan=found.delivery,
        checkpointing=found.config,
        restart=spec.strategy if spec.streaming else None,
        store=spec.store,
        wal_root=wal_root,
        spark=spark,
        overlap=spec.overlap,
        savepoint=spec.savepoint,
        stored=_stored(spec, found, spark, declared or spec),
    )


def delivery_context(spec: PipelineSpec) -> DeliveryContext:
    """Return what a task of delivery needs, which renders only a part of its specification.

    Raises:
        ConfigurationError: a sink cannot hold its rows for as long as a checkpoint may take.
    """
    found = _with_log(spec)
    return DeliveryContext(wal_root=wal_root_of(found), checkpointing=found.config)


def _with_log(spec: PipelineSpec) -> PipelineSpec:
    """Return it with the configuration's checkpointing and write-ahead log, checked again."""
    return replace(spec, checkpointing=checkpointing_of(spec), wal_root=wal_root_of(spec))


def wal_root_of(spec: PipelineSpec) -> str:
    """Return the folder of its write-ahead log."""
    return spec.wal_root or settings.wal_root()


def spark_settings(spec: PipelineSpec) -> SparkSettings:
    """Return how Spark is started for it."""
    conf = settings.spark_conf()
    master = spec.spark_master or settings.spark_master()
    keep_session = spec.keep_session
    if spec.standby or (keep_session is None and is_kubernetes(master)):
        keep_session = timedelta(0)  # also if [airflow_ft] keep_session is set
    return SparkSettings(
        master=master,
        conf={**conf, **spec.spark_conf},
        configured=frozenset(conf.keys() - spec.spark_conf.keys()),
        jars=listed(settings.spark_jars() if spec.jars is None else spec.jars),
        packages=tuple(spec.packages),
        keep_session=timedelta(seconds=settings.keep_session()) if keep_session is None else keep_session,
        standby=spec.standby,
    )


def checkpointing_of(spec: PipelineSpec) -> CheckpointConfig:
    """The settings of its checkpoints, with `[airflow_ft] checkpointing` for what it leaves open.

    ConfigurationError, which names what the configuration says: the two do not go together.
    """
    defaults = settings.checkpointing()
    defaults = defaults.of_streams() if spec.streaming else defaults.of_scheduled()
    try:
        return spec.config.with_defaults(defaults)
    except ConfigurationError as error:
        said = {name: value for name, value in defaults.to_json().items() if name not in spec.config.given}
        raise ConfigurationError(
            error.what,
            code=error.code,
            remedy=f"{error.remedy} Or change [{settings.SECTION}] checkpointing, which is {json.dumps(said)}.",
            **{**error.fields, "configured": said},
        ) from None


def _stored(spec: PipelineSpec, found: PipelineSpec, spark: SparkSettings, declared: PipelineSpec) -> dict[str, Any]:
    """Return what the decision log keeps of it: of arguments and settings that may hold secrets what the author says.

    So they are not rendered, and of the provider's settings there are the names.
    """
    whole, filled = found, ["wal_root"]
    if not spec.is_external:
        jars = settings.spark_jars() if spec.jars is None else spec.jars
        conf = {**dict.fromkeys(settings.spark_conf(), f"[{settings.SECTION}] spark_conf"), **declared.spark_conf}
        whole = replace(
            whole,
            job_args=declared.job_args,
            spark_master=spark.master,
            spark_conf=conf,
            jars=jars,
            keep_session=spark.keep_session,
        )
        filled += ["spark_master", "jars", "keep_session"]
    configured = (
        *(f"checkpointing.{name}" for name in found.config.given - spec.config.given),
        *(f"spark_conf.{name}" for name in spark.configured if not spec.is_external),
        *(name for name in filled if getattr(whole, name) != getattr(spec, name)),
    )
    whole = replace(whole, configured=tuple(sorted({*spec.configured, *configured})))
    return whole.to_json()
