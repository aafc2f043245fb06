"""A standalone cluster of Spark with the log in a bucket: executors write there, and no file shows the keys."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_ft.clients import buckets
from airflow_ft.protocol.errors import StageError
from airflow_ft.sources import FileSource
from tests.integration.stage_world import PIPELINE, StageWorld, world
from tests.integration.test_hdfs import _add, _assert_continuous
from tests.integration.test_s3 import CONF, JARS
from tests.integration.test_s3_secrets import Scan, environments, event_log
from tests.integration.test_stage_cluster import _cluster
from tests.raising import raises
from tests.wal.s3.conftest import connection_of
from tools.servers import VersityGw

pytestmark = [
    pytest.mark.release,
    pytest.mark.spark,
    pytest.mark.server,
    pytest.mark.slow,
    pytest.mark.timeout(1800),
]


@pytest.fixture
def pipeline(tmp_path: Path, versitygw: VersityGw) -> Iterator[StageWorld]:
    buckets.resolve_with(lambda conn_id: connection_of(versitygw, conn_id))
    for made in world(tmp_path):
        made.root = versitygw.place(uuid.uuid4().hex)  # type: ignore[assignment]
        yield made
    buckets.forget()


def test_two_executors_keep_log_and_state_in_a_bucket(
    pipeline: StageWorld, tmp_path: Path, versitygw: VersityGw, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver dies when a batch is committed and not published; both executors have written into its location."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    for n in range(2):
        _add(pipeline, n)
    source = FileSource(path=f"file://{pipeline.input}", schema="k string, n bigint", max_files_per_trigger=1)
    more: dict[str, Any] = {
        "conf": {
            **CONF,
            "spark.executor.memory": "512m",
            "spark.executor.cores": "1",
            "spark.driver.host": "127.0.0.1",
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.scheduler.maxRegisteredResourcesWaitingTime": "600s",
            "spark.sql.shuffle.partitions": "2",
            **event_log(tmp_path / "events"),
        },
        "job_arguments": {"point": "after commit", "batch": 1, "once": str(tmp_path / "once")},
        "jars": (JARS,),
        "buckets": [buckets.renew(buckets.BucketPlace.of(str(pipeline.root))).to_json()],
    }
    scan = Scan(versitygw.password)
    with _cluster(tmp_path, 2) as master, scan.watching(tmp_path / "tmp"):
        more["master"] = master
        with raises(StageError, "driver_ended", signal="SIGKILL"):
            pipeline.complete(pipeline.request("stage_jobs:Crashing", {"numbers": source}, **more))
        assert [c.number for c in pipeline.published()] == [1]
        pipeline.complete(pipeline.request("stage_jobs:Crashing", {"numbers": source}, **more))
        for number in range(2):
            assert len(list((tmp_path / f"worker-{number}").glob("app-*/*"))) >= 2, "an executor for each driver"
        scan.files(tmp_path)  # while the workers still have the files of the applications
    _assert_continuous(pipeline.all_rows(), 2)
    base = pipeline.store.pipeline(PIPELINE).base
    assert base is not None and base.location.startswith(str(pipeline.root))
    assert environments(tmp_path / "events") == 2
    assert not scan.found
