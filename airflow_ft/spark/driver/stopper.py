"""The end of a query: `Stopper` when its publication has failed, `await_query_end` before the next one begins."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from airflow_ft.protocol.errors import StageError
from airflow_ft.spark.attribution import current
from airflow_ft.spark.driver.own_queries import stop

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# How long a query may take to stop before the process ends without it, in seconds: a job may hang in its own code.
STOP_SECONDS = 15.0
GROUP_STOP_SECONDS = 30.0
"""The same where other streams share the process: they would restart with it."""
END_SECONDS = 30.0
"""How long the next query waits for the one before, in seconds: Spark may still commit, or look for files. No longer
than `GROUP_STOP_SECONDS`, after which the process is ended.
"""
_LOOK_SECONDS = 0.1

log = logging.getLogger("airflow_ft.spark")


def await_query_end(spark: SparkSession, pipeline: str) -> None:
    """Wait until no query of the pipeline runs in the session. `stop` of a query gives up after Spark's `stopTimeout`.

    Raises:
        StageError: one still runs after `END_SECONDS`.
    """
    deadline = time.monotonic() + END_SECONDS
    while any(query.name == pipeline for query in spark.streams.active):
        if time.monotonic() > deadline:
            raise StageError(
                f"its former Spark query did not end within {END_SECONDS:.0f} s, so no other one can start.",
                code="query_not_ended",
                remedy="Do nothing: the next try waits again. If it repeats, look for slow storage or sources in"
                " the task's log.",
                pipeline=pipeline,
            )
        time.sleep(_LOOK_SECONDS)


class Stopper:
    """Stops the query when a publication failed; ends the process when the query does not stop."""

    def __init__(self, failed: Callable[[BaseException], None], report: Callable[[BaseException], None]) -> None:
        """`failed` gets what went wrong, `report` what is left for the launcher before the process ends."""
        self._failed, self._report = failed, report
        self._ended = threading.Event()
        self.query: Any = None

    def __call__(self, error: BaseException) -> None:
        self._failed(error)
        threading.Thread(target=self._stop, name="stopper", daemon=True).start()

    def ended(self) -> None:
        """The attempt has ended: there is nothing to stop any more."""
        self._ended.set()

    def _stop(self) -> None:
        deadline = time.monotonic() + (GROUP_STOP_SECONDS if current() else STOP_SECONDS)
        try:
            if self.query is not None:
                stop(self.query)
        except Exception as error:
            log.warning("the query did not stop: %s", error)
        if self._ended.wait(max(0.0, deadline - time.monotonic())):
            return
        # Still here: the job hangs in its own code. Nothing can be published any more, so nothing is lost.
        try:
            self._report(TimeoutError("the job did not stop"))
        except Exception as error:  # the disk is full, or the JVM has gone: then the launcher says how it has ended
            log.warning("the driver could not report why it ends: %s", error)
        finally:
            os._exit(1)
