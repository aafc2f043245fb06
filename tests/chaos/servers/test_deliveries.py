"""A small part of `make chaos`: faults over deliveries by a seed; then planted violations, which have to be found."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pymysql
import pytest
from confluent_kafka import Producer

from tests.chaos.deliveries import judge as judging
from tests.chaos.deliveries.faults import FAULTS, Choice, Draw
from tests.chaos.deliveries.judge import Verdict
from tests.chaos.deliveries.points import Point
from tests.chaos.deliveries.run import Deliveries, Options, Pipeline
from tests.chaos.deliveries.targets import TARGETS, targets_of
from tools.demo.console import Console

SEED = 9
SLOW = ("kill -9 of Kafka", "kill -9 of MySQL")  # their start takes longer than everything else here
CHOSEN = [name for name in FAULTS if name not in SLOW]
AIMS = ["local + transaction", "xa + held", "mariadb upsert"]
KILLS = 6

pytestmark = [pytest.mark.server, pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def chaos(servers_folder: Path) -> Iterator[Deliveries]:
    """After a run in which everything was exact."""
    deliveries = Deliveries(Options(servers_folder / "chaos", KILLS, SEED, CHOSEN, AIMS), Console())
    with closing(deliveries):
        deliveries.run()
        assert deliveries.report.exact, str(deliveries.report)
        yield deliveries


@pytest.mark.release
@pytest.mark.parametrize("system", ["redis", "hbase", "cassandra", "iceberg", "paimon", "hive"])
def test_a_slice_of_faults_in_each_of_the_newest_systems(servers_folder: Path, system: str) -> None:
    options = Options(servers_folder / f"chaos-{system}", KILLS, SEED, targets=targets_of(system))
    with closing(Deliveries(options, Console())) as deliveries:
        deliveries.run()
        assert deliveries.report.exact, str(deliveries.report)
        assert deliveries.report.looks > KILLS


@pytest.mark.release
def test_a_key_that_goes_back_is_found(servers_folder: Path) -> None:
    """No process asks for the fence of rows: one that wakes up behind a later number has to be found."""
    target = TARGETS["redis upsert"]
    draw = Draw(0, FAULTS["zombie at a point"], target, "sqlite")
    options = Options(servers_folder / "chaos-back", 1, SEED, ["lost reply of Redis"], [target.name])
    with closing(Deliveries(options, Console())) as deliveries:
        deliveries.run()
        quiet = deliveries.quiet(target, "sqlite")
        sent = [p for p in quiet.trace if (p.when, p.name) == ("before", "redis-upsert: EVALSHA")]
        struck = deliveries.round(draw, at(sent[0], late=True), quiet, "rows have no fence")
        assert struck.counted and struck.outcome == "other"
        [violation] = deliveries.report.violations
        assert "I2: " in violation and "went to" in violation, violation


@pytest.fixture
def mix(chaos: Deliveries) -> Pipeline:
    """A pipeline into MariaDB and Kafka, after its faults."""
    return next(p for p in chaos.pipelines if p.target.name == "local + transaction" and p.chunks)


def mariadb(chaos: Deliveries, statement: str, *values: object) -> None:
    chaos.judge.sql("mariadb", statement, *values)


def spoiled(chaos: Deliveries, pipeline: Pipeline) -> Verdict:
    verdict = chaos.look(pipeline)
    assert not verdict.exact
    return verdict


def test_a_slice_of_faults_loses_and_doubles_nothing(chaos: Deliveries) -> None:
    report = chaos.report
    assert len(report.counted) == KILLS
    assert len({one.fault for one in report.counted}) == KILLS
    assert {one.target for one in report.counted} == set(AIMS)
    assert {one.store for one in report.counted} == {"sqlite", "postgres"}
    assert json.loads(json.dumps(report.data()))["exact"] is True


def test_a_planted_double_and_a_planted_loss_are_found(chaos: Deliveries, mix: Pipeline) -> None:
    plant = "INSERT INTO rows_local SELECT pipeline, id, draw FROM rows_local WHERE pipeline = %s AND id = 0"
    mariadb(chaos, plant, mix.name)
    assert spoiled(chaos, mix).duplicated == 1
    mariadb(chaos, "DELETE FROM rows_local WHERE pipeline = %s AND id = 0 LIMIT 1", mix.name)
    assert chaos.look(mix).exact
    mariadb(chaos, "UPDATE rows_local SET pipeline = 'gone' WHERE pipeline = %s AND id = 1", mix.name)
    assert spoiled(chaos, mix).lost == 1
    mariadb(chaos, "UPDATE rows_local SET pipeline = %s WHERE pipeline = 'gone'", mix.name)
    assert chaos.look(mix).exact


def test_a_planted_half_delivery_is_found(chaos: Deliveries, mix: Pipeline) -> None:
    mariadb(chaos, "UPDATE rows_local SET pipeline = 'gone' WHERE pipeline = %s AND id < 1000000", mix.name)
    assert any(problem.startswith("I3: chunks [0]") for problem in spoiled(chaos, mix).problems)
    mariadb(chaos, "UPDATE rows_local SET pipeline = %s WHERE pipeline = 'gone'", mix.name)
    assert chaos.look(mix).exact


def test_a_marker_that_was_changed_is_found(chaos: Deliveries, mix: Pipeline) -> None:
    change = "UPDATE airflow_ft_ledger SET attempt = attempt {} 1 WHERE pipeline = %s ORDER BY number DESC LIMIT 1"
    mariadb(chaos, change.format("+"), mix.name)
    assert any(problem.startswith("I6") for problem in spoiled(chaos, mix).problems)
    mariadb(chaos, change.format("-"), mix.name)


def test_a_head_that_went_back_is_found(chaos: Deliveries, mix: Pipeline) -> None:
    change = "UPDATE airflow_ft_head SET epoch = epoch {} 1 WHERE pipeline = %s"
    mariadb(chaos, change.format("-"), mix.name)
    assert any(problem.startswith("I5: the head") for problem in spoiled(chaos, mix).problems)
    mariadb(chaos, change.format("+"), mix.name)


def test_a_pipeline_that_stands_still_is_found(chaos: Deliveries) -> None:
    pipeline = next(p for p in chaos.pipelines if p.store == "sqlite" and p.chunks)
    path = chaos.servers.store_disk.folder / "ft.db"

    def set_status(status: str) -> None:
        with closing(sqlite3.connect(path, isolation_level=None)) as log:
            log.execute("UPDATE pipeline SET status = ? WHERE name = ?", [status, pipeline.name])

    set_status("HALTED")
    assert any(problem.startswith("I7: the pipeline stands still") for problem in spoiled(chaos, pipeline).problems)
    set_status("ACTIVE")
    assert chaos.look(pipeline).exact


def test_a_branch_that_is_left_prepared_is_found(chaos: Deliveries, mix: Pipeline) -> None:
    with closing(pymysql.connect(**chaos.servers.mysql_of("mysql"))) as connection, connection.cursor() as cursor:
        for statement in ("XA START 'left'", "INSERT INTO rows_xa VALUES ('x', 1, 1)", "XA END 'left'"):
            cursor.execute(statement)
        cursor.execute("XA PREPARE 'left'")
        assert any(problem.startswith("I7: a branch is left") for problem in spoiled(chaos, mix).problems)
        cursor.execute("XA ROLLBACK 'left'")


def test_a_transaction_that_is_left_open_is_found(
    chaos: Deliveries, mix: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judging, "MARKERS_SECONDS", 1.0)
    settings = {"bootstrap.servers": chaos.servers.kafka.bootstrap, "transactional.id": "left", "log_level": 0}
    producer = Producer(settings)
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(mix.target.topic("b"), json.dumps({"pipeline": "x", "id": 1, "draw": 1}))
    producer.flush(30)
    assert any("read_committed readers stand at" in problem for problem in spoiled(chaos, mix).problems)
    producer.abort_transaction(30)


def at(point: Point, *, late: bool) -> Choice:
    """Twelve rows, and a fault at a point."""
    return Choice(
        point=point,
        before=None,
        fraction=0,
        chunks=[12],
        max_delivery_rows=0,
        all_done=False,
        new_run=False,
        skip=0,
        pattern=b"",
        hours=0,
        late=late,
        pause=0,
    )


def test_a_defect_in_the_package_is_found(chaos: Deliveries) -> None:
    """Every process sends without asking the token: a kill right after the commit has to double rows."""
    target = TARGETS["local + transaction"]
    draw = Draw(0, FAULTS["kill -9 at a point"], target, "sqlite")
    quiet = chaos.quiet(target, "sqlite")
    committed = [p for p in quiet.trace if (p.when, p.name) == ("after", "kafka-transaction: producer.commit")]
    choice = at(committed[-1], late=False)  # the one before raises the head
    struck = chaos.round(draw, choice, quiet, "the token is not asked")
    assert struck.counted
    assert struck.outcome == "duplicated"
