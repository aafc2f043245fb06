"""Another pipeline fills the table: refused, unless both declare it. A pipeline that continues the other one may."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_ft import DeltaSink, KafkaSink, MySqlSink, PostgresSink, SqliteSink
from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.coordinator import Coordinator, coordinating
from airflow_ft.protocol.errors import AirflowFtError, ConfigurationError, UnfitTargetError
from airflow_ft.protocol.lease import Worker, new_epoch
from airflow_ft.protocol.model import CheckpointingMode, RunKey, SparkPosition
from airflow_ft.protocol.planning import Delivery, plan_delivery
from airflow_ft.protocol.recovery import give_up_undecided
from airflow_ft.protocol.sharing import require_own_targets
from airflow_ft.protocol.sink_spec import SinkSpec
from airflow_ft.sinks.shared import Opener
from airflow_ft.store import open_store
from airflow_ft.store.decision_log import DecisionLog
from airflow_ft.testing.world import ROWS, SINK, World
from airflow_ft.wal.writer import SegmentFolder, write_segment
from tests.raising import raises
from tests.sinks.sqlite.test_sqlite import File

RUN = RunKey("dag", "run-1")
OTHER, MINE = "orders", "orders-copy"


class Scene:
    """Pipelines of one decision log, over files of SQLite."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store: DecisionLog = open_store(f"sqlite:///{folder}/ft.db")
        self.file = folder / "shop.db"
        self.connections = {
            "shop": ConnectionInfo("shop", "sqlite", host=str(self.file)),
            "same": ConnectionInfo("same", "sqlite", host=f"{folder}/../{folder.name}/shop.db"),
            "else": ConnectionInfo("else", "sqlite", host=str(folder / "else.db")),
        }
        self.opener = Opener(self.connection)

    def connection(self, name: str) -> ConnectionInfo:
        if name not in self.connections:
            raise ConfigurationError(f"there is no connection {name!r}.")
        return self.connections[name]

    def stage(self, pipeline: str, spec: Mapping[str, Any] | None = None, dag: str = "") -> int:
        """One checkpoint with ROWS rows, not planned yet."""
        self.store.register(pipeline)
        run = RunKey(dag or f"dag-of-{pipeline}", "run-1")
        with new_epoch(self.store, pipeline, Worker("stage", 1), "stage", 3600.0) as (epoch, _):
            self.store.begin_stage(pipeline, epoch, run, spec=spec)
            number = self.store.trigger(pipeline, epoch, run)
            table = World(File(self.folder), self.folder).table(number * ROWS)
            folder = SegmentFolder(str(self.folder / "wal"), pipeline, epoch, 1, number)
            predecessor = self.store.pipeline(pipeline).last_published
            position = SparkPosition(f"file:///spark/{epoch}-1", number)
            segment = write_segment(folder, number, {SINK: table})
            self.store.publish(pipeline, epoch, number, predecessor, segment, position, {})
            self.store.end_stage(pipeline, epoch, run, None)
        return number

    def plan(self, pipeline: str, sink: SinkSpec) -> None:
        with self.coordinating(pipeline) as coordinator:
            coordinator.plan(delivery_of(sink), 0)

    def deliver(self, pipeline: str, sink: SinkSpec, dag: str = "") -> None:
        """Do the work of a run."""
        self.stage(pipeline, dag=dag)
        self.resume(pipeline, sink)

    def resume(self, pipeline: str, sink: SinkSpec) -> None:
        with self.coordinating(pipeline) as coordinator:
            for number in coordinator.plan(delivery_of(sink), 0):
                coordinator.deliver(number)

    @contextmanager
    def coordinating(self, pipeline: str) -> Iterator[Coordinator]:
        with coordinating(self.store, pipeline, self.opener, Worker("test", 1), "test", 3600.0) as (coordinator, _):
            yield coordinator

    def rows(self, file: str = "shop.db", table: str = "orders") -> int:
        with closing(sqlite3.connect(self.folder / file)) as db:
            [(count,)] = db.execute(f'SELECT count(*) FROM "{table}"').fetchall()
            return int(count)


def delivery_of(sink: SinkSpec, mode: CheckpointingMode = CheckpointingMode.EXACTLY_ONCE) -> Delivery:
    return plan_delivery({SINK: sink}, mode=mode)


def into(conn_id: str = "shop", table: str = "orders", **more: Any) -> SqliteSink:
    return SqliteSink(table=table, conn_id=conn_id, **more)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(tmp_path)
    yield scene
    scene.store.close()


@pytest.mark.parametrize("sink", [into(), into("same"), into(table="ORDERS"), into(create=False)])
def test_a_table_that_another_pipeline_has_filled_is_refused(scene: Scene, sink: SqliteSink) -> None:
    scene.deliver(OTHER, into())
    with raises(UnfitTargetError, "target_shared", pipeline=MINE, sink=SINK, other=OTHER, staged=True) as raised:
        scene.deliver(MINE, sink)
    assert raised.error and "--rename" in raised.error.remedy and "shared=True" in raised.error.remedy
    assert scene.rows() == ROWS
    scene.resume(MINE, into(table="orders_of_mine"))  # the rows have waited
    assert (scene.rows(), scene.rows(table="orders_of_mine")) == (ROWS, ROWS)


def test_what_is_refused_before_spark_begins_is_told_so(scene: Scene) -> None:
    scene.deliver(OTHER, into())
    scene.store.register(MINE)
    with raises(UnfitTargetError, "target_shared", other=OTHER, staged=False):
        require_own_targets(scene.store, MINE, delivery_of(into()).participants, scene.opener, staged=False)


@pytest.mark.parametrize(
    "sink", [into("else"), into(table="others"), into(table="\N{LATIN SMALL LETTER O WITH ACUTE}rders")]
)
def test_another_table_is_nobody_else_s(scene: Scene, sink: SqliteSink) -> None:
    scene.deliver(OTHER, into())
    scene.deliver(MINE, sink)


def test_a_table_that_another_pipeline_left_is_still_refused(scene: Scene) -> None:
    """The other pipeline delivers through another connection now, but its rows are still there."""
    scene.deliver(OTHER, into())
    scene.deliver(OTHER, into("else"))
    with pytest.raises(UnfitTargetError):
        scene.deliver(MINE, into())


def test_both_declare_that_they_share_it(scene: Scene) -> None:
    scene.deliver(OTHER, into())
    with pytest.raises(UnfitTargetError):  # one of them alone
        scene.deliver(MINE, into(shared=True))
    scene.deliver(OTHER, into(shared=True))
    with pytest.raises(UnfitTargetError):  # and the other one alone
        scene.deliver(MINE, into())
    scene.resume(MINE, into(shared=True))
    assert scene.rows() == 4 * ROWS


def test_a_run_without_rows_declares_it_as_well(scene: Scene) -> None:
    scene.deliver(OTHER, into())
    declared = {"sinks": {SINK: {"kind": "sqlite", **into(shared=True).settings()}}}
    with new_epoch(scene.store, OTHER, Worker("stage", 1), "stage", 3600.0) as (epoch, _):
        scene.store.begin_stage(OTHER, epoch, RunKey("dag", "run-2"), spec=declared)
        scene.store.end_stage(OTHER, epoch, RunKey("dag", "run-2"), None)
    scene.deliver(MINE, into(shared=True))


@pytest.mark.parametrize(("dag", "continues"), [("load_shops", True), ("python:other", False), ("another", False)])
def test_in_one_dag_the_one_that_begins_declares_it_for_both(scene: Scene, dag: str, continues: bool) -> None:
    """So a mapped group gets a new map index; the pipelines of former days never run again."""
    scene.deliver(OTHER, into(), dag if "python" in dag else "load_shops")
    with pytest.raises(UnfitTargetError):
        scene.deliver(MINE, into(), dag)
    if continues:
        scene.resume(MINE, into(shared=True))
    else:
        with pytest.raises(UnfitTargetError):
            scene.resume(MINE, into(shared=True))


@pytest.mark.parametrize("is_new", [False, True])
def test_a_dag_that_has_restored_both_declares_for_neither(is_new: bool, scene: Scene) -> None:
    """The maintenance DAG restores any pipeline. If it is new, that DAG is the only one known of it until its run."""

    for each in (OTHER, MINE):
        scene.store.register(each)

    def restore(pipeline: str) -> None:
        with new_epoch(scene.store, pipeline, Worker("restore", 1), "restore", 3600.0) as (epoch, _):
            base = scene.store.pipeline(pipeline).base
            scene.store.restore(pipeline, epoch, base, "a test", RunKey("maintenance", pipeline), "a savepoint")

    if is_new:
        restore(OTHER)
    scene.deliver(OTHER, into(), "theirs")
    if not is_new:
        restore(OTHER)
        scene.store.enter_turn(MINE, RunKey("mine", "run-0"), None)
        scene.store.leave_turn(MINE, RunKey("mine", "run-0"))
    restore(MINE)
    with raises(UnfitTargetError, "target_shared", other=OTHER):  # as `airflow ft doctor` asks before the run
        require_own_targets(scene.store, MINE, delivery_of(into(shared=True)).participants, scene.opener, staged=False)
    scene.store.enter_turn(MINE, RunKey("mine", "run-1"), None)
    with raises(UnfitTargetError, "target_shared", other=OTHER):
        scene.deliver(MINE, into(shared=True), "mine")


@pytest.mark.parametrize("shared", [True, False])
def test_a_table_of_a_retired_pipeline_must_be_declared_shared(scene: Scene, shared: bool) -> None:
    scene.deliver(OTHER, into())
    scene.store.leave_turn(OTHER, RUN)
    scene.store.retire(OTHER, "ada")
    if shared:
        scene.deliver(MINE, into(shared=True))
    else:
        with raises(UnfitTargetError, "target_shared") as refused:
            scene.deliver(MINE, into())
        assert refused.error is not None and f"`airflow ft retire {OTHER}`" in refused.error.remedy


def test_the_table_that_a_pipeline_fills_stays_its_own(scene: Scene) -> None:
    """Also one that two pipelines shared before the check existed."""
    scene.deliver(OTHER, into())
    plain: Any = lambda plan: Opener(scene.connection)(plan)  # noqa: E731
    opener, scene.opener = scene.opener, plain
    scene.deliver(MINE, into())
    scene.opener = opener
    scene.deliver(MINE, into(create=False))
    with pytest.raises(UnfitTargetError):  # it begins once more elsewhere
        scene.deliver(OTHER, into("else"))
        scene.deliver(MINE, into("else"))


def test_a_second_table_of_a_connection_is_compared_too(scene: Scene) -> None:
    scene.deliver(OTHER, into(table="others"))
    scene.deliver(MINE, into())
    with pytest.raises(UnfitTargetError):
        scene.deliver(MINE, into(table="others"))


def test_of_two_that_begin_at_once_not_both_deliver(scene: Scene) -> None:
    """Both are planned before either has asked for a vote."""
    for name in (OTHER, MINE):
        scene.stage(name)
    barrier, plain = threading.Barrier(2), scene.store.plan

    def plan(*of: Any) -> Any:
        with suppress(threading.BrokenBarrierError):
            barrier.wait(5)  # neither sees a plan of the other one before its own is stored
        return plain(*of)

    scene.store.plan = plan  # type: ignore[method-assign]
    refused: list[str] = []

    def run(name: str) -> None:
        try:
            scene.resume(name, into())
        except UnfitTargetError as error:
            refused.append(error.pipeline)

    threads = [threading.Thread(target=run, args=(name,)) for name in (OTHER, MINE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert refused
    assert len(refused) == 2 or scene.rows() == ROWS


def test_a_plan_that_is_not_delivered_yet_counts(scene: Scene) -> None:
    scene.stage(OTHER)
    scene.plan(OTHER, into())
    scene.stage(MINE)
    with raises(UnfitTargetError, "target_shared", other=OTHER, number=0) as refused:
        scene.resume(MINE, into())
    assert refused.error is not None and f"`airflow ft rewind {OTHER}`" in refused.error.remedy
    with scene.coordinating(OTHER) as coordinator:  # as this command does
        assert give_up_undecided(scene.store, OTHER, coordinator, "ada")
    scene.resume(MINE, into())
    assert scene.rows() == ROWS


def test_a_pipeline_that_was_renamed_goes_on_in_its_own_table(scene: Scene) -> None:
    scene.deliver(OTHER, into())
    scene.store.leave_turn(OTHER, RUN)
    scene.store.register(MINE)
    with (
        new_epoch(scene.store, OTHER, Worker("a", 1), "rename", 3600.0) as (held, _),
        new_epoch(scene.store, MINE, Worker("b", 1), "rename", 3600.0) as (epoch, _),
    ):
        number = scene.store.latest_confirmed(OTHER).number  # type: ignore[union-attr]
        scene.store.finalise(OTHER, number)
        scene.store.rename(OTHER, held, number, MINE, epoch, SparkPosition("file:///spark/copy", 1), "a test")
    scene.deliver(MINE, into())
    assert scene.rows() == 2 * ROWS
    with pytest.raises(UnfitTargetError):
        scene.deliver("orders-third", into())


@pytest.mark.parametrize(("covers", "continues"), [(1, True), (0, False)])
def test_a_savepoint_s_copy_goes_on_where_the_other_one_stands(scene: Scene, covers: int, continues: bool) -> None:
    """Rows that were delivered after the savepoint would come again."""
    scene.deliver(OTHER, into())
    scene.store.register(MINE)
    with new_epoch(scene.store, MINE, Worker("a", 1), "restore", 3600.0) as (epoch, _):
        position = SparkPosition("file:///spark/copy", 1)
        scene.store.restore(MINE, epoch, position, "a test", of=(OTHER, covers))
    if continues:
        scene.deliver(MINE, into())
    else:
        with pytest.raises(UnfitTargetError):
            scene.deliver(MINE, into())


def test_a_connection_that_is_gone_is_compared_by_its_name(scene: Scene) -> None:
    scene.deliver(OTHER, into("same"))
    del scene.connections["same"]
    scene.deliver(MINE, into())  # where the other one led is unknown
    scene.connections["same"] = scene.connections["shop"]
    with pytest.raises(UnfitTargetError):
        scene.deliver("orders-third", into("same"))


def test_an_unreadable_plan_of_another_pipeline_stops_nobody(scene: Scene) -> None:
    scene.deliver(OTHER, into())
    with scene.store._database.write() as tx:  # type: ignore[attr-defined]
        tx.change("UPDATE checkpoint SET plan = '{}' WHERE pipeline = ?", OTHER)
    scene.deliver(MINE, into())


DELIVERED = ConnectionInfo("x", "mysql", host="127.0.0.1", schema="shop")


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (MySqlSink(table="orders"), MySqlSink(table="shop.Orders"), True),
        (MySqlSink(table="orders"), MySqlSink(table="`shop`.orders", strategy="xa"), True),
        (MySqlSink(table="orders"), MySqlSink(table="other.orders"), False),
        (PostgresSink(table="orders"), PostgresSink(table='public."orders"'), True),
        (PostgresSink(table="orders"), PostgresSink(table='"Orders"'), False),
        (KafkaSink(topic="orders"), KafkaSink(topic="orders", slots=3), True),
        (KafkaSink(topic="orders"), KafkaSink(topic="Orders"), False),
        (DeltaSink(table="/data/orders"), DeltaSink(table="file:///data/orders/"), True),
        (DeltaSink(table="/data/orders"), DeltaSink(table="/data//orders", name="other"), True),
        (DeltaSink(table="s3://lake@bucket/a"), DeltaSink(table="s3://bucket/a/"), True),
        (DeltaSink(table="/data/orders"), DeltaSink(table="/data/others"), False),
    ],
)
def test_a_place_has_one_text_however_it_is_written(one: SinkSpec, other: SinkSpec, same: bool) -> None:
    opener = Opener(lambda name: replace(DELIVERED, conn_id=name, extra={"bootstrap.servers": "localhost:9092"}))
    first, second = (places_of(opener, sink) for sink in (one, other))
    assert bool(first & second) is same


@pytest.mark.parametrize("sink", [MySqlSink(table="orders"), PostgresSink(table="orders")])
@pytest.mark.parametrize("hosts", [("DB.example.com", "db.example.com"), ("LOCALHOST", "127.0.0.1")])
def test_a_server_is_the_same_one_however_its_host_is_written(sink: SinkSpec, hosts: tuple[str, str]) -> None:
    kind = "mysql" if isinstance(sink, MySqlSink) else "postgres"
    first, second = (
        places_of(Opener(lambda name, host=host: ConnectionInfo(name, kind, host=host, schema="shop")), sink)
        for host in hosts
    )
    assert first == second


def places_of(opener: Opener, sink: SinkSpec) -> set[str]:
    [places] = opener.places(replace(delivery_of(sink).participants[0], name="x")).values()
    return set(places)


@pytest.mark.parametrize(
    ("servers", "same"),
    [("b:9092,a:9092", True), ("SASL_SSL://B:9092", True), ("b", True), ("c:1,b", True), ("b:9093", False),
     ("[::1]:9092,z", False)],
)  # fmt: skip
def test_a_cluster_is_recognised_by_any_of_its_servers(servers: str, same: bool) -> None:
    topic = KafkaSink(topic="orders")

    def at(named: str) -> set[str]:
        return places_of(Opener(lambda name: ConnectionInfo(name, "kafka", extra={"bootstrap.servers": named})), topic)

    assert bool(at("a:9092,b:9092") & at(servers)) is same


@pytest.mark.parametrize("kind", [MySqlSink, PostgresSink, SqliteSink, DeltaSink, KafkaSink])
def test_a_plan_says_it_only_where_it_is_declared(kind: Any) -> None:
    place = {"topic": "orders"} if kind is KafkaSink else {"table": "/data/orders" if kind is DeltaSink else "orders"}
    assert "shared" not in kind(**place).settings()
    assert kind(**place, shared=True).settings()["shared"] is True
    with pytest.raises(AirflowFtError):
        kind(**place, shared="yes")
