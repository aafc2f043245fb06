"""The user's exception, file and line out of what Spark makes of them."""

from __future__ import annotations

import re
import sys

import pytest
from pyspark.errors import PythonException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from airflow_ft.protocol.errors import AirflowFtError, JobError
from airflow_ft.spark.driver.failures import as_error
from airflow_ft.spark.driver.job import Job
from airflow_ft.spark.driver.python_errors import of_worker

JOBS = "tests.spark.mistaken_jobs"
NO_MODULE = "ModuleNotFoundError: No module named 'no_such_helper'"


def failing(spark: SparkSession, where: str) -> AirflowFtError:
    try:
        Job(JOBS, {"where": where}).transform(spark, None).collect()  # type: ignore[arg-type]
    except Exception as error:
        return as_error(error, "orders", JOBS)
    raise AssertionError("nothing was raised")


@pytest.mark.spark
@pytest.mark.parametrize(
    ("where", "code", "what", "function", "remedy"),
    [
        ("udf", "job_failed", "ZeroDivisionError: division by zero", "share", ""),
        ("pandas", "job_failed", "ZeroDivisionError: division by zero", "share", ""),
        ("import", "module_missing", NO_MODULE, "helped", sys.executable),
        ("collect", "action_on_stream", "AnalysisException: transform", "transform", "sources.static(name)"),
        (
            "module",
            "module_missing",
            "ModuleNotFoundError: No module named 'no_such_helper'",
            "helped",
            "no_such_helper",
        ),
        ("raises", "job_failed", "ValueError: a mistake", "transform", ""),
        ("lock", "function_not_serializable", "PicklingError: .*cannot pickle", "transform", "locks"),
        (
            "session",
            "function_not_serializable",
            "PicklingError: .*CONTEXT_ONLY_VALID_ON_DRIVER",
            "transform",
            "SparkSession",
        ),
    ],
)
def test_the_users_mistake_is_the_headline(
    spark: SparkSession, where: str, code: str, what: str, function: str, remedy: str
) -> None:
    error = failing(spark, where)
    assert isinstance(error, JobError) and error.code == code and error.fields["job"] == JOBS
    assert code != "module_missing" or error.fields["module"] == "no_such_helper"
    assert re.match(f"job {JOBS} raised {what}", error.what) and "Traceback" not in error.what
    assert re.search(rf"mistaken_jobs.py, line \d+, in {function}\)$", error.what), error.what
    assert remedy in error.remedy


@pytest.mark.spark
def test_a_misspelled_column_is_told_in_a_line_with_its_place(spark: SparkSession) -> None:
    error = failing(spark, "column")
    assert isinstance(error, JobError) and "\n" not in error.headline
    words = (
        r"`idd` cannot be resolved. Did you mean .*`id`.*SQLSTATE: 42703 \(\S+mistaken_jobs.py, line \d+, in column\)"
    )
    assert re.search(words, error.what), error.what


@pytest.mark.spark
def test_an_error_of_a_query_keeps_sparks_own_words(spark: SparkSession) -> None:
    with pytest.raises(Exception) as caught:
        spark.range(1).select(F.expr("raise_error('no such order')")).collect()
    error = as_error(caught.value, "orders", "jobs.orders")
    assert isinstance(error, JobError) and "no such order" in error.what


def test_a_worker_that_says_nothing_of_python_is_none() -> None:
    assert of_worker(["java.io.IOException: broken pipe", ""]) is None


def test_the_headline_is_the_last_exception_in_the_users_code() -> None:
    text = """An exception was thrown from the Python worker: Traceback (most recent call last):
  File "/jobs/orders.py", line 3, in first
    old()
KeyError: 'colour'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/x/site-packages/pyspark/worker.py", line 1, in main
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
    assert found is not None
    assert (found.what, found.where) == ("ValueError: two lines", " (/jobs/orders.py, line 5, in second)")


def test_a_text_of_any_length_is_cut_and_keeps_its_place() -> None:
    text = f'Traceback (most recent call last):\n  File "/jobs/a.py", line 3, in share\nValueError: {"row " * 300_000}'
    error = as_error(PythonException(text), "orders", "jobs.orders")
    assert isinstance(error, JobError) and error.code == "job_failed"
    assert len(error.what) < 2_000 and error.what.endswith(" (/jobs/a.py, line 3, in share)")
