"""Staging on a standalone cluster of Spark whose workers and master are killed, restarted or decommissioned."""

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
from tools.servers.processes import free_port

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
DECOMMISSION = {
    "spark.decommission.enabled": "true",
    "spark.storage.decommission.enabled": "true",
    "spark.storage.decommission.rddBlocks.enabled": "true",
    "spark.storage.decommission.shuffleBlocks.enabled": "true",
}


@pytest.fixture
def pipeline(tmp_path: Path) -> Iterator[StageWorld]:
    yield from world(tmp_path)


def _held(pipeline: StageWorld, tmp_path: Path, cluster: Cluster, **settings: str) -> Holding:
    made = Holding(pipeline, tmp_path, cluster.url, TWO_OF_THREE | settings)
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


def test_a_recovering_master_gives_new_executors_after_a_restart(pipeline: StageWorld, tmp_path: Path) -> None:
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


def test_a_master_that_forgets_an_application_ends_its_executors(pipeline: StageWorld, tmp_path: Path) -> None:
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


def test_a_decommissioned_worker_finishes_its_tasks(pipeline: StageWorld, tmp_path: Path) -> None:
    """Spark's master gives the application no other executor, so the one that is left does the rest."""
    with Cluster(tmp_path, 2, DECOMMISSION) as cluster:
        held = _held(pipeline, tmp_path, cluster, **DECOMMISSION)
        with held.staged(held.request()) as staged:
            held.await_workers(staged, 1)
            gone = _with_executor(tmp_path)
            cluster.workers[gone].send_signal(signal.SIGPWR)
            held.go(1)
            held.until(staged, lambda: not _executors(tmp_path / f"worker-{gone}"), "its executor has ended")
            held.go(2)
            staged.result(SECONDS)
            assert held.waiting(1) == 2, "no task was tried again"
    held.judge()


def test_an_executor_dies_beside_an_external_shuffle_service(pipeline: StageWorld, tmp_path: Path) -> None:
    service = {"spark.shuffle.service.enabled": "true", "spark.shuffle.service.port": str(free_port())}
    with Cluster(tmp_path, 1, service) as cluster:
        held = _held(pipeline, tmp_path, cluster, **service, **{"spark.cores.max": "1"})
        with held.staged(held.request()) as staged:
            held.await_workers(staged, 1, 1)
            os.kill(_all_executors(tmp_path)[0], signal.SIGKILL)
            held.await_workers(staged, 1, 2)
            held.go(1, 2)
            staged.result(SECONDS)
    held.judge()
