"""Staging on a standalone cluster of Spark whose worker or master is killed."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_ft.protocol.errors import StageError
from tests.integration.holding import SECONDS, Holding
from tests.integration.stage_world import StageWorld, world
from tests.integration.test_stage_cluster import Cluster, _executors
from tests.raising import raises

pytestmark = [pytest.mark.release, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1200)]
# Three workers, of which an application uses two: the third takes the place of one that is gone.
TWO_OF_THREE = {
    "spark.cores.max": "2",
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.locality.wait": "0s",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": f"{SECONDS}s",
}


@pytest.fixture
def pipeline(tmp_path: Path) -> Iterator[StageWorld]:
    yield from world(tmp_path)


def _held(pipeline: StageWorld, tmp_path: Path, cluster: Cluster) -> Holding:
    made = Holding(pipeline, tmp_path, cluster.url, TWO_OF_THREE)
    made.add(0, 1, 2)
    return made


def _with_executor(folder: Path) -> int:
    """The number of a worker that has an executor."""
    return next(number for number in range(3) if _executors(folder / f"worker-{number}"))


def _all_executors(folder: Path) -> list[int]:
    return [pid for number in range(3) for pid in _executors(folder / f"worker-{number}")]


def test_a_stateful_job_continues_without_a_worker(pipeline: StageWorld, tmp_path: Path) -> None:
    with Cluster(tmp_path, 3) as cluster:
        held = _held(pipeline, tmp_path, cluster)
        with held.staged(held.request()) as staged:
            held.await_workers(staged, 1)
            cluster.kill_worker(_with_executor(tmp_path))
            held.await_workers(staged, 1, 3)
            held.go(1, 2)
            staged.result(SECONDS)
    held.judge()


def test_a_master_that_recovers_gives_new_executors_after_a_restart(pipeline: StageWorld, tmp_path: Path) -> None:
    with Cluster(tmp_path, 3, recovers=True) as cluster:
        held = _held(pipeline, tmp_path, cluster)
        with held.staged(held.request()) as staged:
            held.await_workers(staged, 1)
            cluster.kill_master()
            cluster.start_master()
            os.kill(_all_executors(tmp_path)[0], signal.SIGKILL)
            held.await_workers(staged, 1, 3)
            held.go(1, 2)
            staged.result(SECONDS)
    held.judge()


def test_a_stage_ends_without_its_master(pipeline: StageWorld, tmp_path: Path) -> None:
    """Executors do not need it."""
    with Cluster(tmp_path, 2) as cluster:
        held = _held(pipeline, tmp_path, cluster)
        with held.staged(held.request()) as staged:
            held.await_workers(staged, 1)
            cluster.kill_master()
            held.go(1, 2)
            staged.result(SECONDS)
    held.judge()


def test_a_master_that_forgets_the_application_ends_its_executors(pipeline: StageWorld, tmp_path: Path) -> None:
    """The stage waits for others that never come. The next attempt is exact."""
    with Cluster(tmp_path, 2) as cluster:
        held = _held(pipeline, tmp_path, cluster)
        with held.staged(held.request()) as staged:
            held.await_workers(staged, 1)
            cluster.kill_master()
            cluster.start_master()
            held.until(staged, lambda: not _all_executors(tmp_path), "executors end")
            held.drivers[0].kill()
            with raises(StageError, "driver_ended"):
                staged.result(SECONDS)
        with held.staged(held.request()) as staged:
            staged.result(SECONDS)
    held.judge()
