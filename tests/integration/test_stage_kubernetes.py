"""Staging on Kubernetes, with log and state on HDFS or in a bucket: executors and the driver are killed.

The API server is real, with the rights and templates of docs/kubernetes. A stand-in for the kubelet runs executor.sh.
"""

import json
import os
import signal
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from airflow_ft.clients import buckets
from airflow_ft.protocol.doctor import Verdict
from airflow_ft.protocol.errors import ConfigurationError, StageError
from airflow_ft.spark.session import kubernetes
from airflow_ft.spark.session.kubernetes import DRIVER_POD
from airflow_ft.spark.task.doctor import examine_spark
from tests.integration.holding import KEYS, SECONDS, TWO_EXECUTORS, Holding
from tests.integration.stage_world import PIPELINE, StageWorld, streaming, world
from tests.integration.test_s3 import JARS
from tests.integration.test_s3_secrets import Scan, environments, event_log
from tests.raising import raises
from tests.waiting import wait_for
from tests.wal.s3.conftest import connection_of
from tools.servers import Hdfs, Kubernetes, VersityGw
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
def pipeline(tmp_path: Path, cluster: Kubernetes, monkeypatch: pytest.MonkeyPatch) -> Iterator[StageWorld]:
    (tmp_path / "namespace").write_text(NAMESPACE)
    monkeypatch.setattr(kubernetes, "_ACCOUNT", tmp_path)
    cluster.add_pod(POD)
    yield from world(tmp_path)
    cluster.delete_pod(POD)


@pytest.fixture
def held(
    pipeline: StageWorld, tmp_path: Path, cluster: Kubernetes, hdfs: Hdfs, conf: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> Holding:  # fmt: skip
    monkeypatch.setenv("HADOOP_USER_NAME", hdfs.user)
    pipeline.root = f"{hdfs.url}/{uuid.uuid4().hex}"  # type: ignore[assignment]
    return Holding(pipeline, tmp_path, cluster.master, conf)


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


@pytest.fixture
def bucket(versitygw: VersityGw) -> Iterator[str]:
    """A folder in a bucket for the log."""
    buckets.resolve_with(lambda conn_id: connection_of(versitygw, conn_id))
    yield versitygw.place(uuid.uuid4().hex)
    buckets.forget()


def test_nothing_shows_the_keys_of_a_log_in_a_bucket(
    pipeline: StageWorld, tmp_path: Path, cluster: Kubernetes, bucket: str, versitygw: VersityGw, conf: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Also not the store of the API server. An executor is killed, then the driver."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    pipeline.root = bucket  # type: ignore[assignment]
    held = Holding(pipeline, tmp_path, cluster.master, conf | event_log(tmp_path / "events"))
    held.add(0, 1, 2)
    more = {"jars": (JARS,), "buckets": [buckets.renew(buckets.BucketPlace.of(bucket)).to_json()]}
    scan, pods = Scan(versitygw.password), 0
    with scan.watching(tmp_path, cluster.folder):
        with held.staged(held.request(**more)) as staged:
            held.await_workers(staged, 1)
            for kind in ("pods", "configmaps", "secrets", "events"):
                found = cluster.ask("GET", f"/api/v1/namespaces/{NAMESPACE}/{kind}")["items"]
                pods += len(found) if kind == "pods" else 0
                scan.look(kind, json.dumps(found).encode())
            _kill_executor(cluster)
            held.await_workers(staged, 1, 3)
            held.go(1)
            held.await_workers(staged, 2)
            os.kill(held.drivers[0].pid, signal.SIGKILL)
            with raises(StageError, "driver_ended", signal="SIGKILL"):
                staged.result(SECONDS)
            wait_for(lambda: not cluster.executors(), 120, "executors end")
        with held.staged(held.request(**more)) as staged:
            staged.result(SECONDS)
    held.judge()
    assert pods == 3, "two executors and the task"
    base = pipeline.store.pipeline(PIPELINE).base
    assert base is not None and base.location.startswith(bucket)
    for line in pipeline.lines:
        scan.look("the task's log", line.encode())
    assert environments(tmp_path / "events") == 2
    assert "db" in scan.names, "etcd's"
    assert not scan.found


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
