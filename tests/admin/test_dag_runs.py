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


def test_a_run_is_over_when_its_dag_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its state stays "running": the scheduler no longer looks at it."""
    path = tmp_path / "airflow.db"
    with closing(sqlite3.connect(path)) as db:
        db.executescript(
            "CREATE TABLE dag (dag_id TEXT, is_stale BOOLEAN);"
            "CREATE TABLE dag_run (dag_id TEXT, run_id TEXT, state TEXT);"
            "INSERT INTO dag VALUES ('renamed', 1), ('kept', 0);"
            "INSERT INTO dag_run VALUES ('renamed', 'r', 'running'), ('kept', 'r', 'running'), ('kept', 's', 'failed');"
        )
    engine = create_engine(f"sqlite:///{path}")

    @contextmanager
    def session() -> Iterator[Session]:
        with Session(engine) as opened:
            yield opened

    monkeypatch.setattr(dag_runs, "create_session", session)
    runs = {RunKey("renamed", "r"), RunKey("kept", "r"), RunKey("kept", "s"), RunKey("deleted", "r")}
    assert dag_runs.ended(runs) == runs - {RunKey("kept", "r")}
    engine.dispose()
