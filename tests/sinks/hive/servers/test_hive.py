"""A metastore, tables of others, and processes that meet."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from thriftpy2.transport import TTransportException

from airflow_ft.clients import buckets
from airflow_ft.protocol.doctor import Verdict
from airflow_ft.protocol.errors import (
    ConfigurationError,
    FencedError,
    SinkAccessError,
    SinkUnavailableError,
    StorageUnavailableError,
    StoreBehindSinkError,
    UnfitTargetError,
)
from airflow_ft.protocol.planning import plan_delivery
from airflow_ft.protocol.votes import Outcome
from airflow_ft.sinks import doctor
from airflow_ft.sinks.base.document import OvertakenError
from airflow_ft.sinks.base.requirements import lacks
from airflow_ft.sinks.hive import memory, table
from airflow_ft.sinks.hive.columns import lacks_columns
from airflow_ft.sinks.hive.metastore import Connected
from airflow_ft.sinks.hive.requirements import required
from airflow_ft.sinks.hive.thrift import API
from airflow_ft.testing.world import World
from airflow_ft.wal.local import local_path
from tests.raising import raises
from tests.sinks.hive.world import Table
from tests.wal.s3.conftest import connection_of
from tools.servers import Hive, VersityGw

pytestmark = [pytest.mark.server, pytest.mark.sampled(among="Hive")]
OURS = {"airflow_ft": "string"}


@pytest.fixture(params=["hive", pytest.param("hive3", marks=pytest.mark.release)])
def server(request: pytest.FixtureRequest) -> Hive:
    found: Hive = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def world(server: Hive, tmp_path: Path) -> Iterator[World]:
    with closing(World(Table(server), tmp_path)) as made:
        yield made


@contextmanager
def before_the_next(request: str, act: Callable[[], object]) -> Iterator[None]:
    """Something happens when the next request is on its way to the metastore."""
    call, done = getattr(table.Version, request), list[bool]()

    def made(*of: Any) -> Any:
        if not done:
            done.append(True)
            act()
        return call(*of)

    with mock.patch.object(table.Version, request, made):
        yield
    assert done


def a_raised_fence_refuses_what_is_on_its_way(world: World) -> None:
    world.deliver(world.plan())
    plan = world.plan()
    vote = world.prepare(plan)
    with before_the_next("commit", lambda: world.prepare(plan, epoch=2)), raises(FencedError, "fenced"):
        world.commit(plan, vote)
    world.shows(world.ids_of(1))


def test_a_raised_fence_refuses_what_is_on_its_way(world: World) -> None:
    a_raised_fence_refuses_what_is_on_its_way(world)
    place = local_path(world.target.files()[0]).parents[1]  # type: ignore[attr-defined]
    assert len(list(place.iterdir())) == 1  # what was refused left no files


@pytest.mark.parametrize("epoch", [1, 2], ids=["a retry", "another run"])
@pytest.mark.parametrize("reads", [0, 1, 2], ids=["before it reads", "before it commits", "after it committed"])
def test_a_request_that_lands_late_adds_its_rows_once(world: World, epoch: int, reads: int) -> None:
    """The answer is lost, and the metastore does the request later, beside the next try."""
    world.deliver(world.plan())
    plan = world.plan()
    vote = world.prepare(plan)
    commit, late = table.Version.commit, list[Any]()

    def lose(*of: Any) -> None:
        late.extend(of)
        raise TTransportException(TTransportException.TIMED_OUT, "a test")

    def land() -> None:
        commit(*late)
        late[0].place.close()

    with mock.patch.object(table.Version, "commit", lose), raises(SinkUnavailableError, "server_unreachable"):
        world.commit(plan, vote)
    if reads == 0:
        land()
    with before_the_next("commit", land) if reads == 1 else nullcontext():
        if epoch == 2:
            vote = world.prepare(plan, epoch=epoch)
        assert world.commit(plan, vote, epoch=epoch).outcome is Outcome.COMMITTED
    if reads == 2:
        with pytest.raises(OvertakenError):
            land()
    world.shows(world.ids_of(1, 2))


def test_no_step_drops_partitions(server: Hive, tmp_path: Path) -> None:
    """Rows of others, and of earlier checkpoints, have the same values in partition columns.

    See apache/seatunnel#4920 and apache/seatunnel#10280.
    """
    target = Table(server)
    target.make({"id": "bigint"}, {"text": "string", **OURS})

    def there() -> list[dict[str, Any]]:
        return sorted(target.read(), key=lambda row: int(row["id"]))

    with closing(World(target, tmp_path)) as world:
        rows = [{"id": id, "text": "DE"} for id in range(4)]
        for row in rows[:2]:
            world.deliver(world.plan(pa.Table.from_pylist([row])))
        with closing(World(target, tmp_path)) as other:  # not this pipeline
            other.deliver(other.plan(pa.Table.from_pylist([rows[2]])))
        assert there() == rows[:3]
        plan = world.plan(pa.table({"id": [9], "text": ["DE"]}))
        vote = world.prepare(plan)
        aborted = world.participant(plan).abort(plan, world.fence(1, world.attempt()), {})
        assert aborted.outcome is Outcome.ABORTED and world.commit(plan, vote).outcome is Outcome.ABORTED
        assert there() == rows[:3]
        world.deliver(world.plan(pa.Table.from_pylist([rows[3]])))
        assert there() == rows


def test_two_pipelines_do_not_meet(world: World) -> None:
    world.deliver(world.plan())
    plan = world.plan()
    vote = world.prepare(plan)
    with closing(World(world.target, world.folder)) as other:
        with before_the_next("commit", lambda: other.deliver(other.plan())):
            world.commit(plan, vote)
        world.shows(sorted([*world.ids_of(1, 2), *other.ids_of(1)]))


def test_partitions_are_named_as_hive_does(server: Hive, tmp_path: Path) -> None:
    target = Table(server, partition_by=("text",))
    with closing(World(target, tmp_path)) as world:
        texts = ["a/b", "ü", "50%", "a=b", None]
        rows = pa.table({"id": range(5), "text": pa.array(texts, pa.string())})
        world.deliver(world.plan(rows))
        assert {row["id"]: row["text"] for row in target.read()} == dict(enumerate(texts))
        found = target.partitions()
        assert {part["airflow_ft"] for part in found} == {f"{world.pipeline}/orders/1"}
        assert all("/_airflow_ft/" in str(part["folder"]) for part in found)


def test_the_memory_keeps_names_alone_of_old_documents(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "_FILLED", 4)
    for _ in range(6):
        world.deliver(world.plan())
    target = world.target
    assert isinstance(target, Table)
    found = {
        int(part["airflow_ft"].rpartition("-")[2]): "airflow_ft.memory.0" in part["parameters"]
        for part in target.partitions(memory=True)
    }
    assert sorted(found) == list(range(1, len(found) + 1))
    assert found[len(found)] and not found[1] and sum(found.values()) <= 8
    world.shows(world.ids_of(1, 2, 3, 4, 5, 6))


def test_a_table_that_lost_its_memory_halts_the_pipeline(world: World) -> None:
    world.deliver(world.plan())
    with mock.patch.object(memory, "_NAME", "gone-"), raises(StoreBehindSinkError, "ledger_lost"):
        world.prepare(world.plan())


@pytest.mark.parametrize(
    ("keys", "settings"),
    [
        ({}, {}),
        ({"dt": "string"}, {}),
        ({"airflow_ft": "bigint"}, {}),
        (OURS, {"numBuckets": 4, "bucketCols": ["id"]}),
        (OURS, {"parameters": {"partition.retention.period": "30d"}}),
        (OURS, {"location": "abfs://bucket@account/orders"}),
        (OURS, {"inputFormat": "org.apache.hadoop.mapred.TextInputFormat"}),
    ],
    ids=str,
)
def test_a_table_that_rows_cannot_be_added_to_is_refused(
    world: World, keys: dict[str, str], settings: dict[str, Any]
) -> None:
    target = world.target
    assert isinstance(target, Table)
    with suppress(API.MetaException):  # a metastore without S3 makes none there
        target.make({"id": "bigint", "text": "string"}, keys, **settings)
        with raises(UnfitTargetError, "table_unsupported"):
            world.prepare(world.plan())


def test_a_table_of_another_format_than_the_sink_says_is_refused(world: World) -> None:
    target = world.target
    assert isinstance(target, Table)
    target.make({"id": "bigint", "text": "string"}, OURS, format="orc")
    target.sink = replace(target.sink, format="parquet")
    with raises(UnfitTargetError, "layout_changed", setting="format"):
        world.prepare(world.plan())
    target.sink = replace(target.sink, format="orc")
    world.deliver(world.plan())
    assert [name.rpartition(".")[2] for name in target.files()] == ["orc"]


@pytest.mark.parametrize("by", [(), ("id",)], ids=str)
def test_a_table_without_columns_gets_those_of_the_first_rows(
    server: Hive, tmp_path: Path, by: tuple[str, ...]
) -> None:
    target = Table(server, partition_by=by)
    with closing(World(target, tmp_path)) as world:
        world.number = 1
        world.deliver(world.plan_of(1, world.nothing(1)))
        world.deliver(world.plan())
        with target.opened() as place:
            there = place.table()
            assert there is not None
            types = {each.name: each.type for each in [*there.sd.cols, *there.partitionKeys]}
        assert types == {"id": "bigint", "text": "string", "airflow_ft": "string"}
        world.shows(world.ids_of(2))


def test_columns_come_from_no_process_that_was_overtaken(world: World) -> None:
    world.number = 1
    world.deliver(world.plan_of(1, world.nothing(1)))
    plan = world.plan()
    with (
        closing(world.participant(plan)) as successor,
        before_the_next("evolve", lambda: successor.abort(plan, world.fence(2, world.attempt()), {})),
        raises(FencedError, "fenced"),
    ):
        world.prepare(plan)
    with world.target.opened() as place:  # type: ignore[attr-defined]
        assert lacks_columns(place.table())


def test_requests_that_fail_have_no_folder_to_remove(server: Hive) -> None:
    target = Table(server)
    there: dict[str, list[str]] = {}
    with target.opened() as place:
        client = place.client

        class Watched:
            def __getattr__(self, request: str) -> Any:
                found = [*server.managed.rglob("*"), *server.warehouse.rglob("*")]
                there[request] = [each.name for each in sorted(found) if target.space in str(each)]
                return getattr(client, request)

        place._client = Watched()
        table.Version.made(place, pa.schema([("id", pa.int64())]), (), "orc")
    assert there["create_database"] == [f"{target.space}.db"]
    assert there["create_table"] == [f"{target.space}.db", "orders"]


def test_an_unusable_folder_is_noticed_early(server: Hive, tmp_path: Path) -> None:
    target = Table(server, str(server.warehouse / "elsewhere"))
    schema = server.warehouse / "elsewhere" / target.space

    def found() -> list[tuple[str, str]]:
        plan = plan_delivery({"rows": target.sink}).participants[0]
        problems = lacks(required("p", plan, target.connection))
        examined = doctor.examine("p", plan, target.connection, [])
        assert [each.code for each in examined if each.verdict is Verdict.PROBLEM] == [each.code for each in problems]
        return [(each.code, str(each.fields["path"])) for each in problems]

    with closing(World(target, tmp_path)) as world:
        assert not target.partitions()  # a metastore's first answer may take longer than `required` waits
        assert not found()
        for folder in (schema, schema / "orders"):
            shutil.rmtree(folder, ignore_errors=True)
            folder.write_text("a file in the way")
            assert found() == [("folder_unusable", str(folder))]
            with raises(SinkAccessError, "folder_unusable"):
                world.deliver(world.plan_of(1))
            folder.unlink()
            schema.mkdir(exist_ok=True)
        with target.opened() as place:
            assert place.table() is None
        world.deliver(world.plan_of(1))
        assert not found()
        shutil.rmtree(schema / "orders" / "_airflow_ft")
        (schema / "orders" / "_airflow_ft").write_text("a file in the way")
        assert found() == [("folder_unusable", str(schema / "orders" / "_airflow_ft"))]
        with raises(SinkAccessError, "folder_unusable"):
            world.deliver(world.plan())
        shutil.rmtree(schema)
        plan = world.plan()
        steps: list[Callable[[], Any]] = [
            lambda: world.prepare(plan), lambda: world.commit(plan, None), lambda: world.abort(plan)
        ]  # fmt: skip
        for step in steps:
            assert found() == [("folder_unusable", str(schema / "orders"))]
            with raises(SinkAccessError, "folder_unusable"):
                step()
            assert not schema.exists()


@pytest.mark.release
def test_a_bucket_without_keys_is_told(versitygw: VersityGw, hive_s3: Hive, s3_keys: None, tmp_path: Path) -> None:
    target = Table(hive_s3, f"s3a://{versitygw.bucket}/keys")
    with closing(World(target, tmp_path)) as world:
        world.deliver(world.plan())
        world.shows(world.ids_of(1))
        buckets.resolve_with(lambda conn_id: replace(connection_of(versitygw, conn_id), login=""))
        target.sink = replace(target.sink, aws_conn_id="lake")
        with raises(ConfigurationError, "connection_invalid"):
            world.deliver(world.plan())


@pytest.mark.release
def test_a_bucket_that_refuses_the_keys_is_told(
    versitygw: VersityGw, hive_s3: Hive, s3_keys: None, tmp_path: Path
) -> None:
    target = Table(hive_s3, f"s3a://{versitygw.bucket}/refused", aws_conn_id="lake")
    with closing(World(target, tmp_path)) as world:
        buckets.resolve_with(lambda conn_id: connection_of(versitygw, conn_id))
        world.deliver(world.plan())
        buckets.resolve_with(lambda conn_id: replace(connection_of(versitygw, conn_id), password="wrong"))
        [problem] = lacks(required("p", world.plan().participant("orders"), target.connection))
        assert problem.code == "access_refused"
        with raises(StorageUnavailableError, "access_refused"):
            world.deliver(world.plan())
        buckets.resolve_with(lambda conn_id: connection_of(versitygw, conn_id))
        world.shows(world.ids_of(1))


def test_another_server_is_told(server: Hive) -> None:
    target = Table(server)
    with closing(Connected(target.connection, ("default", "t"))) as place, place.translated_errors():
        assert "default" in place.client.get_all_databases()
    kerberos = replace(target.connection, extra={"auth_mechanism": "GSSAPI"})
    with raises(SinkAccessError, "connection_invalid"):
        _ = Connected(kerberos, ("", "")).client
