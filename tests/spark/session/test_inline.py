"""A job of a DAG file, in the driver: made of its source alone, with the lines that it has in its file."""

from __future__ import annotations

import traceback
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_ft.protocol.errors import AirflowFtError, JobError
from airflow_ft.spark.attribution import working_for
from airflow_ft.spark.driver.failures import as_error
from airflow_ft.spark.driver.job import Job, load
from tests.jobs.dag_files import job_of

MISTAKEN = """
from pyspark.sql import functions as F

DAG = object()


def share(n):
    return 1 // (n - n)


@ft.job
def transform(spark, sources, where):
    if where == "driver":
        raise ValueError(sources["a mistake"])
    return spark.range(1).select(F.udf(share, "int")("id").alias("n"))
"""


def _transform(spark: SparkSession, folder: Path, where: str) -> AirflowFtError:
    found = job_of(folder / "orders.py", MISTAKEN)
    try:
        Job(found, {"where": where}).transform(spark, {}).collect()  # type: ignore[arg-type]
    except Exception as error:
        return as_error(error, "orders", found.reference)
    raise AssertionError("nothing was raised")


@pytest.mark.spark
@pytest.mark.parametrize(
    ("where", "what", "line"),
    [
        ("driver", "KeyError: 'a mistake'", "line 15, in transform"),
        ("worker", "ZeroDivisionError: integer division or modulo by zero", "line 9, in share"),
    ],
)
def test_a_mistake_is_told_with_the_dag_file_and_its_line(
    spark: SparkSession, tmp_path: Path, where: str, what: str, line: str
) -> None:
    error = _transform(spark, tmp_path, where)
    assert isinstance(error, JobError)
    assert error.what == f"job orders.py:transform raised {what} ({tmp_path}/orders.py, {line})"


@pytest.mark.spark
def test_a_job_is_loaded_without_importing_its_dag_file(tmp_path: Path) -> None:
    file = tmp_path / "orders.py"
    text = f"import pathlib\nN = pathlib.Path({str(tmp_path / 'imported')!r}).touch()\n{MISTAKEN}"
    found = job_of(file, text)
    (tmp_path / "imported").unlink()
    file.write_text("another file by now\n" * 99)
    with pytest.raises(KeyError) as caught:
        load(found)(None, {}, "driver")
    assert 'raise ValueError(sources["a mistake"])' in "".join(traceback.format_exception(caught.value))
    assert not (tmp_path / "imported").exists()


def test_what_an_import_lacks_is_told_with_its_line(tmp_path: Path) -> None:
    text = "@ft.job\ndef transform(spark, sources):\n    import no_such_helper\n"
    at_top = job_of(tmp_path / "orders.py", f"import json\n{text}    json.dumps(no_such_helper)\n")
    try:
        spark: Any = SimpleNamespace(streams=SimpleNamespace(active=[]))
        Job(at_top, {}).transform(spark, None)  # type: ignore[arg-type]
    except Exception as error:
        raised = as_error(error, "orders", at_top.reference)
    assert "No module named 'no_such_helper'" in raised.what and "orders.py, line 5, in transform" in raised.what


@pytest.mark.spark
def test_a_class_has_what_a_class_of_a_module_has(spark: SparkSession, tmp_path: Path) -> None:
    text = (
        "NAMES = ('a', 'b')\n@ft.job\nclass Orders:\n    output_mode = 'update'\n"
        "    def __init__(self, rows):\n        self.rows = rows\n"
        "    def transform(self, spark, sources):\n        return spark.range(self.rows)\n"
        "    def split(self, batch):\n        return {name: batch for name in NAMES}\n"
    )
    job = Job(job_of(tmp_path / "orders.py", text, "Orders"), {"rows": 3})
    frame = job.transform(spark, {})  # type: ignore[arg-type]
    assert (job.output_mode, job.has_split, frame.count()) == ("update", True, 3)
    assert list(job.split(frame, ("a", "b"), ())) == ["a", "b"]
    assert list(job.split_nothing(spark, frame)) == ["a", "b"]


@pytest.mark.spark
def test_arguments_of_a_function_go_to_it(spark: SparkSession, tmp_path: Path) -> None:
    found = job_of(tmp_path / "orders.py", "@ft.job\ndef transform(spark, sources, n):\n    return spark.range(n)\n")
    assert Job(found, {"n": 4}).transform(spark, {}).count() == 4  # type: ignore[arg-type]


def test_each_attempt_begins_with_values_of_its_own(tmp_path: Path) -> None:
    text = "SEEN = []\n@ft.job\ndef transform(spark, sources):\n    SEEN.append(1)\n    return len(SEEN)\n"
    found = job_of(tmp_path / "orders.py", text)
    assert [load(found)(None, None), load(found)(None, None)] == [1, 1]


def test_types_and_dataclasses_are_what_they_are_in_the_file(tmp_path: Path) -> None:
    """Both look into the module that their functions and classes say they are of."""
    text = (
        "import typing\nfrom decimal import Decimal\n@ft.job\ndef transform(spark: Decimal, sources: 'Decimal'):\n"
        "    import dataclasses\n    @dataclasses.dataclass\n    class Row:\n        n: 'int' = 5\n"
        "    return typing.get_type_hints(transform), Row().n\n"
    )
    job = job_of(tmp_path / "orders.py", text)
    hints, n = load(job)(None, None)
    assert [kind.__name__ for kind in hints.values()] == ["Decimal", "Decimal"] and n == 5
    postponed = load(replace(job, postponed=True))
    assert set(postponed.__annotations__.values()) == {"Decimal", "'Decimal'"}


TWO = """
@ft.job
def one(spark, sources):
    raise ValueError("of one")


@ft.job
def other(spark, sources):
    raise ValueError("of other")
"""


def test_two_jobs_of_one_dag_file_have_separate_modules(tmp_path: Path) -> None:
    """As streams of a group, in one process."""
    path = tmp_path / "orders.py"
    jobs = [job_of(path, TWO, name) for name in ("one", "other")]
    path.unlink()
    loaded = []
    for pipeline, job in zip(("a-b", "a_b"), jobs, strict=True):
        with working_for(pipeline):
            loaded.append(load(job))
    assert len({function.__module__ for function in loaded}) == 2
    for function, line in zip(loaded, ("of one", "of other"), strict=True):
        with pytest.raises(ValueError) as raised:
            function(None, None)
        assert raised.value.args == (line,)
        assert f'raise ValueError("{line}")' in "".join(traceback.format_exception(raised.value))
