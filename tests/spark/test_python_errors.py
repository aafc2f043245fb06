"""The user's exception, file and line out of what Spark makes of them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from airflow_ft.core.errors import AirflowFtError, JobError
from airflow_ft.spark.failures import as_error
from airflow_ft.spark.job import Job
from airflow_ft.spark.python_errors import of_worker

JOB = """
import pandas as pd
from pyspark.sql import functions as F

def share(n):
    return 1 / (n - n)

def shares(frames):
    for frame in frames:
        yield pd.DataFrame({"share": [share(n) for n in frame["id"]]})

def helped(n):
    import no_such_helper

def transform(spark, sources, where):
    frame = spark.range(2)
    match where:
        case "udf":
            return frame.withColumn("share", F.udf(share, "double")("id"))
        case "pandas":
            return frame.mapInPandas(shares, "share double")
        case "import":
            return frame.withColumn("share", F.udf(helped, "double")("id"))
        case "collect":
            spark.readStream.format("rate").load().collect()
        case "module":
            import no_such_helper
        case "raises":
            raise ValueError("a mistake")
    return frame
"""


@pytest.fixture(scope="module")
def failing(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("jobs")
    (folder / "job_with_mistakes.py").write_text(JOB)
    sys.path.insert(0, str(folder))

    def failing(where: str) -> AirflowFtError:
        try:
            Job("job_with_mistakes", {"where": where}).transform(spark, None).collect()  # type: ignore[arg-type]
        except Exception as error:
            return as_error(error, "orders", "job_with_mistakes")
        raise AssertionError("nothing was raised")

    yield failing, folder / "job_with_mistakes.py"
    sys.path.remove(str(folder))


@pytest.mark.spark
@pytest.mark.parametrize(
    ("where", "what", "line", "remedy"),
    [
        ("udf", "ZeroDivisionError: division by zero", "line 6, in share", "mend the job"),
        ("pandas", "ZeroDivisionError: division by zero", "line 6, in share", "mend the job"),
        ("import", "ModuleNotFoundError: No module named 'no_such_helper'", "line 13, in helped", "searched were"),
        ("collect", "transform asks for rows of a stream", "line 25, in transform", "sources.static(name)"),
        ("module", "ModuleNotFoundError: No module named 'no_such_helper'", "line 27, in transform", "{folder}"),
        ("raises", "ValueError: a mistake", "line 29, in transform", "mend the job"),
    ],
)
def test_the_users_mistake_is_the_headline(failing: Any, where: str, what: str, line: str, remedy: str) -> None:
    fail, file = failing
    error = fail(where)
    assert isinstance(error, JobError)
    assert error.what.startswith(f"job job_with_mistakes raised {what}") and "Traceback" not in error.what
    assert f"({file}, {line})" in error.what
    assert remedy.format(folder=file.parent) in error.remedy


@pytest.mark.spark
def test_an_error_of_a_query_keeps_sparks_own_words(spark: SparkSession) -> None:
    with pytest.raises(Exception) as caught:
        spark.range(1).select(F.expr("raise_error('no such order')")).collect()
    error = as_error(caught.value, "orders", "jobs.orders")
    assert isinstance(error, JobError) and "no such order" in error.what


def test_a_worker_that_says_nothing_of_python_is_none() -> None:
    assert of_worker(["java.io.IOException: broken pipe", ""]) is None


def test_the_last_of_several_exceptions_counts_and_frames_of_libraries_do_not() -> None:
    text = f"""An exception was thrown from the Python worker: Traceback (most recent call last):
  File "/jobs/orders.py", line 3, in first
    old()
KeyError: 'colour'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "{Path("/x/site-packages/pyspark/worker.py")}", line 1, in main
    process()
  File "/jobs/orders.py", line 5, in second
    pd.to_datetime("x")
  File "/x/site-packages/pandas/core/tools.py", line 7, in to_datetime
    raise ValueError
ValueError: two
lines
 SQLSTATE: 38000
\tat org.apache.spark.Something(Some.scala:1)"""
    found = of_worker([text])
    assert found is not None and found.what == "ValueError: two lines (/jobs/orders.py, line 5, in second)"
