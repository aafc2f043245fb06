"""A small part of `make chaos`: one kill of the whole demonstration's job, in Spark, which deliveries do not have.

What can happen after staging is tried in `test_deliveries`; other kills of whole pipelines are left to `make chaos`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tools.servers import processes

PROJECT = Path(__file__).resolve().parents[3]
SEED = 4638

pytestmark = [pytest.mark.server, pytest.mark.airflow, pytest.mark.spark, pytest.mark.chaos, pytest.mark.slow]


def command(folder: Path, stage: str, *more: str) -> list[str]:
    chosen = ["--only", stage, "--seed", str(SEED), "--folder", str(folder)]
    return [sys.executable, "-m", "tests.chaos", *chosen, *more]


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in ("KILLS", "SEED", "REPORT")}


@pytest.mark.release
@pytest.mark.timeout(1800)
def test_a_kill_of_the_spark_driver_loses_and_doubles_nothing(tmp_path: Path) -> None:
    tmp_path.chmod(0o711)  # servers run as another user, who has to pass
    report = tmp_path / "report.json"
    driver = ["--kills", "1", "--kill", "Spark driver (JVM)", "--flights", "1200", "--report", str(report)]
    finished = subprocess.run(
        command(tmp_path / "chaos", "pipelines", *driver),
        cwd=PROJECT,
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 0, finished.stdout[-8000:] + finished.stderr[-2000:]
    found = json.loads(report.read_text())
    assert found["exact"] is True
    found = found["pipelines"]
    assert (found["lost"], found["duplicated"], found["foreign"], found["violations"]) == (0, 0, 0, [])
    assert [kill["fault"] for kill in found["kills"]] == ["Spark driver (JVM)"]
    assert found["flights"] >= 1200
    assert found["deliveries"] >= 2


@pytest.mark.release
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("stage", "processes_at_work"),
    [("pipelines", 8), ("deliveries", 4)],  # Airflow's components and servers; the servers alone
)
def test_an_interrupted_chaos_run_leaves_nothing_behind(tmp_path: Path, stage: str, processes_at_work: int) -> None:
    tmp_path.chmod(0o711)
    with (tmp_path / "log").open("w+") as log:
        chaos = subprocess.Popen(
            command(tmp_path / "chaos", stage),
            cwd=PROJECT,
            env=environment(),
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        deadline = time.monotonic() + 120
        while len(family := processes.tree(chaos.pid)) <= processes_at_work:
            assert chaos.poll() is None, (tmp_path / "log").read_text()
            assert time.monotonic() < deadline, (tmp_path / "log").read_text()
            time.sleep(0.05)
        os.kill(chaos.pid, signal.SIGINT)
        assert chaos.wait(180) == 130
        assert processes.await_end(family, 120)
    assert str(tmp_path) not in Path("/proc/mounts").read_text()
