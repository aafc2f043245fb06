"""Staging on YARN, with log and state on HDFS: executors, machines, master and driver are killed."""

import json
import os
import signal
import sqlite3
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest

import airflow_ft as ft
from airflow_ft.protocol.errors import ConfigurationError, StageError
from airflow_ft.spark.session.home import spark_home
from airflow_ft.spark.session.yarn_archive import ARCHIVE, upload
from airflow_ft.spark.task.doctor import examine_spark
from tests.integration.holding import KEYS, ON_YARN, SECONDS, Holding
from tests.integration.stage_world import StageWorld, world
from tests.raising import raises
from tests.waiting import wait_for
from tools.servers import Hdfs, Yarn

pytestmark = [
    pytest.mark.release,
    pytest.mark.spark,
    pytest.mark.server,
    pytest.mark.slow,
    pytest.mark.timeout(2400),
]


@pytest.fixture
def pipeline(folder: Path, yarn: Yarn, hdfs: Hdfs, monkeypatch: pytest.MonkeyPatch) -> Iterator[StageWorld]:
    monkeypatch.setenv("HADOOP_CONF_DIR", str(yarn.configuration))
    yarn.start_nodes()
    for made in world(folder):
        made.root = f"{hdfs.url}/{uuid.uuid4().hex}"  # type: ignore[assignment]
        yield made


@pytest.fixture
def held(pipeline: StageWorld, folder: Path) -> Holding:
    return Holding(pipeline, folder, "yarn", ON_YARN)


def _kill(pids: list[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def _kill_executor(yarn: Yarn) -> None:
    _kill([yarn.executors()[0].pid])


def _kill_machine(yarn: Yarn) -> None:
    """One with an executor, and without the application master."""
    [master] = yarn.masters()
    yarn.kill_node(next(each.node for each in yarn.executors() if each.node != master.node))


def _kill_master(yarn: Yarn) -> None:
    _kill([each.pid for each in yarn.masters()])


def _kill_masters_machine(yarn: Yarn) -> None:
    [master] = yarn.masters()
    yarn.kill_node(master.node)


def _kill_machine_and_restart(yarn: Yarn) -> None:
    """The ResourceManager restarts, too, once it has told the application. The machine comes back without executor."""
    _kill_machine(yarn)
    wait_for(lambda: len(yarn.executors()) == 2, 120, "another executor begins")
    _restart(yarn)


@pytest.mark.parametrize(
    ("kill", "tries"),
    [
        (_kill_executor, 3),
        (_kill_machine, 3),
        (_kill_master, 4),
        (_kill_masters_machine, 4),
        (_kill_machine_and_restart, 3),
    ],
    ids=[
        "an executor",
        "a machine",
        "the application master",
        "the application master's machine",
        "a machine and the ResourceManager",
    ],
)
def test_a_stateful_job_continues_without(held: Holding, yarn: Yarn, kill: Callable[[Yarn], None], tries: int) -> None:
    """They are killed while Python workers hold loaded state; `tries`: workers that get there after that, at least."""
    held.add(0, 1, 2)
    with held.staged(held.request()) as staged:
        held.await_workers(staged, 1)
        kill(yarn)
        held.await_workers(staged, 1, tries)
        held.go(1, 2)
        assert staged.result(SECONDS).rows == {"orders": 3 * len(KEYS)}
    held.judge()


def test_a_stateful_job_survives_a_resource_manager_restart(held: Holding, yarn: Yarn) -> None:
    """It gives the application new executors afterwards."""
    held.add(0, 1, 2)
    with held.staged(held.request()) as staged:
        held.await_workers(staged, 1)
        _restart(yarn)
        _kill_executor(yarn)
        held.await_workers(staged, 1, 3)
        held.go(1, 2)
        staged.result(SECONDS)
    held.judge()


def test_a_retry_finishes_a_stage_whose_executor_yarn_forgot(held: Holding, yarn: Yarn) -> None:
    """The ResourceManager restarts before it has told the application of a lost machine, and so never does.

    Spark waits for `spark.network.timeout`. Then it continues without the executor, or loses its application master,
    which ends the application.
    """
    held.add(0, 1, 2)
    with held.staged(held.request(conf={"spark.network.timeout": "60s"})) as staged:
        held.await_workers(staged, 1)
        _kill_machine(yarn)
        _restart(yarn)
        held.go(1, 2)
        error = staged.exception(SECONDS)
    if error is not None:
        with raises(StageError, "spark_stopped"):
            raise error
        wait_for(lambda: not yarn.executors() and not yarn.masters(), 120, "executors and master end")
        with held.staged(held.request()) as staged:
            staged.result(SECONDS)
    held.judge()


def test_executors_end_with_their_driver(held: Holding, yarn: Yarn) -> None:
    held.add(0, 1, 2)
    with held.staged(held.request()) as staged:
        held.await_workers(staged, 1)
        os.kill(held.drivers[0].pid, signal.SIGKILL)
        with raises(StageError, "driver_ended", signal="SIGKILL"):
            staged.result(SECONDS)
        wait_for(lambda: not yarn.executors() and not yarn.masters(), 120, "executors and master end")
        assert not yarn.applications("RUNNING")
    with held.staged(held.request()) as staged:
        staged.result(SECONDS)
    held.judge()


def _are_waiting(held: Holding, n: int, workers: int) -> bool:
    return held.waiting(n) >= workers


def _restart(yarn: Yarn) -> None:
    """The ResourceManager is killed; the application outlasts it."""
    [before] = yarn.applications("RUNNING")
    yarn.kill()
    yarn.start()
    wait_for(lambda: [each["id"] for each in yarn.applications("RUNNING")] == [before["id"]], 120, "recovery")


def test_a_stream_outlives_executors_resource_manager_and_driver(
    held: Holding, pipeline: StageWorld, yarn: Yarn
) -> None:
    """It gets new executors before and after the restart; the next driver continues from what is published."""
    held.add(0, 1)
    with raises(StageError, "driver_ended", signal="SIGKILL"), held.streamed(held.request()) as drivers:
        for n, before in ((1, lambda _: None), (2, _restart)):
            wait_for(partial(_are_waiting, held, n, 2), SECONDS, "both workers wait")
            before(yarn)
            _kill_executor(yarn)
            wait_for(partial(_are_waiting, held, n, 3), SECONDS, "the task is tried again")
            held.add(n + 1)
            held.go(n)
        wait_for(partial(_are_waiting, held, 3, 2), SECONDS, "both workers wait")
        os.kill(drivers[0].pid, signal.SIGKILL)
    wait_for(lambda: not yarn.executors() and not yarn.masters(), 120, "executors and master end")
    assert len(pipeline.all_rows()) == 3 * len(KEYS)
    with held.streamed(held.request()):
        wait_for(lambda: len(pipeline.all_rows()) == 4 * len(KEYS), SECONDS, "the rows that were not published")
    held.judge()


@pytest.mark.parametrize(
    "kill", [_kill_machine, _kill_machine_and_restart], ids=["a machine", "a machine and the ResourceManager"]
)
def test_a_stream_continues_without(
    held: Holding, pipeline: StageWorld, yarn: Yarn, kill: Callable[[Yarn], None]
) -> None:
    held.add(0, 1)
    with held.streamed(held.request()) as drivers:
        wait_for(partial(_are_waiting, held, 1, 2), SECONDS, "both workers wait")
        kill(yarn)
        wait_for(partial(_are_waiting, held, 1, 3), SECONDS, "the task is tried again")
        held.add(2)
        held.go(1, 2)
        wait_for(lambda: len(pipeline.all_rows()) == 3 * len(KEYS), SECONDS, "all rows are published")
        assert len(drivers) == 1
    held.judge()


def test_executors_come_and_go_by_dynamic_allocation(held: Holding, yarn: Yarn) -> None:
    """State that only a removed executor had in its memory is read from HDFS."""
    conf = {
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.shuffleTracking.enabled": "true",
        "spark.dynamicAllocation.shuffleTracking.timeout": "5s",
        "spark.dynamicAllocation.minExecutors": "1",
        "spark.dynamicAllocation.maxExecutors": "2",
        "spark.dynamicAllocation.executorIdleTimeout": "5s",
        "spark.dynamicAllocation.schedulerBacklogTimeout": "1s",
    }
    held.add(0, 1)
    held.add(2, keys="a")
    held.add(3)
    request = held.request(conf=conf)
    request = replace(request, conf={name: each for name, each in request.conf.items() if "instances" not in name})
    with held.staged(request) as staged:
        held.until(staged, lambda: held.waiting(1) == 2 and len(yarn.executors()) == 2, "two executors")
        held.go(1)
        held.until(staged, lambda: held.waiting(2) and len(yarn.executors()) == 1, "one executor")
        held.go(2)
        held.await_workers(staged, 3)
        held.go(3)
        staged.result(SECONDS)
    held.judge()


def test_a_queue_that_yarn_does_not_know_is_named(held: Holding, yarn: Yarn) -> None:
    """By doctor, and by a run."""
    queue = {"spark.yarn.queue": "etl"}
    with raises(ConfigurationError, "queue_unknown", queue="etl"), held.staged(held.request(conf=queue)) as staged:
        staged.result(SECONDS)
    found = {check.name: check for check in examine_spark("yarn", [], conf=queue)}
    assert (found["yarn"].verdict, found["queue"].code) == ("ok", "queue_unknown")
    assert {check.name: check.verdict for check in examine_spark("yarn", [])}["queue"] == "ok"


@ft.job
class Halves:
    """No state, and Python workers, which wait from the second file on as those of `Held`."""

    def __init__(self, folder):
        self.folder = folder

    def transform(self, spark, sources):
        folder = self.folder

        def halves(frames):
            for frame in frames:
                for n in {each for each in frame["n"] if each}:
                    Path(folder, f"there-{n}-{os.getpid()}").touch()
                    while not Path(folder, f"go-{n}").exists():
                        time.sleep(0.05)
                yield frame.assign(half=frame["n"] / 2)

        return sources["numbers"].mapInPandas(halves, "k string, n bigint, half double")


def test_a_stateless_run_delivers_each_row_once_despite_kills(
    held: Holding, pipeline: StageWorld, folder: Path, yarn: Yarn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From files into SQLite, with the jars of an archive that `airflow ft yarn-archive` has uploaded."""
    shop = folder / "shop.db"
    monkeypatch.setenv("AIRFLOW_HOME", str(folder / "home"))
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", json.dumps({"conn_type": "sqlite", "host": str(shop)}))
    archive = upload(spark_home(), f"{yarn.hdfs.url}/spark")
    conf = {name: each for name, each in ON_YARN.items() if name != "spark.yarn.jars"} | {ARCHIVE: archive.uri}
    held.add(0, 1, 2)

    def run() -> dict[str, Any]:
        return ft.run(
            pipeline="halves",
            job=Halves,
            job_args={"folder": str(held.folder)},
            sources={"numbers": held.source()},
            sinks={"halves": ft.SqliteSink(table="halves", conn_id="shop")},
            spark_master="yarn",
            spark_conf={"spark.driver.memory": "700m", **conf},
            wal_root=str(pipeline.root),
            restart=ft.FixedDelay(attempts=3, delay=timedelta(seconds=1)),
        )

    with ThreadPoolExecutor(1) as pool:
        result = pool.submit(run)
        try:
            wait_for(lambda: held.waiting(1) or result.done(), SECONDS, "a worker waits")
            [driver] = [each for each in psutil.Process().children(recursive=True) if _is_driver(each)]
            driver.kill()
            wait_for(lambda: held.waiting(1) >= 2 or result.done(), SECONDS, "a worker of the next driver waits")
            held.go(1)
            wait_for(lambda: held.waiting(2) or result.done(), SECONDS, "a worker waits")
            _kill([each.pid for each in yarn.executors()])
            wait_for(lambda: held.waiting(2) >= 2 or result.done(), SECONDS, "a worker of the next executor waits")
        finally:
            held.go(*range(10))
        assert result.result(SECONDS)["rows"] == 3 * len(KEYS)
    with closing(sqlite3.connect(shop)) as database:
        found = list(database.execute("SELECT k, n, half FROM halves"))
    assert sorted(found) == sorted((k, n, n / 2) for n in range(3) for k in KEYS)


def _is_driver(process: psutil.Process) -> bool:
    return "org.apache.spark.deploy.SparkSubmit" in process.cmdline()
