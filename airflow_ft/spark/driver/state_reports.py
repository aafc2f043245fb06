"""`StateReports`: the size of the operator state, for the decision log and the task's log."""

from __future__ import annotations

import logging
import time
from contextlib import suppress

from airflow_ft.protocol.errors import AirflowFtError, StoreUnavailableError
from airflow_ft.protocol.memory import give_back
from airflow_ft.spark.request import StageRequest
from airflow_ft.spark.state.files import sizes
from airflow_ft.spark.state.locations import SparkLocation
from airflow_ft.store.reports import ReportOperations

_STATE_EACH = 60.0

log = logging.getLogger("airflow_ft.spark")


class StateReports:
    """Reports the size of the state to the decision log, and in lines that `airflow_ft.spark.task.launcher` reads."""

    def __init__(self, store: ReportOperations, request: StageRequest, location: SparkLocation) -> None:
        self._store, self._request, self._location = store, request, location
        self._told = time.monotonic()

    def tell_now_and_then(self, batch: int | None, number: int) -> None:
        """As often as Spark's maintenance makes a difference; memory is given back as often."""
        if batch is not None and time.monotonic() - self._told > _STATE_EACH:
            self.tell(batch, number)
            give_back()

    def tell(self, batch: int, number: int) -> None:
        """Report the state of a published batch under this number. An unavailable folder or log does not end the
        stream.
        """
        self._told = time.monotonic()
        try:
            found = sizes(self._location.uri, batch)
        except (AirflowFtError, OSError) as error:
            log.warning("the size of the state after batch %d is unknown: %s", batch, error)
            return
        if found:
            log.info("state after batch %d: %s", batch, found)
            with suppress(StoreUnavailableError):
                self._store.record_state_sizes(self._request.pipeline, self._request.epoch, number, found)
