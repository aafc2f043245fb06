"""`Ending`: why an attempt ends, in its first error, and the report of that for the launcher."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from airflow_ft.protocol.errors import AirflowFtError, ConfigurationError, JobError, StageError, WalCorruptError
from airflow_ft.spark.driver.failures import InUserCode, as_error
from airflow_ft.spark.private import write
from airflow_ft.spark.reports import describe_error
from airflow_ft.spark.request import StageRequest
from airflow_ft.wal.roots import away

_MAY_BE_AWAY = ConfigurationError, JobError, StageError, WalCorruptError
"""Errors that files which are away may cause."""

log = logging.getLogger("airflow_ft.spark")


class Ended(Exception):
    """Raised in a micro-batch that is no longer computed, because the query was ended before."""


class Ending:
    """Why a driver's attempts end.

    request: of the attempt under way. first: its first error, before Spark wraps it; None: none yet. began: whether
    its job has computed anything.
    """

    def __init__(self, request: StageRequest, report: Path) -> None:
        self.request = request
        self.first: BaseException | None = None
        self.began = False
        self._report = report
        self._reported = threading.Lock()

    def begin(self) -> None:
        """The job computes from here on."""
        self.began = True

    def reset(self) -> None:
        """Forget the last attempt; what fails before the next one begins is not the job."""
        self.first, self.began = None, False

    def failed(self, error: BaseException) -> None:
        """Remembers what went wrong first: Spark wraps it beyond recognition."""
        self.first = self.first or error

    @contextmanager
    def remembering(self) -> Iterator[None]:
        """Remember the error of a micro-batch, whose function this block is, unless it is `Ended`.

        Only an Exception leaves the block. For others py4j sends no answer, and the JVM waits for ever.
        """
        try:
            yield
        except Ended:
            raise
        except BaseException as error:
            self.failed(error)
            if isinstance(error, Exception):
                raise
            raise RuntimeError(f"{type(error).__name__}: {error}") from error

    def report(self, error: BaseException) -> None:
        """Leaves the reason of the end for the launcher; the first one counts."""
        if not self._reported.acquire(blocking=False):
            return
        cause = self.first or error
        if not isinstance(cause, AirflowFtError):
            # `InUserCode` would repeat all of it under an internal name.
            log.error("the job failed", exc_info=(isinstance(cause, InUserCode) and cause.__cause__) or cause)
        write(self._report, json.dumps({"error": describe_error(self.cause(error))}))

    def cause(self, error: BaseException) -> AirflowFtError:
        """Return the cause for the end of the attempt: StorageUnavailableError while the log's disk is away."""
        request = self.request
        cause = as_error(self.first or error, request.pipeline, request.job_name, request.base)
        if isinstance(cause, _MAY_BE_AWAY) and (gone := away(request.wal_root)):
            warn_of(cause)
            return gone.located(pipeline=request.pipeline)
        return cause


def warn_of(error: AirflowFtError) -> None:
    """Log an error after which the driver continues."""
    for line in error.log_lines:
        log.warning("%s", line)
