"""The standby driver of a stream: a second driver that is warm when the first one dies.

The task starts it when the working driver has published its first checkpoint. It waits in a private folder without a
request (`spark.driver.standby`). When the working driver has ended, and the next epoch is taken, the task writes the
request into that folder instead of starting a process.

A standby cannot become a zombie. Before it has the request it knows no epoch, store or location. A folder gets one
request, and the request is of the newest epoch, as that of any driver.

What if the task dies: the standby dies with it (`spark.process`).
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from airflow_ft.protocol.errors import AirflowFtError
from airflow_ft.spark.private import private_folder
from airflow_ft.spark.process import Driver, signal_group
from airflow_ft.spark.request import StageRequest
from airflow_ft.spark.session.session_leases import start_key
from airflow_ft.spark.session.submit import (
    READY,
    REQUEST,
    RESULT,
    end_driver,
    environment,
    prepare_standby,
    write_request,
)

AGAIN_SECONDS = 60.0
"""Least time between two starts: a standby that dies, because memory is short, must not be started all the time."""
TAKEN_SECONDS = 120.0
"""Longest time from the request to the moment when the standby has read it. It may still start, and warm up."""

log = logging.getLogger("airflow_ft.spark")


@dataclass(frozen=True, slots=True)
class _Waiting:
    driver: Driver
    folder: Path
    key: str
    stack: ExitStack

    def end(self) -> None:
        self.driver.kill(0)
        self.driver.wait(_say, self.folder / RESULT)
        self.stack.close()


def hand_over(driver: Driver, folder: Path, request: StageRequest) -> None:
    """Give the request to the driver that waits in the folder. A driver that does not take it is killed."""
    try:
        write_request(folder, request)
    except BaseException:
        driver.kill(0)
        driver.wait(_say, folder / RESULT)
        raise

    def end() -> None:
        if (folder / REQUEST).exists():
            log.warning("the standby driver did not take over within %.0f s", TAKEN_SECONDS)
            signal_group(driver.pid, signal.SIGKILL)

    timer = threading.Timer(TAKEN_SECONDS, end)
    timer.daemon = True
    timer.start()


def _say(line: str) -> None:
    if line == READY:
        log.info("the standby driver is %s", line)
    else:
        log.debug("standby: %s", line)


class Standby:
    """At most one standby driver. Use it from one thread, with which its driver dies."""

    def __init__(self) -> None:
        self._waiting: _Waiting | None = None
        self._started = float("-inf")

    def keep(self, request: StageRequest) -> None:
        """Start one, unless one waits; `request` is that of the working driver. Raises nothing."""
        if not request.standby:
            return
        if (waiting := self._waiting) is not None:
            if waiting.driver.read(_say):
                return
            log.warning("the standby driver has ended")
            self.end()
        if time.monotonic() - self._started < AGAIN_SECONDS:
            return
        self._started = time.monotonic()
        with ExitStack() as stack:
            try:
                folder = stack.enter_context(private_folder())
                command, key = prepare_standby(folder, request), start_key(request)
                driver = Driver(command, environment(request), end=end_driver(folder))
                self._waiting = _Waiting(driver, folder, key, stack.pop_all())
            except (AirflowFtError, OSError) as error:
                log.warning("no standby driver: %s", error)
                return
        log.info("a standby driver starts (process %d)", driver.pid)

    @contextmanager
    def place(self, request: StageRequest) -> Iterator[tuple[Path, Driver | None]]:
        """The private folder for a request, and the driver that waits there for it (None: none does)."""
        if self._waiting is not None and (why := self._unfit(self._waiting, request)):
            log.info("the standby driver is not used: %s", why)
            self.end()
        waiting, self._waiting = self._waiting, None
        if waiting is None:
            with private_folder() as folder:
                yield folder, None
            return
        self._started = float("-inf")
        log.info("the standby driver (process %d) takes over", waiting.driver.pid)
        with waiting.stack:
            yield waiting.folder, waiting.driver

    def _unfit(self, waiting: _Waiting, request: StageRequest) -> str:
        if not waiting.driver.read(_say):
            return "it has ended"
        return "" if waiting.key == start_key(request) else "settings have changed since it was started"

    def end(self) -> None:
        """End the one that waits."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.end()
