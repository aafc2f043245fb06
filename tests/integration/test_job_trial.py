"""`airflow_ft.testing.jobs.JobTrial`: a job's own test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import airflow_ft as ft
from airflow_ft.core.errors import JobError
from airflow_ft.testing.jobs import JobTrial
from tests.integration.stage_world import sessions_in

pytestmark = [pytest.mark.rotating(among="Spark drivers"), pytest.mark.airflow, pytest.mark.spark, pytest.mark.slow]


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
        with pytest.raises(JobError, match=r"job test_job_trial.py:Totals .*CAST_INVALID_INPUT"):
            trial.run()
