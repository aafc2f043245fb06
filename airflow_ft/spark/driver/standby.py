"""A driver that starts without a request: it warms up, and waits until it gets one.

It knows Spark's settings and nothing of the pipeline's decision log, write-ahead log, checkpoint location, epoch or
connections. All of these are in the request, which the task writes when the driver before has ended and the next epoch
is taken. From there on it is a driver as any other.

What if the process dies ...
- before it has the request: the task starts a driver as usual.
- afterwards: as any driver. The task that it waits for takes it along (`spark.process`).
"""

from __future__ import annotations

import importlib
import logging
import sys
import time
from pathlib import Path

from airflow_ft.spark.driver import runner
from airflow_ft.spark.driver.session import start_session
from airflow_ft.spark.driver.speech import speak
from airflow_ft.spark.driver.warm_up import warm_up
from airflow_ft.spark.private import PROPERTIES
from airflow_ft.spark.process import die_with_parent
from airflow_ft.spark.session.submit import READY, REQUEST

_LOOK_SECONDS = 0.02

log = logging.getLogger("airflow_ft.spark")


def main(folder: str, master: str) -> int:
    """Warm up, wait for the request in `folder`, and run it as `runner.main` does; the exit code of the process."""
    die_with_parent()
    speak(sys.stdout)
    request = Path(folder) / REQUEST
    spark = start_session(master, None)
    (Path(folder) / PROPERTIES).unlink(missing_ok=True)
    try:
        warm_up(spark, Path(folder), request.exists)
    except Exception as error:
        log.warning("the standby driver could not warm up: %s", error)
    log.info(READY)
    while not request.exists():
        time.sleep(_LOOK_SECONDS)
    importlib.invalidate_caches()  # the job may be newer than this process
    return runner.main(folder)
