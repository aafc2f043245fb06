"""A job whose result does not stream: its rows are one checkpoint."""

from __future__ import annotations

import logging

from airflow_ft.spark.driver.columns import SinkColumns
from airflow_ft.spark.driver.job_run import JobRun
from airflow_ft.spark.driver.listing import check_listings, static_listings
from airflow_ft.spark.driver.publisher import Publisher
from airflow_ft.spark.driver.staging import write_batch
from airflow_ft.spark.request import StageResult

log = logging.getLogger("airflow_ft.spark")


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
