"""Which lines of a driver are for everybody. The texts are what Spark 4.2 printed."""

from __future__ import annotations

import pytest

from airflow_ft.spark.task.story import Story

USUAL = """\
WARNING: Using incubator modules: jdk.incubator.vector
Using Spark's default log4j profile: org/apache/spark/log4j2-defaults.properties
26/11/21 22:32:07 WARN Utils: Your hostname, vm, resolves to a loopback address: 127.0.0.1; using 192.0.2.2 instead
26/11/21 22:32:07 WARN Utils: Set SPARK_LOCAL_IP if you need to bind to another address
26/11/21 22:32:19 INFO SparkContext: Running Spark version 4.2.0
26/11/21 22:32:21 WARN NativeCodeLoader: Unable to load native-hadoop library for your platform... using builtin-java
Setting Spark log level to "WARN".
airflow_ft.spark.driver.failures.InUserCode: 'threshold'
26/11/21 22:32:22 WARN SparkConf: Note that spark.local.dir will be overridden by the value set by the cluster manager
26/11/21 22:33:20 WARN ResolveWriteToStream: spark.sql.adaptive.enabled is not supported in streaming DataFrames
26/11/21 22:33:26 WARN MicroBatchExecution: Disabling AQE since AQE is not supported in stateful workloads.
{"ts": "2026-11-25 04:04:15.739", "level": "ERROR", "logger": "DataFrameQueryContextLogger", "msg": "[UNRESOLVED"}
Starting Streaming TransformWithStateInPandas Python worker.

Streaming TransformWithStateInPandas Python worker finish init stage of Python runner. Received UDF from JVM: <bound>
26/11/21 22:33:45 WARN TransformWithStateInPySparkStateServer: No more data to read from the socket
26/11/21 22:34:39 WARN TransformWithStateInPySparkStateServer: Value state total doesn't contain a value.
26/11/21 22:34:14 WARN StateStore: Loaded state store provider in loadTimeMs=2889 for storeId=StateStoreId[ operatorId=0
26/11/22 12:19:49 WARN ProcessingTimeExecutor: Current batch is falling behind. The trigger interval is 1000 ms
26/11/22 12:20:31 WARN DAGScheduler: Failed to cancel job group 6cb3355b. Cannot find active jobs
26/11/21 22:35:14 WARN MapPartitionsRDD: RDD 9 was locally checkpointed, its lineage has been truncated
/venv/lib/python3.11/site-packages/pyspark/python/lib/pyspark.zip/pyspark/pandas/x.py:135: FutureWarning: soon gone.
  return self.something(old=True)
/venv/lib/python3.11/site-packages/pandas/core/frame.py:7: FutureWarning: DataFrame.this is deprecated
"""

SHOWN = """\
Spark 4.2.0 started in 44.2 s
Spark's checkpoint location: file:///wal/orders/spark/1-1 (from the beginning)
checkpoint 1 published: 2 rows in 76.2 s (orders 2)
26/11/21 22:35:14 WARN KafkaMicroBatchStream: Partition orders-0's offset was changed from 8 to 3
26/11/21 22:35:14 WARN StateStore: Error running maintenance task
26/11/21 22:35:14 ERROR Executor: Exception in task 0.0 in stage 0.0 (TID 0)
/dags/jobs/orders.py:7: FutureWarning: your own code is old
printed by the job
  and indented
  and indented
java.lang.OutOfMemoryError: Java heap space
"""

FAILED = """\
26/11/21 22:38:51 ERROR Utils: Aborting task
org.apache.spark.api.python.PythonException: [PYTHON_EXCEPTION] An exception was thrown:
  File "/venv/lib/python3.11/site-packages/pyspark/python/lib/pyspark.zip/pyspark/worker.py", line 9, in main
    process()
  File "/dags/jobs/orders.py", line 7, in share
    return 1 / (n - n)
           ~~^~~~~~~~~
ZeroDivisionError: division by zero
 SQLSTATE: 38000
\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:645)
\tat java.base/java.lang.Thread.run(Thread.java:840)
Caused by: java.io.IOException: No space left on device
\tat java.base/java.io.FileOutputStream.writeBytes(Native Method)
\t... 12 more
"""


@pytest.mark.parametrize("line", USUAL.splitlines())
def test_what_every_run_prints_is_set_aside(line: str) -> None:
    story = Story()
    if line.startswith("  "):
        assert not story.shows("/lib/site-packages/pandas/x.py:1: FutureWarning: it is about the next line")
    assert not story.shows(line)


@pytest.mark.parametrize("line", SHOWN.splitlines())
def test_everything_else_is_told(line: str) -> None:
    assert Story().shows(line)


def test_what_a_job_prints_twice_is_told_twice() -> None:
    story = Story()
    assert [story.shows(line) for line in SHOWN.splitlines()] == [True] * len(SHOWN.splitlines())
    assert story.shows("printed by the job") and story.shows("  and indented")


def test_an_error_shows_the_users_lines_and_its_cause_once() -> None:
    story = Story()
    shown = [line for line in FAILED.splitlines() if story.shows(line)]
    assert shown == [
        "26/11/21 22:38:51 ERROR Utils: Aborting task",
        "org.apache.spark.api.python.PythonException: [PYTHON_EXCEPTION] An exception was thrown:",
        '  File "/dags/jobs/orders.py", line 7, in share',
        "    return 1 / (n - n)",
        "ZeroDivisionError: division by zero",
        " SQLSTATE: 38000",
        "Caused by: java.io.IOException: No space left on device",
    ]
    again = [line for line in FAILED.splitlines() if story.shows(line)]
    assert again == ["26/11/21 22:38:51 ERROR Utils: Aborting task"]
    assert story.shows("ZeroDivisionError: float division by zero"), "another error is told"
