"""OpenLineage hears of a stream while it runs: with its first confirmed checkpoint, then once a minute at most."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from airflow_ft.pipeline.metrics import Counters
from airflow_ft.protocol.background import beside

if TYPE_CHECKING:
    from airflow_ft.operators.base import CheckpointOperator
    from airflow_ft.protocol.steps import Context
    from airflow_ft.protocol.timing import Timing
    from airflow_ft.store.decision_log import DecisionLog

log = logging.getLogger(__name__)

EACH_SECONDS = 60.0


def tell_lineage(operator: CheckpointOperator, run: Context[DecisionLog], task_instance: Any) -> None:
    """Report confirmed checkpoints from this process on, where Airflow's provider of OpenLineage is set up.

    Only logs errors, as warnings.
    """
    if find_spec("airflow.providers.openlineage") is None:
        return
    try:
        from airflow.providers.openlineage.api import is_openlineage_active

        if is_openlineage_active():
            from airflow_ft.operators.openlineage import tell_running

            run.store.meter = ReportingCounters(partial(tell_running, operator, task_instance))
    except Exception as error:  # an older provider, or a transport that cannot be set up: the stream begins
        log.warning("could not report this stream to OpenLineage: %s: %s", type(error).__name__, error)


class ReportingCounters(Counters):
    """Counts, and reports the number of a completed checkpoint from a thread, at limited frequency."""

    def __init__(self, tell: Callable[[int], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._tell, self._clock = tell, clock
        self.telling: Future[None] | None = None
        self._told = 0.0

    def completed(self, pipeline: str, timing: Timing) -> None:
        """See `Counters`."""
        super().completed(pipeline, timing)
        now = self._clock()
        if self.telling is None or (self.telling.done() and now - self._told >= EACH_SECONDS):
            self._told = now
            try:
                self.telling = beside(partial(self._tell, timing.number), "lineage")
            except RuntimeError as error:  # the system cannot start another thread
                log.warning("could not report checkpoint %d to OpenLineage: %s", timing.number, error)
