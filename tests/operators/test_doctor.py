from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_ft.operators.doctor import DoctorOperator
from airflow_ft.sources import FileSource

pytestmark = pytest.mark.airflow


def operator(tmp_path: Path, **arguments: Any) -> DoctorOperator:
    return DoctorOperator(
        task_id="doctor",
        pipeline="orders",
        store=f"sqlite:///{tmp_path}/ft.db",
        wal_root=str(tmp_path),
        **arguments,
    )


def test_what_is_well_is_its_result(tmp_path: Path) -> None:
    source = FileSource(path=str(tmp_path), schema="id bigint")
    checks = operator(tmp_path, sources={"files": source}).execute({})  # type: ignore[arg-type]
    assert {"subject": "source files", "check": "folder", "verdict": "ok"}.items() <= next(
        check for check in checks if check["subject"] == "source files"
    ).items()


def test_a_problem_fails_the_task_for_good(tmp_path: Path) -> None:
    source = FileSource(path=f"{tmp_path}/nothing", schema="id bigint")
    with pytest.raises(AirflowFailException, match="source files: folder: there is nothing"):
        operator(tmp_path, sources={"files": source}).execute({})  # type: ignore[arg-type]


def test_a_warning_fails_it_only_when_asked_for(tmp_path: Path) -> None:
    assert any(check["verdict"] == "warning" for check in operator(tmp_path).execute({}))  # type: ignore[arg-type]
    with pytest.raises(AirflowFailException, match="it never ran"):
        operator(tmp_path, fail_on_warning=True).execute({})  # type: ignore[arg-type]
