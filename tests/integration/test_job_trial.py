"""`airflow_ft.testing.jobs.JobTrial`: a job's own test."""

from __future__ import annotations

import os
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import pytest

import airflow_ft as ft
from airflow_ft.protocol.errors import JobError
from airflow_ft.testing.jobs import JobTrial
from tests.integration.stage_world import sessions_in
from tests.raising import raises

pytestmark = [pytest.mark.sampled(among="Spark drivers"), pytest.mark.airflow, pytest.mark.spark, pytest.mark.slow]


@ft.job
class Totals:
    def __init__(self, least: int = 0) -> None:
        self.least = least

    output_mode = "update"

    def transform(self, spark: Any, sources: Any) -> Any:
        from pyspark.sql import functions as F

        kept = sources["orders"].where(F.col("amount") >= self.least)
        return kept.groupBy("customer").agg(F.sum("amount").alias("total"))

    def split(self, batch: Any) -> Any:
        return {"totals": batch, "large": batch.where("total > 10")}


def _trial(folder: Path, **arguments: Any) -> JobTrial:
    schema = {"orders": "customer string, amount bigint"}
    return JobTrial(folder, job=Totals, sources=schema, sinks=["totals", "large"], **arguments)


def test_each_run_goes_on_and_its_rows_are_told(
    tmp_path: Path, sessions: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path / "home"))
    with sessions_in(sessions):
        trial = _trial(tmp_path, job_args={"least": 2})
        assert trial.rows("totals") == []
        trial.add("orders", [{"customer": "Ann", "amount": 4}, {"customer": "Ann", "amount": 1}])
        assert trial.run() == {"totals": [{"customer": "Ann", "total": 4}], "large": []}
        trial.add("orders", [{"customer": "Ann", "amount": 8}])
        found = trial.run()
    assert found["totals"] == [{"customer": "Ann", "total": 4}, {"customer": "Ann", "total": 12}]
    assert found["large"] == [{"customer": "Ann", "total": 12}]


def test_a_mistake_in_the_job_is_raised_with_its_line(
    tmp_path: Path, sessions: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path / "home"))
    with sessions_in(sessions):
        trial = _trial(tmp_path, job_args={"least": "a"})
        trial.add("orders", [{"customer": "Ann", "amount": 4}])
        with raises(JobError, "job_failed", job="test_job_trial.py:Totals") as caught:
            trial.run()
        assert caught.error and "CAST_INVALID_INPUT" in caught.error.what


TESTS = """
import airflow_ft as ft

@ft.job
def transform(spark, sources):
    return sources["orders"].where("amount > 10")

def test_two_trials_know_nothing_of_each_other(job_trial, tmp_path):
    schema = {"orders": "id bigint, amount double"}
    first, second = (job_trial(job=transform, sources=schema, sinks=["large"]) for _ in range(2))
    first.add("orders", [{"id": 1, "amount": 5.0}, {"id": 2, "amount": 20.0}])
    assert first.run() == {"large": [{"id": 2, "amount": 20.0}]}
    assert second.rows("large") == [] and not list(tmp_path.iterdir())
"""


def test_the_fixture_is_there_for_whoever_has_the_package(tmp_path: Path) -> None:
    """With the entry point of setup.cfg, whichever one this environment was installed with."""
    setup = ConfigParser()
    setup.read(Path(ft.__file__).parents[1] / "setup.cfg")
    name, _, module = setup["options.entry_points"]["pytest11"].strip().partition(" = ")
    assert name == "airflow_ft"
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_orders.py").write_text(TESTS)
    variables = {
        **{n: v for n, v in os.environ.items() if not n.startswith(("AIRFLOW", "PYTEST_"))},
        "AIRFLOW_HOME": str(tmp_path / "home"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "TMPDIR": str(tmp_path),
    }
    command = [sys.executable, "-m", "pytest", "-p", module, "-q", "-p", "no:cacheprovider", str(tmp_path / "tests")]
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout + done.stderr
