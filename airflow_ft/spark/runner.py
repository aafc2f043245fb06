"""Inside the driver: runs the job as a streaming query, and stages and publishes each micro-batch.

What if the driver dies ...
- while a batch is computed, written or sealed: its number is never published, its folder is waste, the batch is
  computed again from the last published state;
- after Spark's commit, before publication: the same, since the next attempt cuts its copy of Spark's location back
  to the last published batch (a segment is sealed while Spark commits, so either may come first);
- during the publication's write: published or not, as the store says when the next owner reads it.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_ft.core.errors import AirflowFtError
from airflow_ft.core.model import AfterAbort
from airflow_ft.core.ports import Store
from airflow_ft.sources import KafkaSource, Source, source_from_json
from airflow_ft.spark.failures import as_error
from airflow_ft.spark.fitting import ask
from airflow_ft.spark.inputs import Sources, named_positions, source_order
from airflow_ft.spark.job import Job
from airflow_ft.spark.kafka_admin import topic_admins
from airflow_ft.spark.listing import Listing, batch_listings, check_listings, static_listings
from airflow_ft.spark.local_files import spare_processes
from airflow_ft.spark.locations import (
    SparkLocation,
    check_sources,
    freeze_origin,
    has_origin,
    open_location,
    restore_order,
    restore_origin,
)
from airflow_ft.spark.private import PROPERTIES, write
from airflow_ft.spark.process import die_with_parent
from airflow_ft.spark.publisher import Publisher
from airflow_ft.spark.reports import describe_error
from airflow_ft.spark.request import StageRequest, StageResult
from airflow_ft.spark.room import QueueIsFull, Room
from airflow_ft.spark.session import attach, await_end, detach
from airflow_ft.spark.staging import fix_conf, write_batch
from airflow_ft.spark.standing import Offsets, leave_out, mend_origin, record_ids, recorded_ids, standing
from airflow_ft.spark.state_settings import remember_given, tell_changed
from airflow_ft.spark.submit import REQUEST, RESULT
from airflow_ft.spark.topics import Topics
from airflow_ft.spark.types import check_types
from airflow_ft.store import open_store
from airflow_ft.wal.filesystem import Synced, filesystem

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# How long a query may take to stop before the process ends without it, in seconds: a job may hang in its own code.
STOP_SECONDS = 15.0

log = logging.getLogger("airflow_ft.spark")


def main(folder: str, session: int | None = None) -> int:
    """Runs the request that lies in `folder` and leaves a report there; the exit code of the process.

    `session`: the open file that leads to a JVM which is kept; None: spark-submit has started one for this process.
    """
    die_with_parent()
    logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(message)s")
    logging.getLogger("py4j").setLevel(logging.WARNING)
    private = Path(folder)
    request = StageRequest.from_json(json.loads((private / REQUEST).read_text()))
    for name in (REQUEST, PROPERTIES):  # they hold credentials, and have been read
        (private / name).unlink(missing_ok=True)
    attempt = Attempt(request, private / RESULT, session)
    try:
        result = attempt.run()
    except BaseException as error:
        if session is not None:
            await_end()
        attempt.report(error)
        return 1
    write(private / RESULT, json.dumps({"result": result.to_json()}))
    return 0 if attempt.tidy else 1


class Attempt:
    """One attempt, in this process."""

    def __init__(self, request: StageRequest, report: Path, session: int | None) -> None:
        self._request, self._report, self._kept = request, report, session
        self._failed: BaseException | None = None
        self.tidy = True  # whether Spark was left as it has to be for the next run
        self._reported = threading.Lock()

    def run(self) -> StageResult:
        """Stages until nothing is left to read; raises what ended it."""
        with closing(open_store(self._request.store_url)) as store:
            spark = self._session()
            try:
                job = Job(self._request.job, self._request.job_arguments)
                request = self._request
                begins = request.base is None and not has_origin(request.wal_root, request.pipeline, request.sources)
                sources = Sources(spark, self._request.sources, self._request.connections, begins=begins)
                frame = job.transform(spark, sources)
                await_answer = ask(self._report.parent, self._request, job, spark, frame)
                fix_conf(spark, "spark.sql.")
                spare_processes(frame.sparkSession, request.wal_root)
                if frame.isStreaming:
                    return self._run_stream(store, job, frame, sources, await_answer)
                return self._run_static(store, job, frame, sources, await_answer)
            finally:
                self._leave(spark)

    def report(self, error: BaseException) -> None:
        """Leaves the reason of the end for the launcher; the first one counts."""
        if not self._reported.acquire(blocking=False):
            return
        cause = self._failed or error
        known = as_error(cause, self._request.pipeline, self._request.job)
        if not isinstance(cause, AirflowFtError):
            log.error("the job ended by an error", exc_info=cause)
        write(self._report, json.dumps({"error": describe_error(known)}))

    def failed(self, error: BaseException) -> None:
        """Remembers what went wrong first: Spark wraps it beyond recognition."""
        self._failed = self._failed or error

    def _session(self) -> SparkSession:
        from pyspark.sql import SparkSession

        began = time.monotonic()
        spark = SparkSession.builder.getOrCreate() if self._kept is None else attach(self._kept)
        log.info("Spark %s ready after %.1f s", spark.version, time.monotonic() - began)
        return spark

    def _leave(self, spark: SparkSession) -> None:
        try:
            if self._kept is None:
                spark.stop()
            elif sys.exception() is None:  # else the JVM will not be used again, and holds what tells the reason
                detach(spark)
        except Exception as error:  # the JVM may be gone already: what is published is in the store
            self.tidy = self._kept is None
            log.warning("Spark did not stop cleanly: %s", error)

    def _run_stream(
        self, store: Store, job: Job, frame: DataFrame, sources: Sources, await_answer: Callable[[], None]
    ) -> StageResult:
        if not job.has_split:
            check_types(frame.schema, self._request.sinks[0])  # before anything is read
        names = source_order(frame)
        kafka = {i: (n, source) for i, n in enumerate(names) if isinstance(source := self._source(n), KafkaSource)}
        admins = topic_admins(frame.sparkSession, kafka, self._request.connections)
        with closing(Topics(self._request.pipeline, kafka, admins, sources.started)) as topics:
            return self._run_query(store, job, frame, names, topics, sources, await_answer)

    def _source(self, name: str) -> Source | None:
        """None: the job has opened it by itself."""
        declared = self._request.sources.get(name)
        return None if declared is None else source_from_json(declared)

    def _open_location(self, names: list[str], topics: Topics) -> SparkLocation:
        """Where this attempt works, without the positions of topics that are no longer what they were."""
        request = self._request
        before = standing(request.wal_root, request.pipeline, request.base, request.sources)
        void = topics.begin(before)
        location = open_location(
            request.wal_root,
            request.pipeline,
            request.epoch,
            request.attempt,
            request.base,
            request.base_is_clean and not void,  # what others may have to go back to is changed in a copy only
        )
        log.info("Spark's checkpoint location: %s (%s)", location.uri, location.how)
        if request.base is None:
            restore_order(location, request.sources)
        check_sources(location, names)
        if request.base is None:
            mend_origin(request.wal_root, request.pipeline, request.sources, topics.known, void)
            restore_origin(location, request.sources)
            return location
        if void:
            leave_out(location, void)
        ids = topics.ids_of(_by_topic(location.offsets(location.batch)), before.ids)
        if ids != before.ids:
            record_ids(location, location.batch, ids)
        return location

    def _run_query(
        self,
        store: Store,
        job: Job,
        frame: DataFrame,
        names: list[str],
        topics: Topics,
        sources: Sources,
        await_answer: Callable[[], None],
    ) -> StageResult:
        request = self._request
        location = self._open_location(names, topics)
        remember_given(location.uri, request.conf)
        tell_changed(request.base, frame.sparkSession.conf.get)
        durable = _Durable(location, request, topics)
        stopper = _Stopper(self)

        def publishable() -> None:
            durable()
            topics.check()

        publisher = Publisher(
            store,
            request,
            committed=location.is_committed,
            durable=publishable,
            position=location.position,
            stop=stopper,
        )

        room = Room(store, request)

        def on_batch(batch: DataFrame, batch_id: int) -> None:
            try:
                publisher.settle()
                room.take()
                durable.freeze()
                streams = frame.sparkSession.streams
                query = stopper.query or next(each for each in streams.active if each.name == request.pipeline)
                read = [*batch_listings(frame.sparkSession, location, batch_id, query), *sources.listings]
                self._on_batch(job, publisher, location, names, topics, batch, batch_id, read)
            except BaseException as error:
                self.failed(error)
                raise

        try:
            await_answer()
            query = (
                frame.writeStream.foreachBatch(on_batch)
                .outputMode(job.output_mode)
                .queryName(request.pipeline)
                .option("checkpointLocation", filesystem(location.uri).hadoop_path(location.uri))
                .trigger(availableNow=True)
                .start()
            )
            stopper.query = query
            query.awaitTermination()
            publisher.settle()
            durable()
        except BaseException as error:
            publisher.close(f"the attempt ended: {type(error).__name__}")
            if isinstance(self._failed, QueueIsFull) and publisher.failure is None:
                log.warning(
                    "%d checkpoints wait for delivery: no more are staged before; the next run reads what is left",
                    self._failed.waiting,
                )
                # The batch under way makes this end an unclean one, and its input waits for the next run.
                return replace(_result(publisher, None), complete=False)
            if self._failed is None and (reason := topics.explain()) is not None:
                self.failed(reason)  # Spark has met the new topic before we have
            raise
        publisher.close("the attempt ended")
        if publisher.failure is not None:
            raise publisher.failure
        last = location.batch if publisher.last_batch is None else publisher.last_batch
        return _result(publisher, location.position(last) if last >= 0 else None)

    def _on_batch(
        self,
        job: Job,
        publisher: Publisher,
        location: SparkLocation,
        names: list[str],
        topics: Topics,
        batch: DataFrame,
        batch_id: int,
        read: Sequence[Listing],
    ) -> None:
        number = publisher.begin(batch_id)
        end = location.offsets(batch_id)
        ids = topics.reading(_by_topic(end))
        if ids != recorded_ids(replace(location, batch=batch_id)):
            record_ids(location, batch_id, ids)
        positions = named_positions(names, location.offsets(batch_id - 1), end, ids)
        written = write_batch(self._request, job, batch, batch_id, number, positions)
        check_listings(read, self._request.pipeline)
        publisher.written(written.seal, positions)

    def _run_static(
        self, store: Store, job: Job, frame: DataFrame, sources: Sources, await_answer: Callable[[], None]
    ) -> StageResult:
        """A plain batch job: one checkpoint a run, and none when this run has published it before."""
        request = self._request
        for checkpoint in store.run_checkpoints(request.pipeline, request.run):
            if checkpoint.segment is not None and checkpoint.after_abort is not AfterAbort.REWOUND:
                log.info("checkpoint %d holds this run's rows already: nothing is computed", checkpoint.number)
                return StageResult((), {}, None, already_staged=True, complete=False)  # read when that began
        publisher = Publisher(
            store,
            request,
            committed=lambda _: True,
            durable=lambda: None,
            position=lambda _: None,
            stop=_Stopper(self),
        )
        try:
            await_answer()
            number = publisher.begin(0)
            written = write_batch(request, job, frame, 0, number, {})
            check_listings([*static_listings(frame), *sources.listings], request.pipeline)
            publisher.written(written.seal, {})
            publisher.settle()
        finally:
            publisher.close("the attempt ended")
        return _result(publisher, None)


class _Durable:
    """What has to be on disk before a publication: the starting positions (once) and Spark's location."""

    def __init__(self, location: SparkLocation, request: StageRequest, topics: Topics) -> None:
        self._location, self._request, self._topics = location, request, topics
        self._frozen = request.base is not None
        self._synced: Synced = {}

    def freeze(self) -> None:
        """Freezes the starting positions of a pipeline that has published nothing yet: "latest" is one moment."""
        if not self._frozen:
            freeze_origin(self._location, self._request.sources, list(self._topics.known), self._topics.check_start)
            self._frozen = True

    def __call__(self) -> None:
        self.freeze()
        self._location.sync(self._synced)


class _Stopper:
    """Stops the query when a publication failed; ends the process when the query does not stop."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self.query: Any = None

    def __call__(self, error: BaseException) -> None:
        self._attempt.failed(error)
        threading.Thread(target=self._stop, name="stopper", daemon=True).start()

    def _stop(self) -> None:
        deadline = time.monotonic() + STOP_SECONDS
        try:
            if self.query is not None:
                self.query.stop()
        except Exception as error:
            log.warning("the query did not stop: %s", error)
        time.sleep(max(0.0, deadline - time.monotonic()))
        # Still here: the job hangs in its own code. Nothing can be published any more, so nothing is lost.
        self._attempt.report(TimeoutError("the job did not stop"))
        os._exit(1)


def _by_topic(offsets: list[Any]) -> Offsets:
    return {index: found for index, found in enumerate(offsets) if isinstance(found, dict)}


def _result(publisher: Publisher, position: Any) -> StageResult:
    rows: dict[str, int] = {}
    for segment in publisher.published:
        for sink, count in segment.rows.items():
            rows[sink] = rows.get(sink, 0) + count
    return StageResult(tuple(s.number for s in publisher.published), rows, position)
