"""Before Spark is started all sinks are looked at: what they lack is one error, and nothing of the run was begun."""

from __future__ import annotations

import logging
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import pytest

from airflow_ft.pipeline import ready
from airflow_ft.pipeline.dry_run import rehearse
from airflow_ft.pipeline.resolved import resolve
from airflow_ft.pipeline.spec import PipelineSpec
from airflow_ft.protocol.connections import ConnectionInfo, ConnectionResolver
from airflow_ft.protocol.errors import (
    ConfigurationError,
    SinkAccessError,
    SinkUnavailableError,
    StageError,
    TerminalError,
    UnfitTargetError,
)
from airflow_ft.sinks import open_participant
from airflow_ft.sinks import ready as sinks_ready
from airflow_ft.sinks.delta.spec import DeltaSink
from airflow_ft.sinks.files.spec import FilesSink
from airflow_ft.sinks.kafka.spec import KafkaSink
from airflow_ft.sinks.mysql.spec import MySqlSink
from airflow_ft.sinks.postgres.spec import PostgresSink
from airflow_ft.sinks.sqlite.spec import SqliteSink
from airflow_ft.sources import FileSource
from airflow_ft.spark.task.stage import Staging, stage_step
from airflow_ft.store import open_store
from airflow_ft.store.decision_log import DecisionLog
from airflow_ft.wal import open_wal
from tests.integration.real_world import RealWorld, make_world
from tests.raising import raises
from tools.servers import Database, Kafka, Postgres
from tools.servers.processes import free_port


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DecisionLog]:
    with closing(open_store(f"sqlite:///{tmp_path}/ft.db")) as store:
        yield store


@pytest.fixture
def world(store: DecisionLog, tmp_path: Path, mariadb_database: Database, kafka: Kafka, topic: str) -> RealWorld:
    root = tmp_path / "wal"
    root.mkdir()
    return make_world(store, root, mariadb_database, kafka, topic)


def declared(world: RealWorld, sinks: dict[str, Any] | None = None, **more: Any) -> PipelineSpec:
    return PipelineSpec(
        pipeline=world.pipeline,
        job="jobs.orders",
        sources={"orders": FileSource(path=str(world.root), schema="id bigint")},
        sinks=sinks or world.sinks,
        wal_root=str(world.root),
        spark_master="local[1]",
        **more,
    )


def require(world: RealWorld, sinks: dict[str, Any] | None = None, **more: Any) -> None:
    looked(world, world.connections, sinks, **more)


def looked(world: RealWorld, connections: ConnectionResolver, sinks: dict[str, Any] | None = None, **more: Any) -> None:
    opener = partial(open_participant, connections=connections, wal=open_wal())
    plans = declared(world, sinks, **more).delivery.participants
    ready.require_ready(world.pipeline, plans, connections, None, opener, world.store.installation)


def test_healthy_sinks_are_told_with_the_time_that_it_took(world: RealWorld, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    require(world)
    require(world)
    took = [float(match[1]) for text in caplog.messages if (match := re.search(r"shop, cluster \((\d+) ms\)", text))]
    assert len(took) == 2 and min(took) < 1000
    assert world.database.sql("SHOW TABLES") == [("orders",)], "neither ledger nor head"


def test_all_that_all_sinks_lack_is_one_error(world: RealWorld, postgres_database: Database, tmp_path: Path) -> None:
    server: Any = postgres_database.server
    assert isinstance(server, Postgres)
    (tmp_path / "file").write_text("no folder")
    found: dict[str, ConnectionInfo] = {
        "stock": ConnectionInfo(
            "stock", "postgres", server.host, server.port, server.user, server.password, postgres_database.name
        ),
        "wrong": ConnectionInfo("wrong", "mysql", world.server.host, world.server.port, "nobody", "wrong-password"),
        "away": ConnectionInfo("away", "mysql", "127.0.0.1", free_port(), "nobody", ""),
        "local": ConnectionInfo("local", "sqlite", str(tmp_path / "shop.db")),
    }
    sinks = {
        "orders": MySqlSink(table="no_orders", conn_id="shop"),
        "lines": MySqlSink(table="orders", conn_id="shop"),
        "refused": MySqlSink(table="orders", conn_id="wrong"),
        "gone": MySqlSink(table="orders", conn_id="away"),
        "copies": KafkaSink(topic="no-such-topic", conn_id="cluster"),
        "stock": PostgresSink(table="no_stock", conn_id="stock"),
        "own": SqliteSink(table="no_table", conn_id="local", create=False),
        "files": FilesSink(folder=str(tmp_path / "file" / "orders")),
        "table": DeltaSink(table=str(tmp_path / "delta"), create=False),
    }

    def connections(conn_id: str) -> ConnectionInfo:
        return found[conn_id] if conn_id in found else world.connections(conn_id)

    with pytest.raises(SinkAccessError) as caught:
        looked(world, connections, sinks)
    assert not isinstance(caught.value, TerminalError), "mending the environment is enough"
    assert caught.value.pipeline == world.pipeline and len(caught.value.fields["codes"]) == 8
    text = f"{caught.value}"
    for words in (
        r"connection 'shop', sink 'orders': .*no_orders(.|\n)*setup \w+ --dag FILE --print",
        "connection 'wrong': .*Access denied",
        "connection 'away': .*Can't connect",
        r"connection 'cluster', sink 'copies': .*'no-such-topic'(.|\n)*setup \w+ --dag FILE --print",
        r"connection 'stock', sink 'stock': .*no_stock(.|\n)*--print --tables",
        r"connection 'local', sink 'own': .*no_table(.|\n)*--print --tables",
        r"sink 'files': ",
        r"sink 'table': .*delta",
    ):
        assert re.search(words, text), (words, text)
    assert "sink 'lines'" not in text and "wrong-password" not in text


def test_an_unwritable_write_ahead_log_fails_before_spark_starts(world: RealWorld, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    root = str(tmp_path / "file" / "wal")
    pipeline = resolve(replace(declared(world), wal_root=root))
    for look in (
        lambda: ready.require_log(world.pipeline, root),
        lambda: rehearse(pipeline, world.connections),
    ):
        with pytest.raises(StageError) as caught:
            look()
        assert caught.value.pipeline == world.pipeline and "/file/wal" in caught.value.what
        assert "[airflow_ft] wal_root" in caught.value.remedy
    (tmp_path / "file").unlink()
    ready.require_log(world.pipeline, root)
    assert (tmp_path / "file" / "wal").is_dir()


def test_one_that_lacks_something_is_tried_again(world: RealWorld) -> None:
    world.overrides = {"shop": {"password": "wrong"}}
    with pytest.raises(SinkAccessError) as refused:
        require(world)
    assert refused.value.participant == "shop" and "Access denied" in refused.value.what
    world.overrides = {}
    world.database.sql("DROP TABLE orders")
    with pytest.raises(SinkAccessError) as missing:
        require(world)
    assert missing.value.sink == "rows" and "orders" in missing.value.what


@pytest.mark.parametrize("streaming", [True, False])
def test_a_stage_starts_without_a_server_but_not_without_a_topic(
    world: RealWorld, caplog: pytest.LogCaptureFixture, streaming: bool
) -> None:
    world.overrides = {"shop": {"port": free_port()}}
    require(world, streaming=streaming)
    assert "connection 'shop'" in caplog.text and "Rows are staged meanwhile" in caplog.text
    sinks = world.sinks | {"copies": KafkaSink(topic="no-such-topic", conn_id="cluster")}
    with pytest.raises(SinkUnavailableError) as both:
        require(world, sinks, streaming=streaming)
    assert all(name in both.value.what for name in ("2 ", "'shop'", "no-such-topic"))


def test_who_accepts_and_is_silent_is_away(
    world: RealWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sinks_ready, "LOOK_SECONDS", 0.5)
    with _silent() as port:
        world.overrides = {"shop": {"port": port}}
        require(world)
    assert "connection 'shop'" in caplog.text and "[server_unreachable]" in caplog.text


@contextmanager
def _silent() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


def test_settings_that_prepare_refuses_are_told(world: RealWorld) -> None:
    world.server.sql("SET GLOBAL innodb_flush_log_at_trx_commit = 2")
    try:
        with pytest.raises(SinkAccessError) as caught:
            require(world)
        assert "innodb_flush_log_at_trx_commit" in caught.value.what
    finally:
        world.server.sql("SET GLOBAL innodb_flush_log_at_trx_commit = 1")


def test_a_connection_that_does_not_exist_is_not_retried(world: RealWorld) -> None:
    with pytest.raises(ConfigurationError) as caught:
        require(world, {"rows": MySqlSink(table="orders", conn_id="nowhere")})
    assert "nowhere" in caught.value.headline


class Started(Exception):
    """Spark would start."""


def _stage(world: RealWorld, preflight: Callable[[], None], **more: Any) -> Any:
    def computes(*_: Any) -> NoReturn:
        raise Started

    return stage_step(world.context(), Staging(make_request=computes, on_line=print, preflight=preflight, **more))


def _lacks() -> None:
    raise UnfitTargetError("there is no table.", code="table_missing")


def test_a_run_does_not_begin_while_a_sink_lacks_something(world: RealWorld) -> None:
    with raises(UnfitTargetError, "table_missing"):
        _stage(world, _lacks)
    run = world.store.run(world.pipeline, world.run)
    assert world.store.pipeline(world.pipeline).epoch == 0 and run is not None and run.stage_began is None
    with pytest.raises(Started):
        _stage(world, lambda: None)


def test_sinks_are_not_checked_while_a_planned_delivery_waits(world: RealWorld) -> None:
    """A run that has staged everything does not check them either."""
    world.stage(1)
    assert _stage(world, _lacks) is None, "it has staged before"
    world.prepare()
    world.run = type(world.run)("dag", "run-2")
    with pytest.raises(Started):
        _stage(world, _lacks)


def test_sinks_are_looked_at_side_by_side(world: RealWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    both = threading.Barrier(2, timeout=30)

    def look(*_: Any) -> Iterator[Any]:
        both.wait()
        yield from ()

    monkeypatch.setattr("airflow_ft.sinks.mysql.requirements.required", look)
    monkeypatch.setattr("airflow_ft.sinks.kafka.requirements.required", look)
    require(world)
