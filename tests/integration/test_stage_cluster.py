"""Staging on a standalone cluster of Spark: a master and a worker of their own, executors in processes of their own."""

import contextlib
import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_ft.sources import FileSource
from airflow_ft.spark.submit import spark_home
from tests.integration.stage_world import StageWorld, world
from tools.servers.processes import free_port

pytestmark = [pytest.mark.release, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def pipeline(tmp_path: Path) -> Iterator[StageWorld]:
    yield from world(tmp_path)


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    """The URL of a master with one worker, both on loopback."""
    port, page, worker_page = free_port(), free_port(), free_port()
    url = f"spark://127.0.0.1:{port}"
    host = ["--host", "127.0.0.1"]
    commands = [
        ["Master", *host, "--port", str(port), "--webui-port", str(page)],
        ["Worker", url, *host, "-c", "1", "-m", "1g", "-d", str(tmp_path), "--webui-port", str(worker_page)],
    ]
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "256m"}
    started: list[subprocess.Popen[bytes]] = []
    try:
        for (name, *arguments), known in zip(commands, (page, worker_page), strict=True):
            with (tmp_path / f"{name}.log").open("wb") as log:
                command = [str(spark_home() / "bin" / "spark-class"), f"org.apache.spark.deploy.{name.lower()}.{name}"]
                started.append(
                    subprocess.Popen(
                        [*command, *arguments],
                        env=environment,
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                    )
                )
            _await_page(known, started[-1], tmp_path / f"{name}.log")
        yield url
    finally:
        for process in reversed(started):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _await_page(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 90
    while True:
        assert process.poll() is None and time.monotonic() < deadline, log.read_text()
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5),
        ):
            return
        time.sleep(0.1)


def test_executors_of_a_cluster_compute_a_stateful_job(pipeline: StageWorld, master: str) -> None:
    """The job lies beside the DAG, where only the task's own path finds it: executors find it by the same path."""
    for n in range(2):
        pipeline.add_file(f"f{n}", [{"k": "a", "n": n}])
    request = pipeline.request(
        "stage_jobs:Crashing",
        {"numbers": FileSource(path=str(pipeline.input), schema="k string, n bigint", max_files_per_trigger=1)},
        master=master,
        conf={"spark.executor.memory": "512m", "spark.driver.host": "127.0.0.1", "spark.sql.shuffle.partitions": "1"},
    )
    result = pipeline.complete(request)
    assert result.rows == {"orders": 2}
    total = 0.0
    for row in pipeline.all_rows():
        total += row["added"]
        assert row["total"] == pytest.approx(total)
