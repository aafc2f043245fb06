"""What `airflow ft doctor` says of a job and of Spark, and its words. tests/integration/test_doctor.py has the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_ft import FileSource, KafkaSource
from airflow_ft.pipeline.actions.examining import lines
from airflow_ft.pipeline.connections import server_connections
from airflow_ft.pipeline.doctor import Patient, _job, _spark
from airflow_ft.protocol.connections import connection_of_type
from airflow_ft.protocol.doctor import Check, Verdict
from airflow_ft.protocol.errors import SinkAccessError
from airflow_ft.sources import Source
from tests.raising import raises


@pytest.fixture
def dag_file(tmp_path: Path) -> str:
    """A DAG file with a package of jobs beside it, which no check may import."""
    jobs = tmp_path / "its_jobs"
    jobs.mkdir()
    for name in ("__init__", "orders"):
        (jobs / f"{name}.py").write_text("raise RuntimeError('imported')\n")
    return str(tmp_path / "dag.py")


@pytest.mark.parametrize("job", ["its_jobs.orders", "its_jobs.orders:Orders.Inner", "its_jobs", "json"])
def test_a_module_of_a_job_is_found_without_an_import(dag_file: str, job: str) -> None:
    [check] = _job(Patient("p", "/wal", job=job, dag_file=dag_file))
    assert check.verdict is Verdict.OK


@pytest.mark.parametrize("job", ["its_jobs.clicks", "no_such_package.orders", "its_jobs.orders.inner"])
def test_a_missing_module_is_a_problem(dag_file: str, job: str) -> None:
    [check] = _job(Patient("p", "/wal", job=job, dag_file=dag_file))
    assert (check.verdict, check.code) == (Verdict.PROBLEM, "module_missing")


def test_without_a_module_there_is_nothing_to_look_for() -> None:
    assert _job(Patient("p", "/wal")) == []


@pytest.mark.parametrize(
    ("verdicts", "counts"),
    [
        ("problem warning problem ok", {"2 problems", "1 warning"}),
        ("warning warning", {"2 warnings"}),
        ("ok ok ok", {"All 3 checks"}),
    ],
)
def test_the_last_line_counts(verdicts: str, counts: set[str]) -> None:
    *_, last = lines([Check("spark", "java", Verdict(each), "text") for each in verdicts.split()])
    assert all(each in last for each in counts)
    assert ("problem" in last) == ("problem" in verdicts)


def test_a_job_that_was_not_run_is_named_once() -> None:
    [check] = _job(Patient("p", "/wal", computes=True, dag_file="dag.py"))
    assert check.verdict is Verdict.OK
    assert "`airflow ft dry-run p --dag dag.py`" in check.text


def test_a_missing_connection_of_the_master_hides_no_other_check() -> None:
    checks = _spark(Patient("p", "/wal", spark_master="conn:no_cluster"), server_connections)
    [problem] = [check for check in checks if check.verdict is Verdict.PROBLEM]
    assert (problem.name, problem.code) == ("master", "connection_missing")
    assert "'no_cluster'" in problem.text and "--conn-type spark`" in problem.remedy
    assert {"spark-submit", "java"} <= {check.name for check in checks}


@pytest.mark.parametrize(
    ("sources", "asked"),
    [
        ({"files": FileSource(path="/in", schema="id bigint")}, False),
        ({"orders": KafkaSource(topics=["orders"])}, True),
        ({}, True),  # without the DAG
    ],
)
def test_kafka_is_examined_if_the_pipeline_may_read_it(sources: dict[str, Source], asked: bool) -> None:
    checks = _spark(Patient("p", "/wal", sources=sources), server_connections)
    assert ("kafka connector" in {check.name for check in checks}) is asked


def test_the_fix_of_a_missing_connection_has_its_type() -> None:
    with raises(SinkAccessError, "connection_missing", participant="shop") as caught:
        connection_of_type("mysql", "shop", server_connections)
    assert caught.error is not None and "add shop --conn-type mysql`" in caught.error.remedy
    assert caught.error.remedy in caught.error.args[0]
