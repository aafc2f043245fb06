"""Executors of a cluster: where a micro-batch is kept for them, and what happens when one is lost.

A job with `split` has its micro-batch computed once, and kept on the disks of executors. On a cluster each part is kept
by two of them, so one may die. Local masters have one process: it keeps a single copy, which is faster.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from airflow_ft.protocol.errors import StageError
from airflow_ft.protocol.reasons import AbortReason
from airflow_ft.spark.driver.failures import messages, short
from airflow_ft.spark.driver.plan_facts import items
from airflow_ft.spark.request import is_local

if TYPE_CHECKING:
    from pyspark import StorageLevel
    from pyspark.sql import SparkSession

MOST_LOSSES = 3
"""The number of losses in a row after which a driver computes a micro-batch again at once. One more fails it."""
_GONE = ("CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND", "Either the executor that originally checkpointed this partition")


class ExecutorLostError(StageError):
    """Executors died with all copies of a part of the micro-batch that they kept; it has to be computed again."""

    code = "executor_lost"
    abort_reason = AbortReason.ATTEMPT_ENDED


def storage_level(spark: SparkSession) -> StorageLevel:
    """Return how a micro-batch is kept until it is written."""
    from pyspark import StorageLevel

    return StorageLevel.DISK_ONLY if is_local(str(spark.sparkContext.master)) else StorageLevel.DISK_ONLY_2


def lost(error: BaseException, spark: SparkSession) -> ExecutorLostError | None:
    """Return what to raise for an error of a micro-batch whose parts are gone; None: it is another error."""
    if not any(mark in message for message in messages(error) for mark in _GONE):
        return None
    try:
        dead = "; ".join(_dead(spark))
    except Exception:  # the JVM may be gone
        dead = ""
    return ExecutorLostError(
        f"the executors that kept the micro-batch ended: {dead or 'Spark does not name them'}.",
        remedy="Look in the cluster's log for why they ended (memory, a removed node). Use two or more executors: each"
        " part is then kept twice, so that one may die.",
    )


def _dead(spark: SparkSession) -> Iterator[str]:
    jvm: Any = spark.sparkContext._jsc.sc()
    for each in items(jvm.statusStore().executorList(False)):
        if not each.isActive():
            why = each.removeReason()
            reason = short(" ".join(str(why.get()).split()), 200) if why.isDefined() else "reason unknown"
            yield f"executor {each.id()} on {each.hostPort()} ({reason})"
