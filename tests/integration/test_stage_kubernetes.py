"""Staging on Kubernetes, with log and state on HDFS: executors and the driver are killed.

The API server is real, with the rights and templates of docs/kubernetes. A stand-in for the kubelet runs executor.sh.
"""

import os
import signal
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from airflow_ft.protocol.doctor import Verdict
from airflow_ft.protocol.errors import ConfigurationError, StageError
from airflow_ft.spark.session import kubernetes
from airflow_ft.spark.session.kubernetes import DRIVER_POD
from airflow_ft.spark.task.doctor import examine_spark
from tests.integration.holding import KEYS, SECONDS, TWO_EXECUTORS, Holding
from tests.integration.stage_world import streaming, world
from tests.raising import raises
from tests.waiting import wait_for
from tools.servers import Hdfs, Kubernetes
from tools.servers.base import local_folder
from tools.servers.kubernetes import MANIFESTS, NAMESPACE

pytestmark = [
    pytest.mark.release,
    pytest.mark.spark,
    pytest.mark.server,
    pytest.mark.slow,
    pytest.mark.timeout(2400),
    pytest.mark.skipif(
        not (local_folder() / "kubernetes").exists(), reason="tools/bootstrap.sh kubernetes builds it, where Go is"
    ),
]
POD = "airflow-task"
CONF = {
    **TWO_EXECUTORS,
    "spark.kubernetes.container.image": "airflow-ft",
    "spark.kubernetes.executor.podTemplateFile": str(MANIFESTS / "executor-template.yaml"),
    DRIVER_POD: POD,
    "spark.kubernetes.allocation.batch.delay": "1s",
    "spark.kubernetes.executor.apiPollingInterval": "2s",
}


@pytest.fixture(scope="module")
def cluster(servers_folder: Path) -> Iterator[Kubernetes]:
    with Kubernetes(servers_folder / "kubernetes") as server:
        yield server


@pytest.fixture
def conf(cluster: Kubernetes) -> dict[str, str]:
    """With the keys of the pod's service account, which Spark would find in a pod."""
    prefix = "spark.kubernetes.authenticate"
    return {**CONF, f"{prefix}.oauthToken": cluster.token(), f"{prefix}.caCertFile": str(cluster.certificate)}


@pytest.fixture
def held(
    tmp_path: Path, cluster: Kubernetes, hdfs: Hdfs, conf: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Holding]:
    (tmp_path / "namespace").write_text(NAMESPACE)
    monkeypatch.setattr(kubernetes, "_ACCOUNT", tmp_path)
    monkeypatch.setenv("HADOOP_USER_NAME", hdfs.user)
    cluster.add_pod(POD)
    for made in world(tmp_path):
        made.root = f"{hdfs.url}/{uuid.uuid4().hex}"  # type: ignore[assignment]
        yield Holding(made, tmp_path, cluster.master, conf)
    cluster.delete_pod(POD)


def _kill_executor(cluster: Kubernetes) -> None:
    os.kill(next(iter(cluster.executors().values())), signal.SIGKILL)


def _delete_executor(cluster: Kubernetes) -> None:
    """As the drain of a node does."""
    cluster.delete_pod(next(iter(cluster.executors())))


@pytest.mark.parametrize("end", [_kill_executor, _delete_executor], ids=["killed", "deleted"])
def test_a_stateful_job_continues_without_an_executor(held: Holding, cluster: Kubernetes, end: object) -> None:
    """They end while Python workers hold loaded state."""
    held.add(0, 1, 2)
    with held.staged(held.request()) as staged:
        held.await_workers(staged, 1)
        end(cluster)  # type: ignore[operator]
        held.await_workers(staged, 1, 3)
        held.go(1, 2)
        assert staged.result(SECONDS).rows == {"orders": 3 * len(KEYS)}
    held.judge()
    wait_for(lambda: not cluster.pods(), 60, "the driver deletes its executors")


def test_executors_end_with_the_pod_of_their_driver(held: Holding, cluster: Kubernetes) -> None:
    held.add(0, 1, 2)
    with held.staged(held.request()) as staged:
        held.await_workers(staged, 1)
        os.kill(held.drivers[0].pid, signal.SIGKILL)
        with raises(StageError, "driver_ended", signal="SIGKILL"):
            staged.result(SECONDS)
        wait_for(lambda: not cluster.executors(), 120, "executors end")
        cluster.delete_pod(POD)  # as Airflow does when a task has ended
        wait_for(lambda: not cluster.pods(), 60, "their pods are deleted")
    cluster.add_pod(POD)
    with held.staged(held.request()) as staged:
        staged.result(SECONDS)
    held.judge()


def test_a_stream_continues_without_an_executor(held: Holding, cluster: Kubernetes) -> None:
    held.add(0, 1)
    with streaming(held._pipeline, held.request()):
        try:
            wait_for(partial(_are_waiting, held, 1, 2), SECONDS, "both workers wait")
            _kill_executor(cluster)
            wait_for(partial(_are_waiting, held, 1, 3), SECONDS, "the task is tried again")
            held.add(2)
            held.go(1, 2)
            wait_for(lambda: len(held._pipeline.all_rows()) == 3 * len(KEYS), SECONDS, "all rows")
        finally:
            held.go(*range(10))
    held.judge()


def _are_waiting(held: Holding, n: int, workers: int) -> bool:
    return held.waiting(n) >= workers


def test_what_the_cluster_refuses_is_said(held: Holding, cluster: Kubernetes, conf: dict[str, str]) -> None:
    """A pod that is not there, and keys that are wrong. Doctor finds the server."""
    held.add(0)
    for wrong in ({DRIVER_POD: "another"}, {"spark.kubernetes.authenticate.oauthToken": "wrong"}):
        with raises(StageError, "spark_not_started"), held.staged(held.request(conf=wrong)) as staged:
            staged.result(SECONDS)
    with (
        raises(ConfigurationError, "image_missing"),
        held.staged(held.request(conf={"spark.kubernetes.container.image": ""})) as staged,
    ):
        staged.result(SECONDS)
    found = {check.name: check.verdict for check in examine_spark(cluster.master, [], conf)}
    assert found["kubernetes"] is Verdict.OK
