"""Airflow's database says which runs can continue."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from airflow_ft.admin import dag_runs
from airflow_ft.protocol.model import RunKey

pytestmark = pytest.mark.airflow


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[sqlite3.Connection]:
    path = tmp_path / "airflow.db"
    engine = create_engine(f"sqlite:///{path}")

    @contextmanager
    def session() -> Iterator[Session]:
        with Session(engine) as opened:
            yield opened

    monkeypatch.setattr(dag_runs, "create_session", session)
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.executescript(
            "CREATE TABLE dag (dag_id TEXT, is_stale BOOLEAN, is_paused BOOLEAN);"
            "CREATE TABLE dag_run (dag_id TEXT, run_id TEXT, state TEXT);"
            "CREATE TABLE task_instance (dag_id TEXT, run_id TEXT, task_id TEXT, state TEXT);"
            "INSERT INTO dag VALUES ('stale', 1, 0), ('kept', 0, 0);"
            "INSERT INTO dag_run VALUES ('stale', 'r', 'running'), ('kept', 'r', 'running'), ('kept', 's', 'failed');"
            "INSERT INTO task_instance VALUES ('stale', 'r', 'stage', 'running'), ('stale', 'r', 'commit', NULL);"
        )
        yield db
    engine.dispose()


def test_a_run_of_a_dag_with_an_import_error_still_runs(database: sqlite3.Connection) -> None:
    """An import error makes the DAG stale at once, and its running tasks continue."""
    runs = {RunKey("stale", "r"), RunKey("kept", "r"), RunKey("kept", "s"), RunKey("deleted", "r")}
    assert dag_runs.ended(runs) == {RunKey("kept", "s"), RunKey("deleted", "r")}


def test_a_run_is_stranded_when_only_its_dag_is_gone(database: sqlite3.Connection) -> None:
    assert not dag_runs.is_stranded(RunKey("stale", "r"))
    database.execute("UPDATE task_instance SET state = 'failed' WHERE task_id = 'stage'")
    assert dag_runs.is_stranded(RunKey("stale", "r"))
    assert not dag_runs.is_stranded(RunKey("kept", "r"))


def test_a_scheduled_task_begins_unless_its_dag_is_paused(database: sqlite3.Connection) -> None:
    database.execute("UPDATE task_instance SET state = 'scheduled' WHERE task_id = 'stage'")
    assert not dag_runs.is_stranded(RunKey("stale", "r"))
    database.execute("UPDATE dag SET is_paused = 1")
    assert dag_runs.is_stranded(RunKey("stale", "r"))


def test_no_run_is_stranded_where_airflow_is_not_known(database: sqlite3.Connection) -> None:
    database.execute("DROP TABLE task_instance")
    assert not dag_runs.is_stranded(RunKey("stale", "r"))
