"""The tutorial: what it has one write is written, what it has one type is typed, and what it shows comes out."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_ft.store.sqlite import SqliteStore

pytestmark = [pytest.mark.sampled(among="Spark drivers"), pytest.mark.airflow, pytest.mark.spark, pytest.mark.slow]

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "tutorial.md").read_text()
WRITE, RUN, KILL, AIRFLOW = "Write the pipeline", "Run it without Airflow", "Kill it", "Run it in Airflow"
NOT_TYPED = (". venv", "airflow standalone", "airflow dags unpause", "airflow dags trigger")
"""What needs a running Airflow, which other tests have."""


def section(title: str) -> str:
    """A chapter of the page."""
    found = PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    assert found, title
    return found


def blocks(text: str, kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", text, re.DOTALL)


def typed(folder: Path, *titles: str) -> str:
    """What the commands of these chapters say, typed into one shell."""
    lines = [line for title in titles for block in blocks(section(title), "console") for line in block.splitlines()]
    lines = [line for line in lines if not line.startswith(NOT_TYPED)]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
    clean["PATH"] = f"{Path(sys.executable).parent}:{clean['PATH']}"
    clean["AIRFLOW__AIRFLOW_FT__LEASE_SECONDS"] = "5"  # else the killed run is waited for longer
    script = "set -euo pipefail\n" + "\n".join(lines)
    done = subprocess.run(  # `timeout` ends all that the script has started
        ["timeout", "--kill-after=10", "300", "bash", "-c", script],
        cwd=folder, env=clean, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_from_an_empty_folder_to_a_confirmed_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "dags").mkdir()
    [pipeline] = blocks(section(WRITE), "python")
    (tmp_path / "dags" / "orders.py").write_text(pipeline)
    plain = (RUN, KILL)
    out = typed(tmp_path, *plain, AIRFLOW)
    shown = [text.strip() for title in plain for text in blocks(section(title), "text")]
    assert len(shown) == 2 and all(text in out for text in shown), out
    runs = [ast.literal_eval(line) for line in out.splitlines() if line.startswith("{'numbers'")]
    assert [run["numbers"] for run in runs[:2]] == [[1], []], "the second run has found nothing new"
    delivered = [number for run in runs for number in (*run["recovered"], *run["numbers"])]
    assert delivered == [1, 2] or (delivered == [1] and runs[-1]["latest"] == 2), "the kill may come at any moment"
    assert "COMPLETED" in out, "`airflow ft` shows what was delivered"
    with SqliteStore(tmp_path / "airflow" / "airflow_ft" / "ft.db") as store:
        assert not store.undelivered("orders")
