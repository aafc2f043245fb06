"""`CheckpointedPipeline`: a whole pipeline as a task group, from recover to confirmed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from airflow.sdk import TaskGroup, TriggerRule

from airflow_ft.assets import declared_asset
from airflow_ft.core.arguments import check_texts, check_type
from airflow_ft.core.config import CheckpointConfig
from airflow_ft.core.errors import ConfigurationError
from airflow_ft.core.planning import plan_delivery
from airflow_ft.operators.arguments import check_places, check_sinks, check_sources, check_switches
from airflow_ft.operators.commit import CommitOperator
from airflow_ft.operators.confirm import ConfirmOperator
from airflow_ft.operators.place import declared_name
from airflow_ft.operators.prepare import PrepareOperator
from airflow_ft.operators.recover import RecoverOperator
from airflow_ft.operators.stage import StageOperator
from airflow_ft.templates import declared, is_template, without_jinja

if TYPE_CHECKING:
    from airflow.sdk import Asset, AssetAlias
    from airflow.sdk.definitions._internal.node import DAGNode

    from airflow_ft.core.ports import SinkSpec
    from airflow_ft.sources import Source

# A killed task is the normal case that this package is for, so it is tried again at once and more than once.
DEFAULT_ARGS: Mapping[str, Any] = {"retries": 3, "retry_delay": timedelta(seconds=15)}


class CheckpointedPipeline(TaskGroup):
    """Runs a PySpark job and delivers its rows exactly once into every sink, all sinks or none.

    The tasks are `recover`, `stage`, `prepare.<connection>`, `commit.<connection>` and `confirmed`; whatever stands
    behind the group in the DAG starts when `confirmed` has succeeded, so on proven data only.

    Args:
        pipeline: its name, the stable identity of the sources' positions and of the sinks' ledgers: 1 to 63 of the
            characters a-z, 0-9, '_' and '-'. Renaming it begins another pipeline. It may contain Jinja. In a mapped
            task group each map index needs a pipeline of its own, by Jinja here or by `suffix`.
        suffix: what follows the name, after a '-': an argument of the mapped task group around it, or Jinja.
        job: "package.module" or "package.module:Object" with `transform(spark, sources)` and optionally
            `split(batch)`; imported by Spark's driver, never by the DAG.
        sources: what the job reads, by the names it uses (`KafkaSource`, `FileSource`).
        sinks: what its rows go into, by the names it uses (`MySqlSink`, `KafkaSink`). Sinks of one connection are
            one participant, and become visible together.
        checkpointing: time-out, retention and size of deliveries.
        optional_sinks: names of sinks that `split` may leave out, such as a dead-letter topic.
        commit_point: the connection whose own transaction decides; None: the first ATOMIC one declared, else the
            decision log.
        store: decision log: a URL or the id of a PostgreSQL connection; None: `[airflow_ft] store`.
        wal_root: folder (path or URI) of the write-ahead log; None: `[airflow_ft] wal_root`.
        spark_master, spark_conf, jars: for spark-submit; they go before `[airflow_ft] spark_master`, `spark_conf`
            (setting by setting) and `spark_jars`; a master may be "conn:<id>" of a Spark connection. packages: Maven
            coordinates that Spark fetches besides.
        job_args: plain data for the job, templated.
        keep_session: for how long Spark waits for the next run of this pipeline on the same machine, which then
            needs no start of a JVM: a small run takes a fraction of the time. It holds the driver's memory meanwhile;
            zero: it ends with its run. None: `[airflow_ft] keep_session`.
        overlap: deliver what is staged while the stage goes on, in its process; the tasks behind it deliver the rest.
            A run of many checkpoints is done sooner, and confirms the first ones long before its end. One difference:
            refused rows end the stage.
        emit_asset: update the asset `airflow-ft://<pipeline>` when checkpoints are confirmed.
        group_id: of the task group; None: the pipeline's name, without what is Jinja in it.
        default_args: for the tasks; they go before the DAG's, which go before 3 retries after 15 seconds.

    All text in `sources`, `sinks`, `job`, `job_args`, `spark_*`, `store` and `wal_root` may contain Jinja, except
    connection ids of sinks: the tasks are named by them.

    Raises:
        ConfigurationError: when the DAG is parsed, for whatever cannot work.
    """

    pipeline: str
    commit_order: tuple[str, ...]
    """Connection ids in the order in which they commit."""
    confirmed: ConfirmOperator
    """The last task."""
    output: Any
    """Its result, for tasks that want to know: {"numbers": [...], "latest": number, "rows": count,
        "set_aside": rows by sink that a person has set aside}."""
    asset: Asset | AssetAlias
    """What other DAGs can be scheduled by: an alias of several assets when the name is known only by rendering."""

    def __init__(
        self,
        *,
        pipeline: str,
        suffix: Any = None,
        job: str,
        sources: Mapping[str, Source],
        sinks: Mapping[str, SinkSpec],
        checkpointing: CheckpointConfig | None = None,
        optional_sinks: Sequence[str] = (),
        commit_point: str | None = None,
        store: str | None = None,
        wal_root: str | None = None,
        spark_master: str | None = None,
        spark_conf: Mapping[str, str] | None = None,
        jars: str | Sequence[str] | None = None,
        packages: Sequence[str] = (),
        job_args: Mapping[str, Any] | None = None,
        keep_session: timedelta | None = None,
        overlap: bool = False,
        emit_asset: bool = True,
        group_id: str | None = None,
        default_args: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        pipeline, suffix = declared_name(pipeline, suffix)
        check_sources(sources)
        check_sinks(sinks)
        check_type("checkpointing", checkpointing, CheckpointConfig, "give CheckpointConfig(...).", optional=True)
        check_texts("optional_sinks", optional_sinks)
        check_places(commit_point=commit_point, group_id=group_id)
        check_switches(overlap=overlap, emit_asset=emit_asset)
        check_type("default_args", default_args, Mapping, 'give {"retries": 5}, for example.', optional=True)
        if unknown := sorted(set(optional_sinks) - set(sinks)):
            raise ConfigurationError(f"optional_sinks names no sink: {', '.join(unknown)}.", pipeline=pipeline)
        for name, sink in sinks.items():
            _check_participant(name, sink.conn_id)
        delivery = plan_delivery(declared(sinks), commit_point)
        own: Any = dict(default_args or {})
        super().__init__(group_id=group_id or _group_id(pipeline), default_args=own, **kwargs)
        # TaskGroup has merged what its parents say; Airflow merges the DAG's own in each task, so ours go below those.
        of_dag = dict(self.dag.default_args or {})
        self.default_args = {**DEFAULT_ARGS, **of_dag, **self.default_args}
        config = checkpointing or CheckpointConfig()
        common: dict[str, Any] = {"pipeline": pipeline, "suffix": suffix, "store": store}
        with self:
            recover = RecoverOperator(task_id="recover", emit_asset=emit_asset, **common)
            stage = StageOperator(
                task_id="stage",
                job=job,
                sources=sources,
                sinks=sinks,
                optional_sinks=optional_sinks,
                checkpointing=config,
                wal_root=wal_root,
                spark_master=spark_master,
                spark_conf=spark_conf,
                jars=jars,
                packages=packages,
                job_args=job_args,
                keep_session=keep_session,
                overlap=overlap,
                commit_point=commit_point,
                **common,
            )
            recover >> stage
            with TaskGroup(group_id="prepare"):
                prepared: list[DAGNode] = [
                    PrepareOperator(
                        task_id=name,
                        participant=name,
                        sinks=sinks,
                        commit_point=commit_point,
                        checkpointing=config,
                        **common,
                    )
                    for name in delivery.names
                ]
            # A commit task runs beside failed siblings too: what is decided is delivered (I3, I7).
            with TaskGroup(group_id="commit"):
                commits = [
                    CommitOperator(task_id=name, participant=name, trigger_rule=TriggerRule.ALL_DONE, **common)
                    for name in delivery.names
                ]
            confirmed = ConfirmOperator(
                task_id="confirmed",
                sources=sources,
                checkpointing=config,
                wal_root=wal_root,
                emit_asset=emit_asset,
                trigger_rule=TriggerRule.ALL_DONE,
                **common,
            )
            for task in prepared:
                stage >> task >> commits[0]
            for first, second in pairwise(commits):
                first >> second
            commits[-1] >> confirmed
        self.pipeline = pipeline
        self.commit_order = delivery.names
        self.confirmed = confirmed
        self.output = confirmed.output
        self.asset = declared_asset(pipeline, suffix)


def _group_id(pipeline: str) -> str:
    return without_jinja(pipeline, "").strip("-_") or "pipeline"


def _check_participant(sink: str, conn_id: str) -> None:
    if is_template(conn_id):
        raise ConfigurationError(
            f"its connection id {conn_id!r} contains Jinja.",
            remedy="write the id itself, since tasks are named by it; use the operators one by one where it must vary.",
            sink=sink,
        )
    if not conn_id or not all(c.isalnum() or c in "_-." for c in conn_id) or not conn_id.isascii():
        raise ConfigurationError(
            f"its connection id {conn_id!r} cannot be part of a task's id.",
            remedy="use a connection whose id has letters, digits, '_', '-' and '.' only.",
            sink=sink,
        )
