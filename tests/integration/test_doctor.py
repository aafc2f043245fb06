"""`airflow ft doctor` on real servers: each finding has words and a remedy, and nothing stays behind."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from airflow_ft.pipeline.doctor import Patient, examine
from airflow_ft.protocol.doctor import Check, Verdict, worst
from airflow_ft.protocol.model import Fence
from airflow_ft.protocol.pipelines import HaltReason
from airflow_ft.sources import FileSource, KafkaSource
from airflow_ft.store import open_store
from airflow_ft.store.decision_log import DecisionLog
from tests.conftest import TopicFactory
from tests.integration.real_world import RealWorld, make_world
from tests.integration.test_store_postgres import url_of
from tools.servers import Database, Kafka, MariaDb, MySql, Postgres
from tools.servers.processes import free_port


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DecisionLog]:
    with closing(open_store(f"sqlite:///{tmp_path}/ft.db")) as store:
        yield store


@pytest.fixture
def world(store: DecisionLog, tmp_path: Path, any_mysql_database: Database, kafka: Kafka, topic: str) -> RealWorld:
    root = tmp_path / "wal"
    root.mkdir()
    return make_world(store, root, any_mysql_database, kafka, topic)


def checks_of(world: RealWorld, **changes: Any) -> list[Check]:
    given = {"participants": {p.name: p for p in world.delivery.participants}} | changes
    patient = Patient(world.pipeline, str(world.root), **given)
    found = examine(patient, lambda: open_store(world.store.url), world.connections, world.participants)
    assert all(check.remedy for check in found if check.verdict is not Verdict.OK), found
    return found


def bad(checks: list[Check]) -> dict[str, str]:
    return {f"{c.subject}: {c.name}": c.text for c in checks if c.verdict is Verdict.PROBLEM}


def state_of(world: RealWorld) -> Any:
    tables = world.server.sql("SHOW TABLES", world.database.name)
    rows = {table: world.server.sql(f"SELECT * FROM `{table}`", world.database.name) for (table,) in tables}
    assert world.kafka is not None
    return rows, world.store.events(world.pipeline, limit=1000) if world.store.pipelines() else []


def test_a_healthy_pipeline_that_never_ran(world: RealWorld) -> None:
    before = state_of(world)
    source = KafkaSource(topics=[world.topic], conn_id="cluster")
    checks = checks_of(world, sources={"orders": source})
    assert bad(checks) == {}
    text = " ".join(f"{c.subject} {c.name} {c.text}" for c in checks)
    for words in (
        "never ran",
        "survive a power cut",
        "first `prepare` creates it in schema",
        "deletes tokens 7 days",
        "java",
    ):
        assert words in text, text
    assert state_of(world) == before, "nothing stays"


def test_a_healthy_pipeline_is_examined_from_its_stored_plan(world: RealWorld) -> None:
    world.stage(2)
    world.deliver()
    world.stage(1)
    before = state_of(world)
    checks = checks_of(world, participants={})
    assert (
        worst([c for c in checks if "durability" not in c.name and c.name != f"topic {world.topic}"]) is Verdict.OK
    ), checks
    text = " ".join(c.text for c in checks)
    for words in (
        "takes those of checkpoint",
        "its newest checkpoint is 2",
        "checkpoint 2 was confirmed last",
        "40 rows of 1 und",
    ):
        assert words in text, text
    assert state_of(world) == before


def test_what_is_wrong_is_told_each_for_itself(world: RealWorld, tmp_path: Path) -> None:
    world.stage(1)
    world.prepare()
    world.database.sql("ALTER TABLE orders MODIFY name VARCHAR(3)")
    world.topic = "no-such-topic"
    checks = checks_of(
        world, sources={"files": FileSource(path=f"{tmp_path}/nothing", schema="id bigint")}, jars=("/no/such.jar",)
    )
    found = bad(checks)
    assert "a text longer than 3 characters" in found["connection shop: rows for " + f"{world.database.name}.orders"]
    assert "does not exist" in found["connection cluster: topic no-such-topic"]
    assert "/nothing does not exist" in found["source files: folder"]
    assert "/no/such.jar" in found["spark: jars"]
    assert any(c.name == "in doubt" and c.verdict is Verdict.WARNING and "1 (PREPARED)" in c.text for c in checks)


def test_doctor_examines_the_rest_when_a_system_is_unreachable(world: RealWorld) -> None:
    world.overrides = {"shop": {"port": free_port()}, "cluster": {"password": "unused"}}
    found = bad(checks_of(world))
    assert list(found) == ["connection shop: connect"]


def test_a_wrong_password_and_a_missing_privilege(world: RealWorld) -> None:
    world.overrides = {"shop": {"password": "not the password"}}
    found = bad(checks_of(world))
    assert "Access denied" in found["connection shop: connect"]
    assert "not the password" not in f"{found}"
    user = f"u{world.database.name}"[:30]
    world.server.sql(f"CREATE USER '{user}'@'%' IDENTIFIED BY 'secret'")
    world.server.sql(f"GRANT SELECT ON `{world.database.name}`.* TO '{user}'@'%'")
    try:
        world.overrides = {"shop": {"login": user, "password": "secret"}}
        checks = checks_of(world)
        assert "no grant lets this user create them" in bad(checks)["connection shop: ledger"]
        assert any("CREATE TABLE" in check.remedy for check in checks)
        world.overrides = {}
        world.stage(1)
        world.deliver()
        world.overrides = {"shop": {"login": user, "password": "secret"}}
        found = bad(checks_of(world))
        assert "lacks a privilege" in found["connection shop: ledger"]
        assert "lacks a privilege" in found[f"connection shop: table {world.database.name}.orders"]
    finally:
        world.server.sql(f"DROP USER '{user}'@'%'")


def test_a_log_that_is_behind_and_a_halted_pipeline(world: RealWorld, tmp_path: Path) -> None:
    world.stage(2)
    world.deliver()
    world.store.halt(world.pipeline, HaltReason.STORE_BEHIND_SINK, "it stands at 9.")
    assert "HALTED (STORE_BEHIND_SINK)" in bad(checks_of(world))[f"pipeline {world.pipeline}: status"]
    with closing(open_store(f"sqlite:///{tmp_path}/other.db")) as other:
        world.store = other
        found = bad(checks_of(world))
    assert "belongs to the decision log" in found["connection shop: memory"]
    assert "belongs to the decision log" in found["connection cluster: memory"]


def test_an_unrecorded_commit_is_not_taken_for_an_older_log(world: RealWorld, tmp_path: Path) -> None:
    world.stage(1)
    with closing(sqlite3.connect(tmp_path / "ft.db")) as log, closing(sqlite3.connect(tmp_path / "older.db")) as backup:
        log.backup(backup)
    world.prepare()
    plan = world.store.checkpoint(world.pipeline, 1).plan
    assert plan is not None
    epoch = world.store.pipeline(world.pipeline).epoch
    attempt = world.store.begin_attempt(world.pipeline, epoch, 1, "shop")
    with closing(world.participants(plan.participant("shop"))) as sink:
        sink.commit(plan, Fence(world.pipeline, world.store.installation, epoch, attempt))
    checks = checks_of(world)
    assert bad(checks) == {}
    [memory] = [c for c in checks if c.name == "memory" and c.verdict is Verdict.WARNING]
    assert memory.text.startswith("its newest checkpoint is 1, which is PREPARED")
    with closing(open_store(f"sqlite:///{tmp_path}/older.db")) as older:
        world.store = older
        assert "that of the decision log is 0" in bad(checks_of(world))["connection shop: memory"]


def test_lost_rows_of_an_undelivered_checkpoint(world: RealWorld) -> None:
    world.stage(1)
    for manifest in world.root.rglob("manifest.json"):
        manifest.unlink()
    assert "missing" in bad(checks_of(world))[f"write-ahead log {world.root}: rows"]


@pytest.mark.sampled(among="servers of their own")
def test_an_unsafe_server_is_told(own_server: Any, store: DecisionLog, tmp_path: Path) -> None:
    server = own_server(MariaDb, innodb_flush_log_at_trx_commit=2)
    with Database.fresh(server) as database:
        (tmp_path / "wal").mkdir()
        world = make_world(store, tmp_path / "wal", database)
        found = bad(checks_of(world))
        assert "innodb_flush_log_at_trx_commit=2" in found["connection shop: durability"]


@pytest.mark.sampled(among="servers of their own")
def test_rows_that_go_by_insert_are_told_with_the_way_out(own_server: Any, store: DecisionLog, tmp_path: Path) -> None:
    server = own_server(MySql, local_infile=0)
    with Database.fresh(server) as database:
        (tmp_path / "wal").mkdir()
        world = make_world(store, tmp_path / "wal", database)
        for extra, where, remedy in (
            ({}, "in the server", "SET PERSIST local_infile = ON"),
            ({"local_infile": False}, "in the connection's extra", '"local_infile": false'),
        ):
            world.overrides = {"shop": {"extra": extra}}
            [check] = [check for check in checks_of(world) if check.name == "local_infile"]
            assert check.verdict is Verdict.WARNING and f"LOAD DATA LOCAL is off {where}" in check.text
            assert remedy in check.remedy


def test_mariadb_needs_no_local_infile(store: DecisionLog, tmp_path: Path, mariadb_database: Database) -> None:
    (tmp_path / "wal").mkdir()
    world = make_world(store, tmp_path / "wal", mariadb_database)
    [check] = [check for check in checks_of(world) if check.name == "local_infile"]
    assert (check.verdict, check.text) == (Verdict.OK, "is not needed: rows go by INSERT, which costs MariaDB less")


@pytest.mark.sampled(among="servers of their own")
def test_short_times_of_a_broker_are_told(
    own_server: Any, store: DecisionLog, tmp_path: Path, mariadb_database: Database
) -> None:
    kafka = own_server(Kafka, **{"transaction.max.timeout.ms": 60000, "offsets.retention.minutes": 60})
    kafka.create_topic("alerts", 1)
    (tmp_path / "wal").mkdir()
    world = make_world(store, tmp_path / "wal", mariadb_database, kafka, "alerts")
    checks = checks_of(world)
    assert "the broker allows 60000" in bad(checks)["connection cluster: transaction time-out"]
    assert any(c.name == "token retention" and c.verdict is Verdict.WARNING for c in checks)


def test_postgres_as_the_decision_log(postgres: Postgres, world: RealWorld, tmp_path: Path) -> None:
    url = url_of(postgres, "ft_doctor")
    try:
        patient = Patient(world.pipeline, str(world.root))
        checks = examine(patient, lambda: open_store(url), world.connections, world.participants)
        text = " ".join(c.text for c in checks)
        assert "PostgreSQL" in text and "synchronous_commit=on" in text
        assert postgres.password not in text
    finally:
        postgres.sql("DROP SCHEMA IF EXISTS ft_doctor CASCADE")


def test_a_decision_log_that_cannot_be_reached_is_one_finding(world: RealWorld) -> None:
    url = f"postgresql://ada:open%20sesame@127.0.0.1:{free_port()}/db?connect_timeout=2"
    patient = Patient(world.pipeline, str(world.root), {p.name: p for p in world.delivery.participants})
    checks = examine(patient, lambda: open_store(url), world.connections, world.participants)
    assert list(bad(checks)) == ["decision log: reachable"]
    assert "sesame" not in f"{checks}"


def test_a_folder_that_cannot_be_written(world: RealWorld, tmp_path: Path, topic_factory: TopicFactory) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    world.root = blocked
    assert "cannot be written" in bad(checks_of(world))[f"write-ahead log {blocked}: writable"]
