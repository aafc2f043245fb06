"""How the end of a driver is shown."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from airflow_ft.spark.driver.ending import Ending
from airflow_ft.spark.driver.failures import InUserCode
from tests.spark.test_beginning import request


def test_an_exception_of_the_job_is_shown_once_and_by_its_name(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ending = Ending(request(), tmp_path / "report.json")
    try:
        try:
            {}["threshold"]
        except KeyError as error:
            raise InUserCode(str(error)) from error
    except InUserCode as error:
        ending.report(error)
    shown = "\n".join(logging.Formatter().format(record) for record in caplog.records)  # Spark's tests change caplog's
    assert "KeyError: 'threshold'" in shown and "InUserCode" not in shown
    assert shown.count("Traceback") == 1
    found = json.loads((tmp_path / "report.json").read_text())["error"]
    assert (found["type"], found["code"]) == ("JobError", "job_failed") and "InUserCode" not in found["what"]
