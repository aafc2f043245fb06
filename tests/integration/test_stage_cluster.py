"""Staging on a standalone cluster of Spark: a master and workers of their own, executors in processes of their own."""

import contextlib
import os
import signal
import subprocess
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from airflow_ft.protocol.errors import StageError
from airflow_ft.sources import FileSource
from airflow_ft.spark.session.home import spark_home
from tests.integration.holding import SECONDS
from tests.integration.stage_world import PIPELINE, StageWorld, world
from tests.raising import raises
from tools.servers import Hdfs
from tools.servers.processes import free_port

pytestmark = [pytest.mark.release, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1200)]

_TWO_EXECUTORS = {
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.locality.wait": "0s",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
}
"""Begin only when both are there, each with a task at once."""


@pytest.fixture
def pipeline(tmp_path: Path) -> Iterator[StageWorld]:
    yield from world(tmp_path)


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    """The URL of a master with one worker, both on loopback."""
    with _cluster(tmp_path, 1) as url:
        yield url


class Cluster:
    """A master, and workers with a folder each: `worker-0`, ... All end with the block.

    settings: of Spark, for these servers. recovers: after a restart the master knows its workers and applications.
    """

    def __init__(
        self, folder: Path, workers: int, settings: Mapping[str, str] | None = None, *, recovers: bool = False
    ) -> None:
        self._folder, self._port = folder, free_port()
        self.url = f"spark://127.0.0.1:{self._port}"
        self._pages = [free_port() for _ in range(1 + workers)]
        given = dict(settings or {})
        if recovers:
            (kept := folder / "master").mkdir()
            given |= {"spark.deploy.recoveryMode": "FILESYSTEM", "spark.deploy.recoveryDirectory": str(kept)}
        options = " ".join(f"-D{name}={value}" for name, value in given.items())
        self._environment = {
            **os.environ,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_MASTER_OPTS": options,
            "SPARK_WORKER_OPTS": options,
        }
        self.master: subprocess.Popen[bytes] | None = None
        self.workers: list[subprocess.Popen[bytes]] = []

    def start_master(self) -> None:
        self.master = self._start("Master", self._pages[0], "--port", str(self._port))

    def start_worker(self) -> None:
        number = len(self.workers)
        own = ["-c", "1", "-m", "1g", "-d", str(self._folder / f"worker-{number}")]
        self.workers.append(self._start("Worker", self._pages[1 + number], self.url, *own))

    def kill_master(self) -> None:
        assert self.master is not None
        _end(self.master)

    def kill_worker(self, number: int) -> None:
        """With its executors, as a machine that is gone."""
        worker = self.workers[number]
        worker.send_signal(signal.SIGSTOP)  # it starts none in their place
        for pid in _executors(self._folder / f"worker-{number}"):
            os.kill(pid, signal.SIGKILL)
        _end(worker)

    def __enter__(self) -> "Cluster":
        try:
            self.start_master()
            for _ in self._pages[1:]:
                self.start_worker()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in (*reversed(self.workers), self.master):
            if process is not None:
                _end(process)

    def _start(self, name: str, page: int, *arguments: str) -> "subprocess.Popen[bytes]":
        log = self._folder / f"{name}.log"
        program = [str(spark_home() / "bin" / "spark-class"), f"org.apache.spark.deploy.{name.lower()}.{name}"]
        with log.open("ab") as output:
            process = subprocess.Popen(
                [*program, "--host", "127.0.0.1", "--webui-port", str(page), *arguments],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            _await_page(page, process, log)
        except BaseException:
            _end(process)
            raise
        return process


def _end(process: "subprocess.Popen[bytes]") -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@contextlib.contextmanager
def _cluster(tmp_path: Path, workers: int) -> Iterator[str]:
    with Cluster(tmp_path, workers) as cluster:
        yield cluster.url


def _await_page(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + SECONDS
    while True:
        assert process.poll() is None and time.monotonic() < deadline, log.read_text()
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5),
        ):
            return
        time.sleep(0.1)


def _executors(folder: Path) -> list[int]:
    """The processes of executors that work in a worker's folder."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            pid = int(entry.name)
            at = str((entry / "cwd").readlink())
            if at.startswith(f"{folder}/app-") and b"CoarseGrainedExecutorBackend" in (entry / "cmdline").read_bytes():
                found.append(pid)
    return found


@pytest.mark.parametrize("killed", [1, 2])
def test_executors_die_with_a_batch_that_they_keep(pipeline: StageWorld, tmp_path: Path, killed: int) -> None:
    """One of two: its parts are with the other. Both: the batch is computed again, by the same driver."""
    pipeline.add_file("f", [{"k": k, "n": n} for n in range(10) for k in "abcd"])
    there, go = tmp_path / "there", tmp_path / "go"
    request = pipeline.request(
        "stage_jobs:Waiting",
        {"numbers": FileSource(path=str(pipeline.input), schema="k string, n bigint")},
        conf={
            "spark.executor.memory": "512m",
            "spark.executor.cores": "1",
            "spark.driver.host": "127.0.0.1",
            "spark.sql.shuffle.partitions": "2",
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
        },
        job_arguments={"there": str(there), "go": str(go)},
    )
    with _cluster(tmp_path, 2) as master, ThreadPoolExecutor(1) as pool:
        staged = pool.submit(pipeline.complete, replace(request, master=master))
        deadline = time.monotonic() + 240
        while not there.exists():
            assert not staged.done() and time.monotonic() < deadline, staged.result()
            time.sleep(0.1)
        found = [each for number in range(2) for each in _executors(tmp_path / f"worker-{number}")]
        assert len(found) == 2
        for pid in found[:killed]:
            os.kill(pid, signal.SIGKILL)
        go.touch()
        result = staged.result(timeout=300)
    assert result.rows == {"orders": 40} and len(pipeline.published()) == 1
    again = [line for line in pipeline.lines if line.startswith("ExecutorLostError")]
    assert len(again) == killed - 1 and all("executor 0 on 127.0.0.1" in line for line in again)
    assert {(row["k"], row["n"]) for row in pipeline.all_rows()} == {(k, n) for n in range(10) for k in "abcd"}


def test_a_replaced_executor_that_wakes_up_changes_nothing(pipeline: StageWorld, tmp_path: Path) -> None:
    """It is stopped with its worker while a processor runs, between the load and the commit of its state."""
    for n in range(3):
        pipeline.add_file(f"f{n}", [{"k": k, "n": n} for k in "abcdefgh"])
    (held := tmp_path / "held").mkdir()
    request = pipeline.request(
        "stage_jobs:Held",
        {"numbers": FileSource(path=str(pipeline.input), schema="k string, n bigint", max_files_per_trigger=1)},
        conf={
            **_TWO_EXECUTORS,
            "spark.executor.heartbeatInterval": "3s",
            "spark.network.timeout": "20s",
            "spark.network.timeoutInterval": "2s",
            "spark.storage.blockManagerHeartbeatTimeoutMs": "20000",
        },
        job_arguments={"folder": str(held)},
    )
    with _cluster(tmp_path, 2) as master, ThreadPoolExecutor(1) as pool:
        staged = pool.submit(pipeline.complete, replace(request, master=master))

        def until(what: Callable[[], bool], seconds: float) -> None:
            deadline = time.monotonic() + seconds
            while not what():
                assert not staged.done() and time.monotonic() < deadline, pipeline.lines[-5:]
                time.sleep(0.1)

        until(lambda: len(list(held.glob("there-1-*"))) == 2, 300)
        [executor] = _executors(tmp_path / "worker-0")
        stopped = [*_below(executor), executor]
        worker = psutil.Process(executor).ppid()
        try:
            for pid in (worker, *stopped):
                os.kill(pid, signal.SIGSTOP)
            (held / "go-1").touch()
            until(lambda: len(pipeline.published()) == 2, 300)
            before = _state_files(pipeline.root)
            for pid in stopped:
                os.kill(pid, signal.SIGCONT)
            until(lambda: not _is_alive(executor), 120)  # it has learned that it was given up
            after = _state_files(pipeline.root)
            assert {path: after[path] for path in before if path in after} == before
        finally:
            os.kill(worker, signal.SIGCONT)
        (held / "go-2").touch()
        assert staged.result(timeout=300).rows == {"orders": 24}
    assert pipeline.store.pipeline(PIPELINE).base is not None
    [commit] = pipeline.root.glob(f"{PIPELINE}/spark/*/commits/2")
    assert commit.read_text().startswith("v2\n"), "a new pipeline on a cluster"
    totals = dict.fromkeys("abcdefgh", 0.0)
    for row in pipeline.all_rows():
        totals[row["k"]] += row["added"]
        assert row["total"] == pytest.approx(totals[row["k"]])


def test_state_that_an_executor_took_along_is_not_kept(pipeline: StageWorld, tmp_path: Path) -> None:
    """Its task has ended, and is computed again elsewhere, with other values, for the readers of its rows."""
    for n in range(3):
        pipeline.add_file(f"f{n}", [{"k": k, "n": n} for k in "abcdefgh"])
    (held := tmp_path / "held").mkdir()
    request = pipeline.request(
        "stage_jobs:Shuffled",
        {"numbers": FileSource(path=str(pipeline.input), schema="k string, n bigint", max_files_per_trigger=1)},
        conf={
            **_TWO_EXECUTORS,
            "spark.shuffle.readHostLocalDisk": "false",  # as if each had a machine of its own
        },
        job_arguments={"folder": str(held)},
    )
    with _cluster(tmp_path, 2) as master, ThreadPoolExecutor(1) as pool:
        staged = pool.submit(pipeline.complete, replace(request, master=master))
        deadline = time.monotonic() + 300
        while len(list(held.glob("there-*"))) < 2:
            assert not staged.done() and time.monotonic() < deadline, pipeline.lines[-5:]
            time.sleep(0.1)
        worker = Path((held / "at").read_text()).relative_to(tmp_path).parts[0]
        [executor] = _executors(tmp_path / worker)
        os.kill(executor, signal.SIGKILL)
        (held / "go").touch()
        assert staged.result(timeout=300).rows == {"orders": 24}
    totals = dict.fromkeys("abcdefgh", 0.0)
    for row in pipeline.all_rows():
        totals[row["k"]] += row["added"]
        assert row["total"] == pytest.approx(totals[row["k"]])


def _is_alive(pid: int) -> bool:
    """Return whether a process still runs; one whose parent is stopped stays as a zombie."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _below(pid: int) -> list[int]:
    return [each.pid for each in psutil.Process(pid).children(recursive=True)]


def _state_files(root: Path) -> dict[str, tuple[int, int]]:
    """Inode and time of each file of state."""
    found = {}
    for path in root.glob("*/spark/*/state/**/*"):
        with contextlib.suppress(OSError):
            if path.suffix in (".changelog", ".zip"):
                found[str(path)] = path.stat().st_ino, path.stat().st_mtime_ns
    return found


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


def test_two_executors_keep_log_and_state_on_hdfs(pipeline: StageWorld, hdfs: Hdfs, tmp_path: Path) -> None:
    """The driver dies when a batch is committed and not published; both executors have written into its location."""
    pipeline.root = f"{hdfs.url}/{uuid.uuid4().hex}"  # type: ignore[assignment]
    for n in range(2):
        pipeline.add_file(f"f{n}", [{"k": k, "n": 10 * n + i} for i in range(2) for k in "abcd"])
    sources = {"numbers": FileSource(path=str(pipeline.input), schema="k string, n bigint", max_files_per_trigger=1)}
    conf = {
        "spark.executor.memory": "512m",
        "spark.executor.cores": "1",
        "spark.driver.host": "127.0.0.1",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
        "spark.sql.shuffle.partitions": "2",
        "spark.hadoop.dfs.replication": "1",
    }
    arguments = {"point": "after commit", "batch": 1, "once": str(tmp_path / "once")}
    with _cluster(tmp_path, 2) as master:
        more = {"master": master, "conf": conf, "job_arguments": arguments}
        with raises(StageError, "driver_ended", signal="SIGKILL"):
            pipeline.complete(pipeline.request("stage_jobs:Crashing", sources, **more))
        assert [c.number for c in pipeline.published()] == [1]
        pipeline.complete(pipeline.request("stage_jobs:Crashing", sources, **more))
        for number in range(2):
            assert len(list((tmp_path / f"worker-{number}").glob("app-*/*"))) >= 2, "an executor for each driver"
    totals, found = dict.fromkeys("abcd", 0.0), []
    for row in pipeline.all_rows():
        totals[row["k"]] += row["added"]
        found.append((row["k"], row["n"]))
        assert row["total"] == pytest.approx(totals[row["k"]])
    assert sorted(found) == sorted((k, 10 * n + i) for n in range(2) for i in range(2) for k in "abcd")
