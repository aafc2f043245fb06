"""`airflow_ft.run`: files into SQLite in a plain process, which is killed anywhere; exactly once as in Airflow."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.integration.plain_run import PLACES

pytestmark = [
    pytest.mark.sampled(among="Spark drivers"),
    pytest.mark.airflow,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(900),
]
ROOT = Path(__file__).parents[2]


class Plain:
    """A folder with files, a SQLite file, and processes that run the pipeline."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.home = folder, folder / "home"
        (folder / "in").mkdir()
        shop = {"conn_type": "sqlite", "host": str(folder / "shop.db")}
        kept = {n: v for n, v in os.environ.items() if not n.startswith("AIRFLOW") and n != "PYTEST_CURRENT_TEST"}
        self.variables = {
            **kept,
            "AIRFLOW_HOME": str(self.home),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__AIRFLOW_FT__LEASE_SECONDS": "3",
            "AIRFLOW_CONN_SHOP": json.dumps(shop),
        }
        self._rows = 0

    def add(self) -> None:
        """Two more rows, in a file of their own."""
        lines = [json.dumps({"id": self._rows + n}) for n in (1, 2)]
        hidden = self.folder / f"{self._rows}.json"
        hidden.write_text("\n".join(lines) + "\n")
        hidden.rename(self.folder / "in" / hidden.name)
        self._rows += 2

    def start(self, run_id: str = "", place: str = "") -> subprocess.Popen[str]:
        """A process; `place`: where it kills itself."""
        command = [sys.executable, "-m", "tests.integration.plain_run", str(self.folder), run_id, place]
        return subprocess.Popen(
            command, cwd=ROOT, env=self.variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def run(self, run_id: str = "") -> dict[str, Any]:
        """What a whole run returns."""
        return _result(self.start(run_id))

    def killed(self, run_id: str, place: str) -> None:
        """A run that dies there."""
        process = self.start(run_id, place)
        _, errors = process.communicate(timeout=300)
        assert process.returncode == -signal.SIGKILL, errors

    def check(self) -> None:
        """Each row is there, once."""
        with closing(sqlite3.connect(self.folder / "shop.db")) as shop:
            found = {name: [n for (n,) in shop.execute(f"SELECT id FROM {name}")] for name in ("even", "odd")}
        assert {name: sorted(ids) for name, ids in found.items()} == {
            "even": list(range(2, self._rows + 1, 2)),
            "odd": list(range(1, self._rows + 1, 2)),
        }


def _result(process: subprocess.Popen[str]) -> dict[str, Any]:
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    return found


@pytest.fixture
def plain(tmp_path: Path) -> Plain:
    return Plain(tmp_path)


def test_a_run_without_an_airflow_database_returns_its_results(plain: Plain) -> None:
    for _ in range(2):
        plain.add()
    first = plain.run("monday")
    assert (first["numbers"], first["latest"], first["rows"], first["set_aside"]) == ([1, 2], 2, 4, {})
    plain.check()
    plain.add()
    assert plain.run("monday") == first, "a run that is finished does nothing again"
    assert plain.run() == {**first, "numbers": [3], "count": 1, "first": 3, "last": 3, "latest": 3, "rows": 2}
    plain.check()
    assert not (plain.home / "airflow.db").exists()


@pytest.mark.parametrize("again", ["the same run", "another run"])
@pytest.mark.parametrize("places", [PLACES[:4], PLACES[4:]], ids=["staging", "delivering"])
def test_what_dies_anywhere_is_gone_on_with(plain: Plain, places: Sequence[str], again: str) -> None:
    results = []
    for number, place in enumerate(places):
        plain.add()
        plain.killed(f"run-{number}", place)
        if again == "the same run":
            results.append(plain.run(f"run-{number}"))
            plain.check()
    if again == "another run":
        results.append(plain.run())
        plain.check()
        if places[-1] == "after confirm":  # it had counted them, and died before it returned
            results.append(plain.run(f"run-{len(places) - 1}"))
        assert sum(each["recovered_rows"] for each in results) > 0
    assert sum(each["rows"] for each in results) == 2 * len(places), "each row counts in one result"


@pytest.mark.parametrize("run_ids", [("", ""), ("monday", "monday")], ids=["two runs", "one run twice"])
def test_two_at_once_take_turns(plain: Plain, run_ids: Sequence[str]) -> None:
    for _ in range(2):
        plain.add()
    results = [_result(process) for process in [plain.start(run_id) for run_id in run_ids]]
    plain.check()
    numbers = [result["numbers"] for result in results]
    assert sorted(numbers) == ([[], [1, 2]] if run_ids[0] == "" else [[1, 2], [1, 2]])
