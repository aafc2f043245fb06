"""`Stopper`: the end of a query whose publication has failed, and of its process if the job hangs."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from airflow_ft.spark.attribution import current

# How long a query may take to stop before the process ends without it, in seconds: a job may hang in its own code.
STOP_SECONDS = 15.0
GROUP_STOP_SECONDS = 30.0
"""The same where other streams share the process: they would restart with it."""

log = logging.getLogger("airflow_ft.spark")


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
                self.query.stop()
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
