"""The demonstration itself with fewer flights: real Airflow, Spark, Kafka and MariaDB, and real kills."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tools.servers import processes

PROJECT = Path(__file__).resolve().parents[2]
FLIGHTS = 150_000  # so that the rows of a delivery take long enough to be met on a fast machine

pytestmark = [pytest.mark.server, pytest.mark.airflow, pytest.mark.spark, pytest.mark.chaos, pytest.mark.slow]


def command(folder: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "tools.demo", "--flights", str(FLIGHTS), "--folder", str(folder), *more]


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in ("KEEP", "REPORT")}


@pytest.mark.release
@pytest.mark.timeout(900)
def test_every_flight_arrives_once_though_processes_are_killed(tmp_path: Path) -> None:
    tmp_path.chmod(0o711)
    report = tmp_path / "report.json"
    finished = subprocess.run(
        command(tmp_path / "demo", "--report", str(report)),
        cwd=PROJECT,
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 0, finished.stdout[-5000:] + finished.stderr[-2000:]
    found = json.loads(report.read_text())
    assert found["exact"] is True
    assert found["rows_read"] == found["mysql"]["found"] == FLIGHTS
    assert found["kafka_read_committed"]["found"] > 2000
    assert found["checkpoints_confirmed"] >= 6
    assert found["deliveries"] >= 3
    assert [kill["process"] for kill in found["kills"] if kill["counts"]] == ["Spark driver", "commit task"]
    assert "in the middle of INSERT INTO" in finished.stdout
    assert "EXACT" in finished.stdout


@pytest.mark.release
@pytest.mark.timeout(1200)
def test_every_system_is_exact_though_processes_are_killed(tmp_path: Path) -> None:
    tmp_path.chmod(0o711)
    report = tmp_path / "report.json"
    copies = ["iceberg", "paimon", "hive", "redis", "hbase", "cassandra"]
    more = ["--sinks", ",".join(copies), "--report", str(report), "--flights", "100000"]
    finished = subprocess.run(
        command(tmp_path / "demo", *more), cwd=PROJECT, env=environment(), capture_output=True, text=True
    )
    assert finished.returncode == 0, finished.stdout[-5000:] + finished.stderr[-2000:]
    found = json.loads(report.read_text())
    assert found["exact"] is True
    assert found["mysql"]["found"] == 100_000
    assert {name: copy["found"] for name, copy in found["copies"].items()} == dict.fromkeys(copies, 100_000)
    assert found["promises"] == {
        "mysql": "ATOMIC",
        "kafka": "REDO",
        **dict.fromkeys(copies[:3], "ATOMIC"),
        **dict.fromkeys(copies[3:], "IDEMPOTENT"),
    }
    steps = [kill["step"].partition(",")[0] for kill in found["kills"] if kill["counts"]]
    assert steps == ["flights.stage", "flights.commit.mysql_default", "flights.commit.redis_default"]


@pytest.mark.release
@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_demonstration_leaves_no_process_behind(number: signal.Signals, tmp_path: Path) -> None:
    tmp_path.chmod(0o711)
    log = (tmp_path / "log").open("w+")
    demo = subprocess.Popen(
        command(tmp_path / "demo"), cwd=PROJECT, env=environment(), stdout=log, stderr=log, start_new_session=True
    )
    deadline = time.monotonic() + 120
    while len(processes.tree(demo.pid)) < 8:  # Airflow's components, Kafka and MariaDB
        assert demo.poll() is None, (tmp_path / "log").read_text()
        assert time.monotonic() < deadline, (tmp_path / "log").read_text()
        time.sleep(0.05)
    family = processes.tree(demo.pid)
    os.kill(demo.pid, number)
    assert demo.wait(60) == (130 if number is signal.SIGINT else -number)
    assert processes.await_end(family, 60)
    log.close()
