"""Folders beside the interpreter's own."""

from __future__ import annotations

import sys
from pathlib import Path

from airflow_ft.spark.session.home import added_folders


def test_the_interpreters_own_folders_are_left_out() -> None:
    own = [entry for entry in sys.path if entry.startswith((f"{sys.prefix}/lib", f"{sys.base_prefix}/lib"))]
    assert own and added_folders([*own, str(Path(sys.executable).parent)]) == []


def test_dags_below_the_prefix_of_python_are_kept() -> None:
    """Python in /usr/local and DAGs in /usr/local/airflow, or a virtual environment that is Airflow's home."""
    dags = [f"{prefix}{rest}" for prefix in (sys.prefix, sys.base_prefix) for rest in ("/airflow/dags", "-2/dags")]
    assert added_folders(dags) == dags
