"""`QueryRun`: a job whose result streams, as queries of one attempt until everything is read or it is stopped."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

from airflow_ft.jobs.uids import plan_of
from airflow_ft.protocol.errors import AirflowFtError, ConfigurationError
from airflow_ft.protocol.noting import warn
from airflow_ft.protocol.numbers import count_text
from airflow_ft.protocol.reasons import WaitReason
from airflow_ft.sources import KafkaSource
from airflow_ft.spark.driver.capacity import QueueIsFull
from airflow_ft.spark.driver.file_types import check_file_types
from airflow_ft.spark.driver.gauges import gauges_of
from airflow_ft.spark.driver.inputs import (
    declared_source,
    refuse_unfit,
    source_order,
    source_places,
    sources_by_place,
    sources_to_freeze,
)
from airflow_ft.spark.driver.job_run import JobRun
from airflow_ft.spark.driver.kafka_admin import topic_admins
from airflow_ft.spark.driver.lag import LagWatch
from airflow_ft.spark.driver.listing import Listing, check_listings
from airflow_ft.spark.driver.opening import JobPlan, open_attempt
from airflow_ft.spark.driver.plan_meaning import memory_of
from airflow_ft.spark.driver.planned import batch_listings
from airflow_ft.spark.driver.query import Query
from airflow_ft.spark.driver.topics import Topics
from airflow_ft.spark.driver.types import check_types
from airflow_ft.spark.request import StageResult
from airflow_ft.spark.state.beginnings import Beginnings
from airflow_ft.spark.state.locations import SparkLocation
from airflow_ft.spark.state.meaning import warn_of_later_spark
from airflow_ft.spark.state.settings import log_changed_settings, remember_given
from airflow_ft.spark.state.source_changes import SourceChange, source_change
from airflow_ft.wal.filesystem import filesystem
from airflow_ft.wal.roots import require

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_CHANGELOG = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"

log = logging.getLogger("airflow_ft.spark")


class QueryRun:
    """The queries of one attempt, one after the other in one location."""

    def __init__(self, run: JobRun) -> None:
        self._run = run

    def run(self) -> StageResult:
        """Stage until everything is read, a stream until it is stopped; raises the error that ended it."""
        request, job, frame, sources = self._run.request, self._run.job, self._run.frame, self._run.sources
        if not job.has_split:
            check_types(frame.schema, request.sinks[0])  # before anything is read
        refuse_unfit(frame, request.checkpointing.mode)
        if (base := request.base) is not None:
            here = frame.sparkSession.version
            warn_of_later_spark(SparkLocation("", "", base.location, base.batch, ""), here)
        memory = memory_of(frame, sources.source_of, request.job_arguments)
        plan = JobPlan(source_order(frame), source_places(frame), plan_of(frame), memory)
        declared = [(name, declared_source(request, name)) for name in plan.sources]
        kafka = {i: (name, source) for i, (name, source) in enumerate(declared) if isinstance(source, KafkaSource)}
        admins = topic_admins(frame.sparkSession, kafka, request.connections)
        with closing(Topics(kafka, admins, sources.started)) as topics:
            return self.compute(plan, topics)

    def compute(self, plan: JobPlan, topics: Topics) -> StageResult:
        """Run the query of this plan in the attempt's location."""
        run, requests, ending = self._run, self._run.requests, self._run.ending
        store, request, job, frame = run.store, run.request, run.job, run.frame
        change = None if request.starts_from_scratch else source_change(request.pipeline, request.base, plan.sources)
        begins = sources_to_freeze(request, plan.sources, change)
        bear = partial(compute_planned, frame, job.output_mode, static=run.sources.listings)
        frozen = Beginnings.of(request)
        location = self.open_location(plan, change, frozen, begins, topics, bear)
        require(request.wal_root)  # what was read of the base, or not found there, was read from the right disk
        remember_given(location.uri, request.conf)
        log_changed_settings(request.base, frame.sparkSession.conf.get)
        declared = sources_by_place(request, plan.sources)
        with run.stopping() as stop:
            query = Query(
                run,
                location,
                declared,
                topics,
                stop=stop,
                freeze=partial(frozen.freeze, location, begins, topics.check_start) if begins else None,
            )
            publisher = query.publisher
            spark = frame.sparkSession
            lag = LagWatch(
                store,
                request,
                lambda: gauges_of(spark, location, declared, topics, partial(warn, store, request.pipeline)),
                lambda: publisher.last_read,
            )
            try:
                run.await_answer()
                ending.begin()
                with lag.watching():
                    query.drain(requests.is_to_end)
                    while request.streaming and not requests.is_to_end():
                        query.follow(requests.is_to_end)
                        if not requests.is_to_end():
                            query.drain(requests.is_to_end)
                    query.finish()
                    if requests.is_to_drain() or (request.checkpointing.drain and not request.streaming):
                        query.emit_open()
            except BaseException as error:
                if ending.first is None and (reason := topics.explain()) is not None:
                    ending.failed(reason)  # Spark has met the new topic before we have
                publisher.close(ending.cause(error))
                if isinstance(ending.first, QueueIsFull) and publisher.failure is None:
                    log.warning(
                        "the queue for delivery has %s (%s), so this run ends; the next run reads the rest",
                        count_text(ending.first.waiting, "checkpoint"),
                        WaitReason.TOO_MANY_QUEUED,
                    )
                    # The batch under way makes this end an unclean one, and its input waits for the next run.
                    return query.result(complete=False)
                raise
            publisher.close()
            if publisher.failure is not None:
                raise publisher.failure
            return query.result(complete=not request.streaming)

    def open_location(
        self,
        plan: JobPlan,
        change: SourceChange | None,
        frozen: Beginnings,
        begins: Mapping[int, str],
        topics: Topics,
        bear: Callable[..., None],
    ) -> SparkLocation:
        """See `open_attempt`."""
        run = self._run
        return open_attempt(run.request, plan, change, frozen, begins, topics, bear, run.ending.begin)


def compute_planned(
    frame: DataFrame,
    output_mode: str,
    location: SparkLocation,
    *,
    whole: bool = False,
    static: Sequence[Listing] = (),
) -> None:
    """Has Spark compute the micro-batch that lies planned in a location, and nothing after it; its rows are dropped.

    `whole`: it reads nothing, and its state is written whole, not as changes. `static`: what the job reads beside
    its streams. Files with two names were refused when the batch was delivered.

    Raises:
        ConfigurationError: files of the micro-batch are gone or have changed.
    """
    spark = frame.sparkSession
    conf = spark.conf
    failed: list[AirflowFtError] = []  # Spark wraps what a micro-batch raises
    before = conf.get(_CHANGELOG)
    if whole:
        conf.set(_CHANGELOG, "false")

    def compute(batch: DataFrame, batch_id: int) -> None:
        try:
            query = next(each for each in spark.streams.active if each.name == location.uri)
            read = [] if whole else batch_listings(spark, location, batch_id, query)
            if read:
                check_file_types(spark, query._jsq.streamingQuery().lastExecution().logical(), location.pipeline)
            batch.write.format("noop").mode("overwrite").save()
            check_listings([*read, *static], location.pipeline)
        except AirflowFtError as error:
            failed.append(error)
            raise

    query = (
        frame.writeStream.foreachBatch(compute)
        .outputMode(output_mode)
        .queryName(location.uri)
        .option("checkpointLocation", filesystem(location.uri).hadoop_path(location.uri))
        .trigger(once=True)
        .start()
    )
    try:
        query.awaitTermination()
    except Exception:
        if not failed:
            raise
        error = failed[0]
        if error.code != "file_changed":
            raise error from None
        raise ConfigurationError(
            f"`--later continue` cannot rebuild the state from files that are gone or have changed: {error.what}",
            code="rebuild_impossible",
            pipeline=location.pipeline,
            remedy="Put the files back as they were, and trigger a new run. Or restore the savepoint again with"
            " `--later write-again`, or choose another savepoint.",
            paths=error.fields.get("paths", []),
        ) from None
    finally:
        conf.set(_CHANGELOG, str(before))
