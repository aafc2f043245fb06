"""What `airflow ft doctor` says of a job and of Spark, and its words. tests/integration/test_doctor.py has the rest."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

from airflow_ft import FileSource, KafkaSource
from airflow_ft.pipeline.actions.examining import lines
from airflow_ft.pipeline.connections import server_connections
from airflow_ft.pipeline.decision_log import participant_factory
from airflow_ft.pipeline.doctor import Patient, _as_last_run, _job, _location, _spark, examine
from airflow_ft.protocol.connections import connection_of_type
from airflow_ft.protocol.doctor import Check, Verdict
from airflow_ft.protocol.errors import SinkAccessError
from airflow_ft.protocol.model import SparkPosition
from airflow_ft.sources import Source
from airflow_ft.store import open_store
from tests.raising import raises
from tests.store.scene import PIPELINE, Scene


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
        ("ok ok ok", {"3 checks passed"}),
        ("ok", {"1 check passed"}),
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


def test_the_doctor_checks_the_log_of_the_last_run(tmp_path: Path) -> None:
    url, root = f"sqlite:///{tmp_path}/ft.db", str(tmp_path / "own")
    with closing(open_store(url)) as store:
        Scene(store).stage(made_with={"job": None, "wal_root": root, "configured": []})
    checks = examine(Patient(PIPELINE, "/wal"), lambda: open_store(url), server_connections, participant_factory())
    assert {f"write-ahead log {root}"} == {c.subject for c in checks if c.subject.startswith("write-ahead log")}


def test_the_doctor_merges_own_and_configured_settings(tmp_path: Path) -> None:
    made_with = {
        "job": "jobs.orders",
        "wal_root": "/configured before",
        "spark_master": "yarn",
        "jars": "/jars, /more",
        "packages": ["own:package:1"],
        "spark_conf": {"a": "own", "b": "[airflow_ft] spark_conf", "token": "***", "c": "{{ ds }}"},
        "configured": ["spark_conf.b", "wal_root"],
    }
    conf = {"a": "1", "b": "2", "token": "3", "spark.jars.packages": "its:package:1"}
    with closing(open_store(f"sqlite:///{tmp_path}/ft.db")) as store:
        Scene(store).stage(made_with=made_with)
        found = _as_last_run(Patient(PIPELINE, "/wal", spark_conf=conf), store)
    assert (found.wal_root, found.spark_master, found.jars) == ("/wal", "yarn", ("/jars", "/more")) and found.computes
    packages = {"spark.jars.packages": "its:package:1,own:package:1"}
    assert found.spark_conf == {"a": "own", "b": "2", "token": "3", **packages}


def test_the_fix_of_a_missing_connection_has_its_type() -> None:
    with raises(SinkAccessError, "connection_missing", participant="shop") as caught:
        connection_of_type("mysql", "shop", server_connections)
    assert caught.error is not None and "add shop --conn-type mysql`" in caught.error.remedy
    assert caught.error.remedy in caught.error.args[0]


def test_the_doctor_accepts_a_new_pipeline_of_a_dag(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    sources = {"files": FileSource(path=str(tmp_path / "in"), schema="id bigint")}
    patient = Patient("new", str(tmp_path / "wal"), sources=sources, computes=False)
    url = f"sqlite:///{tmp_path}/ft.db"
    with closing(open_store(url)):
        pass
    checks = examine(patient, lambda: open_store(url), server_connections, participant_factory())
    ours = [check for check in checks if check.name in ("history", "place")]
    assert {check.name: check.verdict for check in ours} == {"history": Verdict.OK, "place": Verdict.OK}


def test_a_missing_spark_checkpoint_is_a_problem(tmp_path: Path) -> None:
    place = tmp_path / PIPELINE / "spark" / "1-1"
    base = SparkPosition(f"file:{place}", 3)
    store = SimpleNamespace(pipeline=lambda _: SimpleNamespace(base=base))
    [check] = _location(Patient(PIPELINE, str(tmp_path)), store)  # type: ignore[arg-type]
    assert (check.verdict, check.code) == (Verdict.PROBLEM, "state_files_missing") and str(place) in check.text
    (place / "offsets").mkdir(parents=True)
    (place / "offsets" / "3").write_text("v1")
    [check] = _location(Patient(PIPELINE, str(tmp_path)), store)  # type: ignore[arg-type]
    assert check.verdict is Verdict.OK
