"""Lost executors, and the hints about a cluster's own file system."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark import StorageLevel
from pyspark.sql import SparkSession

from airflow_ft.protocol.errors import StageError
from airflow_ft.protocol.reasons import AbortReason
from airflow_ft.spark.driver.executors import ExecutorLostError, lost, storage_level
from airflow_ft.spark.driver.failures import InUserCode, as_error
from airflow_ft.spark.driver.staging import materialised
from tests.raising import raises

pytestmark = pytest.mark.spark

GONE = "Job aborted: [CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND] Checkpoint block rdd_8_0 not found!"


def _with_master(master: str) -> SparkSession:
    return cast(SparkSession, SimpleNamespace(sparkContext=SimpleNamespace(master=master)))


@pytest.mark.parametrize(
    ("master", "level"),
    [
        ("local[*]", StorageLevel.DISK_ONLY),
        ("local", StorageLevel.DISK_ONLY),
        ("local-cluster[2,1,1024]", StorageLevel.DISK_ONLY_2),
        ("spark://m:7077", StorageLevel.DISK_ONLY_2),
        ("yarn", StorageLevel.DISK_ONLY_2),
    ],
)
def test_a_cluster_keeps_each_part_twice(master: str, level: StorageLevel) -> None:
    assert storage_level(_with_master(master)) == level


def test_a_lost_batch_is_told_whoever_meets_it(spark: SparkSession) -> None:
    def raised(error: Exception) -> None:
        with materialised(spark.range(3)):
            raise error

    in_split = InUserCode("split")
    in_split.__cause__ = RuntimeError(GONE)
    for error in (RuntimeError(GONE), in_split):
        with pytest.raises(ExecutorLostError) as caught:
            raised(error)
        assert caught.value.abort_reason is AbortReason.ATTEMPT_ENDED and caught.value.__cause__ is error
        assert caught.value.code == "executor_lost"
    other = RuntimeError("other")
    with pytest.raises(RuntimeError) as unchanged:
        raised(other)
    assert unchanged.value is other
    assert lost(RuntimeError(GONE), _with_master("yarn")) is not None, "also when Spark has ended"


@pytest.mark.parametrize("length", [170, 970])
def test_an_error_is_cut_without_its_secrets(length: int) -> None:
    text = "a" * length + " s3a://key:planted-" + "b" * 99 + "@h"
    assert "planted" not in as_error(RuntimeError(text), "p", "j").what
    why = SimpleNamespace(isDefined=lambda: True, get=lambda: text)
    dead = SimpleNamespace(isActive=lambda: False, removeReason=lambda: why, id=lambda: 1, hostPort=lambda: "h:1")
    executors = SimpleNamespace(size=lambda: 1, apply=lambda _: dead)
    store = SimpleNamespace(executorList=lambda _: executors)
    jsc = SimpleNamespace(sc=lambda: SimpleNamespace(statusStore=lambda: store))
    context = SimpleNamespace(_jsc=jsc, master="yarn")
    found = lost(RuntimeError(GONE), cast(SparkSession, SimpleNamespace(sparkContext=context)))
    assert found is not None and "executor 1 on h:1 (aaa" in found.what and "planted" not in found.what


def test_a_cluster_that_ends_the_application_is_told_apart() -> None:
    with raises(StageError, "spark_stopped", pipeline="p"):
        raise as_error(RuntimeError("Job 1 cancelled because SparkContext was shut down"), "p", "j")


def test_a_missing_path_is_shown_with_hadoops_file_system(spark: SparkSession) -> None:
    error = RuntimeError("[PATH_NOT_FOUND] Path does not exist: /data/in. SQLSTATE: 42K03")
    found = as_error(error, "p", "j")
    assert (found.code, found.fields) == ("folder_missing", {"path": "/data/in"})
    conf: Any = spark.sparkContext._jsc.hadoopConfiguration()  # type: ignore[attr-defined]
    before = conf.get("fs.defaultFS")
    conf.set("fs.defaultFS", "hdfs://name:8020")
    try:
        raised = as_error(error, "p", "j")
    finally:
        conf.set("fs.defaultFS", before)
    assert isinstance(raised, StageError) and raised.fields == {"path": "hdfs://name:8020/data/in"}
    assert "file:///data/in" in raised.remedy
