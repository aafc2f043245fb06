"""Staging on YARN with log and state in a bucket: executor and driver are killed, and no file shows the keys."""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_ft.clients import buckets
from airflow_ft.protocol.errors import StageError
from airflow_ft.spark.request import StageRequest
from tests.integration.holding import KEYS, ON_YARN, SECONDS, Holding
from tests.integration.stage_world import PIPELINE, StageWorld, world
from tests.integration.test_s3 import CONF, JARS
from tests.integration.test_s3_secrets import Scan, environments, event_log
from tests.raising import raises
from tests.waiting import wait_for
from tests.wal.s3.conftest import connection_of
from tools.servers import Hdfs, VersityGw, Yarn

pytestmark = [
    pytest.mark.release,
    pytest.mark.spark,
    pytest.mark.server,
    pytest.mark.slow,
    pytest.mark.timeout(2400),
]
HADOOP_CONF = "__spark_hadoop_conf__.xml"
"""The settings of Hadoop that Spark uploads for the containers."""


@pytest.fixture
def pipeline(folder: Path, yarn: Yarn, versitygw: VersityGw, monkeypatch: pytest.MonkeyPatch) -> Iterator[StageWorld]:
    monkeypatch.setenv("HADOOP_CONF_DIR", str(yarn.configuration))
    (folder / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(folder / "tmp"))
    buckets.resolve_with(lambda conn_id: connection_of(versitygw, conn_id))
    for made in world(folder):
        made.root = versitygw.place(uuid.uuid4().hex)  # type: ignore[assignment]
        yield made
    buckets.forget()


@pytest.fixture
def held(pipeline: StageWorld, folder: Path) -> Holding:
    return Holding(pipeline, folder, "yarn", ON_YARN | CONF | event_log(folder / "events"))


def _request(held: Holding, pipeline: StageWorld) -> StageRequest:
    found = [buckets.renew(buckets.BucketPlace.of(str(pipeline.root))).to_json()]
    return held.request(jars=(JARS,), buckets=found)


def test_a_stateful_job_continues_and_no_file_shows_the_keys(
    held: Holding, pipeline: StageWorld, folder: Path, yarn: Yarn, hdfs: Hdfs, versitygw: VersityGw
) -> None:
    """An executor is killed, then the driver."""
    held.add(0, 1, 2)
    scan = Scan(versitygw.password)
    with scan.watching(folder, yarn.folder, hdfs.folder):
        with held.staged(_request(held, pipeline)) as staged:
            held.await_workers(staged, 1)
            os.kill(yarn.executors()[0].pid, signal.SIGKILL)
            held.await_workers(staged, 1, 3)
            held.go(1)
            held.await_workers(staged, 2)
            os.kill(held.drivers[0].pid, signal.SIGKILL)
            with raises(StageError, "driver_ended", signal="SIGKILL"):
                staged.result(SECONDS)
            wait_for(lambda: not yarn.executors() and not yarn.masters(), 120, "executors and master end")
        with held.staged(_request(held, pipeline)) as staged:
            staged.result(SECONDS)
    held.judge()
    assert len(pipeline.all_rows()) == 3 * len(KEYS)
    base = pipeline.store.pipeline(PIPELINE).base
    assert base is not None and base.location.startswith(str(pipeline.root))
    for line in pipeline.lines:
        scan.look("the task's log", line.encode())
    assert environments(folder / "events") == 2
    assert {HADOOP_CONF, "launch_container.sh", "stderr"} <= scan.names
    assert not scan.found


def test_keys_of_the_environment_stay_with_the_driver(
    held: Holding,
    pipeline: StageWorld,
    folder: Path,
    yarn: Yarn,
    hdfs: Hdfs,
    versitygw: VersityGw,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Spark would write them into the settings that it uploads."""
    for name, value in {
        "AWS_ACCESS_KEY_ID": versitygw.login,
        "AWS_SECRET_ACCESS_KEY": versitygw.password,
        "AWS_REGION": versitygw.region,
        "AWS_ENDPOINT_URL": versitygw.url,
    }.items():
        monkeypatch.setenv(name, value)
    buckets.forget()
    pipeline.root = f"s3://{versitygw.bucket}/{uuid.uuid4().hex}"  # type: ignore[assignment]
    held.add(0, 1)
    scan = Scan(versitygw.password)
    request = replace(_request(held, pipeline), job="stage_jobs:Plain", job_arguments={})
    with scan.watching(folder, yarn.folder, hdfs.folder):
        assert pipeline.complete(request).rows == {"orders": 2 * len(KEYS)}
    assert HADOOP_CONF in scan.names
    assert not scan.found
