"""Log, Spark's locations and savepoints on a real HDFS: pipelines and the NameNode are killed, and the disk is full."""

import time
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from airflow_ft import state
from airflow_ft.protocol.doctor import Verdict
from airflow_ft.protocol.errors import AirflowFtError, StageError, StorageUnavailableError
from airflow_ft.protocol.lease import Worker
from airflow_ft.protocol.model import RunKey
from airflow_ft.sources import FileSource
from airflow_ft.spark.request import StageRequest
from airflow_ft.spark.savepoints.converting import Backend, convert
from airflow_ft.spark.savepoints.metadata import dispose, listing, read_metadata, verify
from airflow_ft.spark.savepoints.rescaling import rescale
from airflow_ft.spark.savepoints.restoring import Later, restore
from airflow_ft.spark.savepoints.taking import take
from airflow_ft.spark.state.settings import PARTITIONS, PROVIDER
from airflow_ft.store import open_store
from airflow_ft.store.decision_log import DecisionLog
from airflow_ft.wal import open_wal
from airflow_ft.wal.doctor import examine_wal
from airflow_ft.wal.filesystem import filesystem
from tests.conftest import TopicFactory
from tests.integration.kafka_world import read, value
from tests.integration.real_world import RealWorld, expected, make_world
from tests.integration.stage_world import PIPELINE, StageWorld, world
from tests.integration.test_stage_overlap import FILES, ROWS, Shop
from tests.integration.test_stream import World as Streaming
from tests.raising import raises
from tools.servers import Database, Hdfs, Kafka

pytestmark = [pytest.mark.sampled(among="HDFS"), pytest.mark.server, pytest.mark.slow, pytest.mark.timeout(1200)]
KEYS = ("a", "b")
# The client decides on both: by its own default each block would count 384 MB of a quota until it is closed.
CONF = {"spark.hadoop.dfs.replication": "1", "spark.hadoop.dfs.blocksize": str(1 << 20)}


@pytest.fixture
def root(hdfs: Hdfs) -> str:
    return f"{hdfs.url}/{uuid.uuid4().hex}"


@pytest.fixture
def pipeline(tmp_path: Path, root: str, own_sessions: Path) -> Iterator[StageWorld]:
    for made in world(tmp_path, own_sessions=own_sessions):
        made.root = f"{root}/wal"  # type: ignore[assignment]
        yield made


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DecisionLog]:
    with closing(open_store(f"sqlite:///{tmp_path}/ft.db")) as store:
        yield store


def _add(pipeline: StageWorld, n: int) -> None:
    pipeline.add_file(f"f{n}", [{"k": k, "n": 10 * n + i} for i in range(2) for k in KEYS])


def _request(pipeline: StageWorld, **more: Any) -> StageRequest:
    source = FileSource(path=str(pipeline.input), schema="k string, n bigint", max_files_per_trigger=1)
    conf = {**CONF, **more.pop("conf", {})}
    return pipeline.request("stage_jobs:Crashing", {"numbers": source}, conf=conf, **more)


def _assert_continuous(rows: list[dict[str, Any]], files: int) -> None:
    """Each total is the one before it and what was added: state and rows are of one attempt."""
    totals, steps = dict.fromkeys(KEYS, 0.0), dict.fromkeys(KEYS, 0)
    for row in rows:
        totals[row["k"]] += row["added"]
        steps[row["k"]] += 1
        assert row["total"] == pytest.approx(totals[row["k"]]) and row["steps"] == steps[row["k"]]
    assert sorted((row["k"], row["n"]) for row in rows) == sorted(
        (k, 10 * n + i) for n in range(files) for i in range(2) for k in KEYS
    )


def _restore(pipeline: StageWorld, uri: str) -> None:
    def no_participant(_: Any) -> Any:
        raise AssertionError("no sink is asked")

    worker = Worker("", 1)
    restored = restore(
        pipeline.store, uri, no_participant, worker, "a test", lease_seconds=0.0, later=Later.WRITE_AGAIN
    )
    assert restored.position.location.startswith(str(pipeline.root))


@pytest.mark.spark
@pytest.mark.chaos
def test_state_continues_after_a_kill_and_from_savepoints(pipeline: StageWorld, root: str, tmp_path: Path) -> None:
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

    there, _ = take(pipeline.store, PIPELINE, f"{root}/savepoints", "a test")
    here, _ = take(pipeline.store, PIPELINE, str(tmp_path / "savepoints"), "a test")
    for uri in (there, here):
        taken = read_metadata(uri)
        verify(uri, taken)
        assert taken.number == 3 and taken.operators and list(listing(uri.rpartition("/")[0])) == [(uri, taken)]
    for n, uri in ((2, there), (3, here)):
        _restore(pipeline, uri)
        dispose(uri)
        assert not filesystem(uri).exists(uri)
        _add(pipeline, n)
        pipeline.complete(_request(pipeline))
        pipeline.deliver()
    # The second one begins before the third file, which comes once more.
    rows, a_file = pipeline.all_rows(), 2 * len(KEYS)
    _assert_continuous(rows[: 3 * a_file], 3)
    _assert_continuous([*rows[: 2 * a_file], *rows[3 * a_file :]], 4)


@pytest.mark.spark
def test_savepoints_on_hdfs_can_be_rescaled_converted_and_read(pipeline: StageWorld, root: str) -> None:
    def run(n: int, **conf: str) -> dict[str, int]:
        _add(pipeline, n)
        arguments = {"distinct": [], "count": "counts"}
        source = FileSource(path=str(pipeline.input), schema="k string, n bigint")
        conf = {**CONF, **conf}
        pipeline.complete(
            pipeline.request("stage_jobs:Counted", {"numbers": source}, job_arguments=arguments, conf=conf)
        )
        pipeline.deliver()
        return {row["k"]: row["rows"] for row in pipeline.rows(pipeline.published()[-1]).to_pylist()}

    def counted(uri: str = "") -> tuple[dict[str, int], int]:
        with state.open_savepoint(uri) if uri else state.open(PIPELINE, store=pipeline.store) as found:
            (operator,) = found.operators()
            return {key: found.get("counts", key)["count"] for key in KEYS}, operator.partitions

    assert run(0) == {"a": 2, "b": 2}
    assert counted() == ({"a": 2, "b": 2}, 2)
    folder = f"{root}/savepoints"
    taken, _ = take(pipeline.store, PIPELINE, folder, "a test")
    rescaled, _ = rescale(taken, 3, folder, "a test", CONF, pipeline.lines.append)
    mapped, _ = convert(rescaled, Backend.HDFS, folder, "a test", CONF, pipeline.lines.append)
    for uri, partitions in ((taken, 2), (rescaled, 3), (mapped, 3)):
        verify(uri, read_metadata(uri))
        assert counted(uri) == ({"a": 2, "b": 2}, partitions)
    _restore(pipeline, rescaled)
    assert run(1, **{PARTITIONS: "3"}) == {"a": 4, "b": 4}
    assert counted() == ({"a": 4, "b": 4}, 3)
    _restore(pipeline, mapped)  # of the same checkpoint: the second file comes once more, and the third
    assert run(2, **{PARTITIONS: "3", PROVIDER: Backend.HDFS.provider}) == {"a": 6, "b": 6}
    assert counted() == ({"a": 6, "b": 6}, 3)


@pytest.mark.spark
@pytest.mark.chaos
@pytest.mark.release
def test_a_stage_recovers_from_a_full_disk_and_a_dead_name_node(
    tmp_path: Path, servers_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Hdfs(servers_folder / f"hdfs-{uuid.uuid4().hex[:8]}") as server:
        monkeypatch.setenv("HADOOP_USER_NAME", server.user)
        for pipeline in world(tmp_path):
            pipeline.root = f"{server.url}/wal"  # type: ignore[assignment]
            _add(pipeline, 0)
            pipeline.complete(_request(pipeline))
            _add(pipeline, 1)
            server.admin("-setSpaceQuota", "1m", "/wal")
            with pytest.raises(AirflowFtError) as full:
                pipeline.complete(_request(pipeline))
            assert "quota" in f"{full.value}"
            server.admin("-clrSpaceQuota", "/wal")
            pipeline.complete(_request(pipeline))
            _assert_continuous(pipeline.all_rows(), 2)

            _add(pipeline, 2)
            request = _request(pipeline)
            server.kill()
            with pytest.raises(AirflowFtError) as away:
                pipeline.complete(request)
            assert "NameNode" in away.value.remedy
            server.start()
            pipeline.complete(_request(pipeline))
            _assert_continuous(pipeline.all_rows(), 3)


@pytest.mark.spark
@pytest.mark.chaos
@pytest.mark.release
def test_a_table_gets_each_row_once_though_the_task_is_killed(
    tmp_path: Path, mariadb_database: Database, root: str
) -> None:
    shop = Shop(tmp_path, mariadb_database, root, CONF)
    deadline = time.monotonic() + 500
    with shop.task(1) as process:
        while not any(c.is_confirmed for c in shop.checkpoints()):
            assert process.poll() is None and time.monotonic() < deadline, shop.log(1)
            time.sleep(0.005)
    assert 0 < len(mariadb_database.sql("SELECT id FROM orders")) < FILES * ROWS, "the stage was not under way"
    with shop.task(2) as process:
        assert process.wait(500) == 0, shop.log(2)
    shop.finish(3)
    shop.check_exactly_once()


@pytest.mark.spark
@pytest.mark.chaos
@pytest.mark.release
def test_a_stream_delivers_each_row_once_though_it_is_killed(
    tmp_path: Path, kafka: Kafka, mariadb_database: Database, topic_factory: TopicFactory, root: str
) -> None:
    world = Streaming(tmp_path, kafka, mariadb_database, topic_factory)
    with closing(world.store):
        given = {"wal_root": root, "conf": CONF, "checkpointing": {"interval": 1.0}}
        with world.sending():
            with world.task(world.stream(**given)) as process:
                world.until_confirmed(1)
                world.kill_driver()
                process.kill()
            with world.task(world.stream(**given)):
                world.until_confirmed(2)
        with world.task(world.stream(**given)):
            world.until_all_is_there()
            assert world.stop().startswith("stopped; ")
        world.check_exactly_once()
        base = world.store.pipeline(world.pipeline).base
        assert base is not None and base.location.startswith(root)


def test_a_delivery_is_finished_when_the_name_node_is_back(
    store: DecisionLog, mariadb_database: Database, kafka: Kafka, topic: str, servers_folder: Path, monkeypatch: Any
) -> None:
    with Hdfs(servers_folder / f"hdfs-{uuid.uuid4().hex[:8]}") as server:
        monkeypatch.setenv("HADOOP_USER_NAME", server.user)
        root = f"{server.url}/wal"
        pipe: RealWorld = make_world(store, root, mariadb_database, kafka, topic)  # type: ignore[arg-type]
        numbers = pipe.stage(2)
        pipe.prepare()
        first, second = pipe.delivery.names
        pipe.commit(first)
        server.kill()
        with raises(StorageUnavailableError, "server_unreachable"):
            pipe.commit(second)
        assert [c.is_confirmed for c in store.checkpoints(pipe.pipeline)] == [False, False]
        server.start()
        pipe.deliver()
        pipe.run = RunKey("dag", "run-2")
        numbers += pipe.stage(1)
        pipe.deliver()
        assert pipe.ids() == expected(numbers)
        assert sorted(value(each)["id"] for each in read(kafka.bootstrap, topic)) == expected(numbers)
        assert all(c.is_confirmed for c in store.checkpoints(pipe.pipeline))


def test_the_doctor_examines_a_log_on_hdfs(
    hdfs: Hdfs, root: str, monkeypatch: pytest.MonkeyPatch, store: DecisionLog
) -> None:
    def verdicts(where: str) -> dict[str, tuple[Verdict, str]]:
        return {check.name: (check.verdict, check.text) for check in examine_wal(where, open_wal(), [])}

    filesystem(root).make_folder(root)
    found = verdicts(root)
    assert {name: verdict for name, (verdict, _) in found.items()} == {
        "writable": Verdict.OK,
        "room": Verdict.OK,
        "durable": Verdict.WARNING,
    }
    assert filesystem(root).names(root) == []
    monkeypatch.setenv("HADOOP_CONF_DIR", str(hdfs.configuration))
    assert verdicts(f"{root}/later")["durable"][0] is Verdict.OK
    assert verdicts(f"{root}/later")["place"][0] is Verdict.WARNING
    hdfs.admin("-setSpaceQuota", "8m", root.removeprefix(hdfs.url))
    assert verdicts(root)["room"] == (Verdict.WARNING, "8 MB of its quota are free, including replicas")
    verdict, text = verdicts("hdfs://127.0.0.1:1/wal")["place"]
    assert verdict is Verdict.PROBLEM and "hdfs://127.0.0.1:1/wal cannot be reached" in text
