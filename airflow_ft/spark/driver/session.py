"""The Spark session of a driver: started, or attached to a JVM that is kept; and its end."""

from __future__ import annotations

import logging
import secrets
import time
from typing import TYPE_CHECKING, Any

from airflow_ft.protocol.errors import StageError
from airflow_ft.spark.driver.failures import reason
from airflow_ft.spark.request import is_local
from airflow_ft.spark.session.session_leases import attach, detach
from airflow_ft.spark.session.submit import STARTED
from airflow_ft.spark.session.yarn import unknown_queue

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("airflow_ft.spark")


def start_session(master: str, kept: int | None) -> SparkSession:
    """Return the session; `kept` is the open file that leads to a JVM which is kept, None: it is started."""
    began = time.monotonic()
    spark = _started(master) if kept is None else attach(kept)
    # Each user of the machine can reach py4j's port, which calls an object for anybody who knows its id. A kept JVM
    # also reports objects of earlier drivers that it has released: ours need other ids.
    gateway: Any = spark.sparkContext._gateway
    gateway.gateway_property.pool.next_id = secrets.randbits(128)
    context = spark.sparkContext
    application = "" if is_local(str(context.master)) else f" ({context.applicationId})"
    log.info(STARTED, spark.version, time.monotonic() - began, application)
    return spark


def _started(master: str) -> SparkSession:
    from pyspark.sql import SparkSession

    try:
        return SparkSession.builder.getOrCreate()
    except Exception as error:  # in words of the JVM, which has already logged the reason
        if refused := unknown_queue(reason(error), master):
            raise refused from error
        raise StageError(
            f"Spark did not start with the master {master!r}: {reason(error).rstrip('.')}.",
            code="spark_not_started",
            remedy="Read Spark's lines above in the task's log. Check that the master (spark_master) is reachable"
            " and accepts the settings in spark_conf.",
            master=master,
        ) from error


def leave_session(spark: SparkSession | None, kept: int | None, *, failed: bool) -> bool:
    """End Spark. Returns whether it was left as the next run needs it.

    Call it when the end is reported: it may hang, and the launcher waits only a limited time after the report.
    """
    if spark is None:
        return True
    try:
        if kept is None:
            spark.stop()
        elif not failed:  # otherwise the JVM is not used again, and holds the reason
            detach(spark)
    except Exception as error:  # the JVM may be gone already: what is published is in the store
        log.warning("Spark did not stop cleanly: %s", error)
        return kept is None
    return True


def is_alive(spark: SparkSession) -> bool:
    """Return whether its JVM still works."""
    try:
        return not spark.sparkContext._jsc.sc().isStopped()
    except Exception:
        return False
