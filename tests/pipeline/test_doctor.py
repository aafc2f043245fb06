"""What `airflow ft doctor` says of a job's module, and its last line. tests/integration/test_doctor.py has the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_ft.pipeline.actions.examining import lines
from airflow_ft.pipeline.doctor import Patient, _job
from airflow_ft.protocol.doctor import Check, Verdict


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
