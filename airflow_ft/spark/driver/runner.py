"""Run the job in the driver as a streaming query, and stage and publish each micro-batch.

What if the driver dies ...

- while a batch is computed, written or sealed: its number is never published, its folder is waste, the batch is
  computed again from the last published state;
- after Spark's commit, before publication: the same. The next attempt cuts its copy of Spark's location back to the
  last published batch. (A segment is sealed while Spark commits, so either may come first.)
- during the publication's write: published or not, as the store says when the next owner reads it.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_ft.clients.buckets import BucketPlace, BucketSettings, is_bucket, learn, settings_of
from airflow_ft.protocol.errors import JobError
from airflow_ft.protocol.noting import warn
from airflow_ft.protocol.numbers import count_text
from airflow_ft.protocol.warning import PipelineWarning
from airflow_ft.spark.driver.columns import SinkColumns
from airflow_ft.spark.driver.ending import Ending
from airflow_ft.spark.driver.inputs import Sources, unfrozen_sources
from airflow_ft.spark.driver.job import Job
from airflow_ft.spark.driver.job_restarts import JobRestarts, continuing, tidy_up
from airflow_ft.spark.driver.job_run import JobRun
from airflow_ft.spark.driver.listing import check_listings, static_listings
from airflow_ft.spark.driver.local_files import spare_processes
from airflow_ft.spark.driver.publisher import PublishedCounts, Publisher
from airflow_ft.spark.driver.query_run import QueryRun
from airflow_ft.spark.driver.requests import Requests
from airflow_ft.spark.driver.session import leave_session, start_session
from airflow_ft.spark.driver.speech import speak
from airflow_ft.spark.driver.staging import fix_conf, write_batch
from airflow_ft.spark.driver.stopper import await_query_end
from airflow_ft.spark.fitting import ask
from airflow_ft.spark.private import PROPERTIES, write
from airflow_ft.spark.process import die_with_parent
from airflow_ft.spark.request import StageRequest, StageResult
from airflow_ft.spark.session.s3a import reach
from airflow_ft.spark.session.session_leases import await_end
from airflow_ft.spark.session.submit import REQUEST, RESULT
from airflow_ft.spark.state.locations import location_root
from airflow_ft.store import open_store
from airflow_ft.store.decision_log import DecisionLog
from airflow_ft.wal import owners
from airflow_ft.wal.roots import claim

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("airflow_ft.spark")


def main(folder: str, session: int | None = None) -> int:
    """Runs the request that lies in `folder` and leaves a report there; the exit code of the process.

    `session`: the open file that leads to a JVM which is kept; None: spark-submit has started one for this process.
    """
    die_with_parent()
    speak(sys.stdout)
    private = Path(folder)
    request = StageRequest.from_json(json.loads((private / REQUEST).read_text(encoding="utf-8")))
    for each in request.buckets:
        learn(BucketSettings(**each))
    for name in (REQUEST, PROPERTIES):  # they hold credentials, and have been read
        (private / name).unlink(missing_ok=True)
    attempt = Attempt(request, private / RESULT, session)
    try:
        result = attempt.run()
    except BaseException as error:
        if session is not None:
            await_end()
        attempt.report(error)
        attempt.leave(failed=True)
        return 1
    log_result(result)
    write(private / RESULT, json.dumps({"result": result.to_json()}))
    return 0 if attempt.leave() else 1


def log_result(result: StageResult) -> None:
    """Say what was staged."""
    if count := result.published.count:
        log.info("staged %s with %s", count_text(count, "checkpoint"), count_text(sum(result.rows.values()), "row"))
    else:
        log.info("nothing new to stage")


class Attempt:
    """The attempts of one driver, in this process: the first one, and the restarts after an error."""

    def __init__(
        self,
        request: StageRequest,
        report: Path,
        session: int | None,
        *,
        start: Callable[[], SparkSession] | None = None,
    ) -> None:
        """`start` returns the Spark session; None: this process has one of its own."""
        self._request = continuing(request, request.base)
        self._start = start
        self._folder, self._kept = report.parent, session
        self._ending = Ending(self._request, report)
        self._requests = Requests(self._folder)
        self._counts = PublishedCounts()
        self._spark: SparkSession | None = None

    def run(self) -> StageResult:
        """Stage until nothing is left to read, a stream until it is stopped; raises the error that ended it."""
        with closing(open_store(self._request.store_url)) as store:
            spark = self._spark = self._session()
            restarts = JobRestarts(self._request, self._requests, self._counts, self._ending)
            while True:
                try:
                    return self._stage(store, spark, expects_few=restarts.expects_few)
                except Exception as error:
                    again = restarts.after(store, spark, self._request, error)
                    if again is None:
                        return self._counts.result(None, complete=False)
                self._request = self._ending.request = again
                await_query_end(spark, again.pipeline)
                tidy_up(store, spark, again)

    def leave(self, *, failed: bool = False) -> bool:
        """End Spark; see `leave_session`."""
        return leave_session(self._spark, self._kept, failed=failed)

    def report(self, error: BaseException) -> None:
        """Leaves the reason of the end for the launcher."""
        self._ending.report(error)

    def failed(self, error: BaseException) -> None:
        """Remember why the attempt is ended from outside; the first reason counts."""
        self._ending.failed(error)

    def _session(self) -> SparkSession:
        spark = self._start() if self._start is not None else start_session(self._request.master, self._kept)
        if is_bucket(self._request.wal_root):
            place = BucketPlace.of(self._request.wal_root)
            reach(spark, place, settings_of(place))
        return spark

    def _stage(self, store: DecisionLog, spark: SparkSession, *, expects_few: bool) -> StageResult:
        request = self._request
        claim(store, request.wal_root)
        warn_store = partial(warn, store, request.pipeline)
        if shared_with := owners.register(store, request.wal_root, request.pipeline):
            warn_store(PipelineWarning("FOLDER_SHARED", "", shared_with, owners.REMEDY))
        if (base := request.base or request.former_base) is not None:  # it may lie where the log was before
            claim(store, location_root(base.location))
        job = Job(request.job, request.job_arguments, request.dead_letters.sink if request.dead_letters else "")
        sources = Sources(spark, request.sources, request.connections, begins=unfrozen_sources(request))
        frame = job.transform(spark, sources)
        if frame.isStreaming:
            self._counts.output_mode = job.output_mode
        await_answer = ask(self._folder, request, job, spark, frame, warn_store)
        fix_conf(spark, "spark.sql.")
        spare_processes(frame.sparkSession, request.wal_root)
        run = JobRun(
            store=store,
            request=request,
            job=job,
            frame=frame,
            sources=sources,
            await_answer=await_answer,
            ending=self._ending,
            requests=self._requests,
            counts=self._counts,
            expects_few=expects_few,
        )
        if frame.isStreaming:
            return QueryRun(run).run()
        if request.streaming:
            raise JobError(
                f"job {request.job_name} returns a DataFrame that does not stream, but the pipeline has"
                " streaming=True.",
                code="job_result_invalid",
                remedy='Begin `transform` with a source (sources["orders"]), or remove streaming=True.',
                job=request.job_name,
            )
        return run_static(run)


def run_static(run: JobRun) -> StageResult:
    """A plain batch job: one checkpoint a run, and none when this run has published it before."""
    store, request, frame = run.store, run.request, run.frame
    if published := store.last_published(request.pipeline, request.run):
        log.info("checkpoint %d already has the rows of this run: nothing to compute", published)
        return StageResult((), {}, None, complete=False)  # read when that began
    with run.stopping() as stop:
        publisher = Publisher(
            store,
            request,
            committed=lambda _: True,
            durable=lambda: None,
            position=lambda _: None,
            stop=stop,
            counts=run.counts,
            application=frame.sparkSession.sparkContext.applicationId,
        )
        try:
            run.await_answer()
            run.ending.begin()
            number = publisher.begin(0)
            made_of = SinkColumns(frame, run.sources.source_of)
            written = write_batch(request, run.job, frame, 0, number, {}, made_of=made_of)
            check_listings([*static_listings(frame), *run.sources.listings], request.pipeline)
            publisher.written(written.seal, {})
            publisher.settle()
        except BaseException as error:
            publisher.close(run.ending.cause(error))
            raise
        publisher.close()
    return run.counts.result(None)
