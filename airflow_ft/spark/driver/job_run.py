"""`JobRun`: one attempt's job with its result, and what its staging needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_ft.spark.driver.ending import Ending
from airflow_ft.spark.driver.inputs import Sources
from airflow_ft.spark.driver.job import Job
from airflow_ft.spark.driver.publisher import Tally
from airflow_ft.spark.driver.requests import Requests
from airflow_ft.spark.driver.stopper import Stopper
from airflow_ft.spark.request import StageRequest
from airflow_ft.store.decision_log import DecisionLog

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRun:
    """One attempt's job and its result.

    frame: what `transform` has returned. await_answer: waits until the task knows the columns, and raises what the
    sinks would refuse. expects_few: small micro-batches follow each other (`staging.write_batch`).
    """

    store: DecisionLog
    request: StageRequest
    job: Job
    frame: DataFrame
    sources: Sources
    await_answer: Callable[[], None]
    ending: Ending
    requests: Requests
    tally: Tally
    expects_few: bool = False

    @contextmanager
    def stopping(self) -> Iterator[Stopper]:
        """Yield what stops its query when a publication failed."""
        stop = Stopper(self.ending.failed, self.ending.report)
        try:
            yield stop
        finally:
            stop.ended()
