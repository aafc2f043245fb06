"""A job that is written in a DAG file, in real Spark drivers: values, mistakes, streams' state, kept sessions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_ft.protocol.errors import JobError
from airflow_ft.sources import FileSource
from airflow_ft.spark.savepoints.taking import take
from tests.integration.stage_world import PIPELINE, StageWorld, world
from tests.jobs.dag_files import job_of
from tests.raising import raises

pytestmark = [
    pytest.mark.sampled(among="Spark drivers"),
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(900),
]
ORDERS = """
import pandas as pd
from pyspark.sql import functions as F

WORD = "{word}"
DAG = object()


def said(words):
    return words.map(lambda word: word + "/" + WORD)


@ft.job
class Orders:
    def __init__(self, fault=""):
        self.fault = fault

    def transform(self, spark, sources):
        column = F.pandas_udf(said, "string")("k").alias("word")
        return sources["numbers"].groupBy("n").agg(F.first("k").alias("k")).select("n", column)

    def split(self, batch):
        if self.fault:
            raise KeyError(self.fault)
        return {{"orders": batch}}

    output_mode = "update"
"""


@pytest.fixture
def pipeline(tmp_path: Path, sessions: Path) -> Iterator[StageWorld]:
    yield from world(tmp_path, sessions)


def _run(pipeline: StageWorld, word: str, n: int, **more: Any) -> None:
    pipeline.add_file(f"f{n}", [{"k": "a", "n": n}])
    job = job_of(pipeline.folder / "dag.py", ORDERS.format(word=word), "Orders")
    sources = {"numbers": FileSource(path=str(pipeline.input), schema="k string, n bigint")}
    pipeline.complete(pipeline.request(job, sources, **more))


def test_each_run_uses_its_own_code_even_in_a_kept_session(pipeline: StageWorld, tmp_path: Path) -> None:
    """What one run has shipped to Spark's Python workers is not found by the next one."""
    _run(pipeline, "first", 1)
    pipeline.deliver()
    _, one = take(pipeline.store, PIPELINE, str(tmp_path / "savepoints"), "a test")
    _run(pipeline, "other", 2)
    pipeline.deliver()
    _, other = take(pipeline.store, PIPELINE, str(tmp_path / "savepoints"), "a test")
    assert [(row["n"], row["word"]) for row in pipeline.all_rows()] == [(1, "a/first"), (2, "a/other")]
    for word, taken in (("first", one), ("other", other)):
        found = job_of(pipeline.folder / "dag.py", ORDERS.format(word=word), "Orders")
        assert taken.code == {"module": "dag.py:Orders", "sha256": found.sha256}


def test_a_job_that_raises_names_the_line_of_the_dag_file(pipeline: StageWorld) -> None:
    with raises(JobError, "job_failed", job="dag.py:Orders", exception="KeyError") as caught:
        _run(pipeline, "first", 1, job_arguments={"fault": "colour"})
    assert caught.error and f"({pipeline.folder}/dag.py, line 25, in split)" in caught.error.what
    assert pipeline.published() == []
