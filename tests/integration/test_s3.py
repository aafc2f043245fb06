"""Log and Spark's locations in a bucket of a real S3 server, while drivers are killed."""

import json
import re
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_ft import state
from airflow_ft.clients import buckets
from airflow_ft.clients.buckets import BucketSettings
from airflow_ft.protocol.errors import ConfigurationError, StageError
from airflow_ft.protocol.from_savepoint import Later
from airflow_ft.protocol.lease import Worker
from airflow_ft.sources import FileSource
from airflow_ft.spark.request import StageRequest
from airflow_ft.spark.savepoints.converting import Backend, convert
from airflow_ft.spark.savepoints.metadata import dispose, listing, read_metadata, verify
from airflow_ft.spark.savepoints.rescaling import rescale
from airflow_ft.spark.savepoints.restoring import restore
from airflow_ft.spark.savepoints.taking import take
from airflow_ft.spark.state.settings import PARTITIONS, PROVIDER
from airflow_ft.wal.filesystem import filesystem
from tests.integration.proxy import Proxy
from tests.integration.stage_world import PIPELINE, StageWorld, world
from tests.integration.test_hdfs import KEYS, _add, _assert_continuous
from tests.integration.test_running import Plain
from tests.raising import raises
from tests.wal.s3.conftest import connection_of
from tools.servers import Hdfs, VersityGw
from tools.servers.base import local_folder

pytestmark = [
    pytest.mark.sampled(among="Spark drivers"),
    pytest.mark.spark,
    pytest.mark.server,
    pytest.mark.slow,
    pytest.mark.timeout(1200),
]
CONF = {"spark.python.authenticate.socketTimeout": "120s"}
MOST_REQUESTS = 40
JARS = str(local_folder() / "jars" / "s3a")


@pytest.fixture(autouse=True)
def _connections(versitygw: VersityGw) -> Iterator[None]:
    buckets.resolve_with(lambda conn_id: connection_of(versitygw, conn_id))
    yield
    buckets.forget()


@pytest.fixture
def pipeline(tmp_path: Path, versitygw: VersityGw) -> Iterator[StageWorld]:
    for made in world(tmp_path):
        made.root = f"s3://lake@{versitygw.bucket}/{uuid.uuid4().hex}/wal"  # type: ignore[assignment]
        yield made


def _request(pipeline: StageWorld, job: str = "stage_jobs:Crashing", **more: Any) -> StageRequest:
    source = FileSource(path=f"file://{pipeline.input}", schema="k string, n bigint", max_files_per_trigger=1)
    found = [buckets.settings_of(buckets.BucketPlace.of(str(pipeline.root))).to_json()]
    return pipeline.request(job, {"numbers": source}, **{"jars": (JARS,), "buckets": found, "conf": CONF, **more})


def _restore(pipeline: StageWorld, uri: str) -> None:
    def no_participant(_: Any) -> Any:
        raise AssertionError("no sink is asked")

    restored = restore(
        pipeline.store, uri, no_participant, Worker("", 1), "a test", lease_seconds=0.0, later=Later.WRITE_AGAIN
    )
    assert restored.position is not None and restored.position.location.startswith(str(pipeline.root))


@pytest.mark.spark
@pytest.mark.chaos
def test_state_continues_after_a_kill_and_from_savepoints(
    pipeline: StageWorld, tmp_path: Path, versitygw: VersityGw, hdfs: Hdfs
) -> None:
    """Killed when Spark has committed a batch that was not published: the copy is cut back to the one before."""
    for n in range(2):
        _add(pipeline, n)
    arguments = {"point": "after commit", "batch": 1, "once": str(tmp_path / "crashed")}
    with pytest.raises(StageError) as killed:
        pipeline.stage(_request(pipeline, job_arguments=arguments))
    assert "SIGKILL" in killed.value.headline
    assert [c.number for c in pipeline.published()] == [1]
    again = _request(pipeline, job_arguments=arguments)
    assert not again.base_is_clean
    pipeline.complete(again)
    _assert_continuous(pipeline.all_rows(), 2)
    pipeline.deliver()
    _add(pipeline, 2)
    pipeline.complete(_request(pipeline))  # in place
    _assert_continuous(pipeline.all_rows(), 3)
    base = pipeline.store.pipeline(PIPELINE).base
    assert base is not None and base.location.startswith(str(pipeline.root))
    assert versitygw.password not in "\n".join([*pipeline.lines, repr(again)])
    pipeline.deliver()

    bucket = f"s3://other@{versitygw.bucket}/{uuid.uuid4().hex}"  # under another connection than the log
    folders = (bucket, str(tmp_path / "savepoints"), f"{hdfs.url}/{uuid.uuid4().hex}")
    taken = [take(pipeline.store, PIPELINE, folder, "a test") for folder in folders]
    for uri, expected in taken:
        verify(uri, expected)
        assert expected.number == 4 and expected.operators
        assert list(listing(uri.rpartition("/")[0])) == [(uri, expected)]
    a_file = 2 * len(KEYS)
    before = pipeline.all_rows()
    for n, (uri, _) in enumerate(taken, 3):
        _restore(pipeline, uri)
        dispose(uri)
        assert not filesystem(uri).exists(uri)
        _add(pipeline, n)
        pipeline.complete(_request(pipeline))
        pipeline.deliver()
        # Each begins before the files that were added since, which come once more.
        rows = pipeline.all_rows()[-(n - 2) * a_file :]
        _assert_continuous([*before, *rows], n + 1)


@pytest.mark.spark
def test_savepoints_in_a_bucket_can_be_rescaled_and_converted(pipeline: StageWorld, versitygw: VersityGw) -> None:
    def run(n: int, **conf: str) -> dict[str, int]:
        _add(pipeline, n)
        arguments = {"distinct": [], "count": "counts"}
        pipeline.complete(_request(pipeline, "stage_jobs:Counted", job_arguments=arguments, conf={**CONF, **conf}))
        pipeline.deliver()
        return {row["k"]: row["rows"] for row in pipeline.rows(pipeline.published()[-1]).to_pylist()}

    def counted(uri: str = "") -> tuple[dict[str, int], int]:
        with state.open_savepoint(uri) if uri else state.open(PIPELINE, store=pipeline.store) as found:
            (operator,) = found.operators()
            return {key: found.get("counts", key)["count"] for key in KEYS}, operator.partitions

    assert run(0) == {"a": 2, "b": 2}
    assert counted() == ({"a": 2, "b": 2}, 2)
    folder = f"s3://lake@{versitygw.bucket}/{uuid.uuid4().hex}"
    conf = {**CONF, "spark.jars": ",".join(map(str, sorted(Path(JARS).glob("*.jar"))))}
    taken, _ = take(pipeline.store, PIPELINE, folder, "a test")
    rescaled, _ = rescale(taken, 3, folder, "a test", conf, pipeline.lines.append)
    mapped, _ = convert(rescaled, Backend.HDFS, folder, "a test", conf, pipeline.lines.append)
    for uri, partitions in ((taken, 2), (rescaled, 3), (mapped, 3)):
        verify(uri, read_metadata(uri))
        assert counted(uri) == ({"a": 2, "b": 2}, partitions)
    with raises(ConfigurationError, "arguments_conflict"):
        convert(taken.replace("lake@", "other@"), Backend.HDFS, folder, "a test", conf, pipeline.lines.append)
    assert len(list(listing(folder))) == 3, "nothing is left of it"
    _restore(pipeline, rescaled)
    assert run(1, **{PARTITIONS: "3"}) == {"a": 4, "b": 4}
    assert counted() == ({"a": 4, "b": 4}, 3)
    _restore(pipeline, mapped)  # of the same checkpoint: the second file comes once more, and the third
    assert run(2, **{PARTITIONS: "3", PROVIDER: Backend.HDFS.provider}) == {"a": 6, "b": 6}
    assert counted() == ({"a": 6, "b": 6}, 3)
    assert versitygw.password not in "\n".join(pipeline.lines)


@pytest.mark.spark
def test_rows_without_state_and_a_connection_of_another_name(pipeline: StageWorld, versitygw: VersityGw) -> None:
    """The base was written under the former name: the run works in a copy, because Spark has one connection's keys."""
    _add(pipeline, 0)
    pipeline.complete(_request(pipeline))
    pipeline.root = str(pipeline.root).replace("lake@", "renamed@")  # type: ignore[assignment]
    _add(pipeline, 1)
    former = BucketSettings.of(connection_of(versitygw)).to_json()
    request = _request(pipeline)
    pipeline.complete(replace(request, buckets=[*request.buckets, former]))
    _assert_continuous(pipeline.all_rows(), 2)
    base = pipeline.store.pipeline(PIPELINE).base
    assert base is not None and base.location.startswith(str(pipeline.root))


@pytest.mark.spark
@pytest.mark.chaos
def test_answers_that_are_lost(pipeline: StageWorld, versitygw: VersityGw) -> None:
    """Of the log's own puts, and of Spark's."""
    with Proxy(versitygw.port) as proxy:
        through = connection_of(versitygw, endpoint_url=f"http://127.0.0.1:{proxy.port}")
        buckets.learn(BucketSettings.of(through))
        losses = [b"manifest.json", b"if-none-match", b"/commits/", b"/offsets/"]
        for what in losses:
            proxy.cut("lost reply", what)
        proxy.cut("lost request", b"if-none-match")
        for n in range(2):
            _add(pipeline, n)
        pipeline.complete(_request(pipeline))
        assert proxy.cuts == len(losses) + 1
        _assert_continuous(pipeline.all_rows(), 2)


@pytest.mark.spark
@pytest.mark.airflow
@pytest.mark.chaos
def test_whole_runs_that_are_killed_deliver_each_row_once(tmp_path: Path, versitygw: VersityGw) -> None:
    """With Airflow's connection and configuration, and jars that are fetched."""
    plain, folder = Plain(tmp_path), uuid.uuid4().hex
    root = f"s3://lake@{versitygw.bucket}/{folder}"
    connection = connection_of(versitygw)
    lake = {"conn_type": "aws", "login": connection.login, "password": connection.password, "extra": connection.extra}
    plain.variables |= {
        "AIRFLOW_CONN_LAKE": json.dumps(lake),
        "AIRFLOW__AIRFLOW_FT__WAL_ROOT": root,
        "AIRFLOW__AIRFLOW_FT__SPARK_CONF": json.dumps(CONF),
        "AWS_SESSION_TOKEN": "of somebody else",
        "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
    }
    for number, place in enumerate(("when a checkpoint is published", "before the transaction")):
        plain.add()
        plain.killed(f"run-{number}", place)
        plain.run(f"run-{number}")
        plain.check()
    assert filesystem(root).names(f"{root}/orders/spark") and not (plain.home / "airflow_ft" / "wal").exists()


@pytest.mark.spark
def test_requests_of_a_checkpoint(
    pipeline: StageWorld, versitygw: VersityGw, capsys: pytest.CaptureFixture[str]
) -> None:
    """As docs/object-storage.md has them: a stateful checkpoint with one sink and two state partitions."""
    for n in range(3):
        _add(pipeline, n)
    pipeline.complete(_request(pipeline))
    lines = versitygw.requests()
    marks = [
        n for n, line in enumerate(lines) if "/orders/" in line and "manifest.json" in line and "PutObject" in line
    ]
    counted = Counter(_kind(line) for line in lines[marks[-2] : marks[-1]])
    with capsys.disabled():
        print("\nrequests from one manifest to the next:", dict(counted))
    assert sum(count for (who, _), count in counted.items() if who == "log") <= MOST_REQUESTS


def _kind(line: str) -> tuple[str, str]:
    operation = re.search(r" s3_(\w+) ", line)
    return "Spark" if "aws-sdk-java" in line else "log", operation[1] if operation else "?"
