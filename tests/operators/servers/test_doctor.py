from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_ft.operators.doctor import DoctorOperator
from airflow_ft.sources import FileSource
from tests.operators.declared import spec
from tests.raising import raises
from tools.servers import Database

pytestmark = pytest.mark.airflow

Make = Callable[..., DoctorOperator]


@pytest.fixture
def make(tmp_path: Path, mariadb_database: Database, monkeypatch: pytest.MonkeyPatch) -> Make:
    server: Any = mariadb_database.server
    login = f"{server.user}:{quote(server.password)}@{server.host}:{server.port}"
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", f"mysql://{login}/{mariadb_database.name}")
    mariadb_database.sql("CREATE TABLE t (id BIGINT)")
    module = tmp_path / "dags" / "jobs" / "orders.py"
    module.parent.mkdir(parents=True)
    module.write_text("raise RuntimeError('imported')\n")
    monkeypatch.syspath_prepend(tmp_path / "dags")

    def operator(folder: Path, **arguments: Any) -> DoctorOperator:
        files = {"files": FileSource(path=str(folder), schema="id bigint")}
        declared = spec(store=f"sqlite:///{tmp_path}/ft.db", wal_root=str(tmp_path), sources=files)
        return DoctorOperator(task_id="doctor", spec=declared, **arguments)

    return operator


def test_what_is_well_is_its_result(make: Make, tmp_path: Path) -> None:
    checks = make(tmp_path).execute({})  # type: ignore[arg-type]
    found = {(check["subject"], check["check"]): check["verdict"] for check in checks}
    assert found["source files", "folder"] == "ok"
    assert found["connection shop", "connect"] == "ok"
    assert found["job", "module"] == "ok"
    assert {"spark", "pipeline orders", "connection shop"} <= {subject for subject, _ in found}


def test_a_problem_fails_the_task_for_good(make: Make, tmp_path: Path) -> None:
    with raises(AirflowFailException, "problems_found", pipeline="orders", checks=["folder"]):
        make(tmp_path / "nothing").execute({})  # type: ignore[arg-type]


def test_a_job_that_is_nowhere_is_a_problem(make: Make, tmp_path: Path) -> None:
    operator = make(tmp_path)
    (tmp_path / "dags" / "jobs" / "orders.py").unlink()
    with raises(AirflowFailException, "problems_found", pipeline="orders", checks=["module"]):
        operator.execute({})  # type: ignore[arg-type]


def test_a_warning_fails_it_only_when_asked_for(make: Make, tmp_path: Path) -> None:
    assert any(check["verdict"] == "warning" for check in make(tmp_path).execute({}))  # type: ignore[arg-type]
    with raises(AirflowFailException, "problems_found", pipeline="orders"):
        make(tmp_path, fail_on_warning=True).execute({})  # type: ignore[arg-type]
