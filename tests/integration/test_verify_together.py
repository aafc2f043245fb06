"""`airflow ft verify`: all that went into one target is compared together, and what it costs to know."""

from __future__ import annotations

from argparse import Namespace
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_ft.admin.commands import common
from airflow_ft.admin.commands import doctor as command
from airflow_ft.pipeline.actions.verifying import describe
from airflow_ft.protocol.doctor import Verdict
from airflow_ft.protocol.model import Plan
from airflow_ft.protocol.set_aside import of_proof
from airflow_ft.protocol.verify import Delivered, SinkReport
from airflow_ft.protocol.votes import Proof
from airflow_ft.sinks.base import slices
from airflow_ft.sinks.kafka.spec import KafkaSink
from airflow_ft.sinks.kafka.verify import verify as verify_kafka
from airflow_ft.sinks.mysql.doctor import examine
from airflow_ft.sinks.mysql.verify import verify as verify_mysql
from airflow_ft.store import open_store
from airflow_ft.wal import open_wal
from tests.integration.kafka_world import World as KafkaWorld
from tests.integration.real_world import make_world as make_real_world
from tests.sinks.mysql.world import MySqlWorld, make_world, orders, vote_for
from tools.servers import Database, Kafka


@pytest.fixture
def world(any_mysql_database: Database, tmp_path: Path) -> MySqlWorld:
    return make_world(any_mysql_database, tmp_path)


def delivered(world: MySqlWorld, table: pa.Table) -> Plan:
    plan = world.plan(**dict.fromkeys(world.sinks, table))
    world.deliver(plan, 1, plan.number)
    return plan


def report(world: MySqlWorld, *plans: Plan) -> SinkReport:
    given = [Delivered(plan, world.participant(plan).proof(plan), None) for plan in plans]
    [found] = verify_mysql(given, plans[-1].participants[0], world.connection(), open_wal())
    return found


def equal(count: int, **more: Any) -> pa.Table:
    """Rows that are all the same."""
    return pa.table({"id": pa.array([7] * count, pa.int64()), "name": ["x"] * count} | more)


def test_an_equal_row_of_another_strategy_hides_no_loss(world: MySqlWorld) -> None:
    first = delivered(world, equal(2))
    world.use("xa", branches=2)
    second = delivered(world, equal(3))
    found = report(world, first, second)
    assert found.is_exact and (found.expected, found.numbers) == (5, (1, 2))
    world.sql("DELETE FROM orders LIMIT 1")
    found = report(world, first, second)
    assert (found.missing, found.repeated) == (1, 0) and not found.is_exact


def test_an_equal_row_of_another_sink_hides_no_loss(world: MySqlWorld) -> None:
    world.sinks["again"] = replace(world.sinks["orders"], table=f"{world.database}.orders")
    plan = delivered(world, equal(2))
    assert report(world, plan).is_exact and report(world, plan).expected == 4
    world.sql("DELETE FROM orders LIMIT 1")
    assert report(world, plan).missing == 1


def test_an_equal_row_from_before_a_new_column_hides_no_loss(world: MySqlWorld) -> None:
    first = delivered(world, equal(2))
    world.sql("ALTER TABLE orders ADD COLUMN note VARCHAR(20)")
    second = delivered(world, equal(2, note=["new", None]))
    assert report(world, first, second).is_exact, report(world, first, second)
    world.sql("DELETE FROM orders WHERE note IS NULL LIMIT 1")
    found = report(world, first, second)
    assert (found.missing, found.repeated, found.other) == (1, 0, 0)
    world.sql("UPDATE orders SET note = 'another' WHERE note = 'new'")  # the older rows may have any value there
    found = report(world, first, second)
    assert (found.missing, found.repeated, found.other) == (1, 0, 0)
    world.sql("INSERT INTO orders VALUES (7, 'x', 'new'), (7, 'x', NULL)")
    found = report(world, first, second)
    assert (found.missing, found.repeated, found.other) == (0, 1, 0)


def test_checkpoints_are_compared_by_the_columns_they_share(world: MySqlWorld) -> None:
    world.sql("ALTER TABLE orders ADD COLUMN a INT, ADD COLUMN b INT")
    first = delivered(world, equal(1, a=pa.array([1], pa.int32())))
    second = delivered(world, equal(1, b=pa.array([2], pa.int32())))
    found = report(world, first, second)
    assert found.is_exact and found.notes[-1].endswith("only some checkpoints delivered them: a, b")
    world.sql("DELETE FROM orders WHERE a IS NULL")
    assert report(world, first, second).missing == 1


@pytest.mark.parametrize("strategy", ["local", "xa", "upsert"])
def test_percent_signs_in_names(
    any_mysql_database: Database, tmp_path: Path, strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slices, "MIN_ROWS", 2)
    table = "100% orders"
    columns = "`id%s` BIGINT PRIMARY KEY, `%` VARCHAR(9), `v%d` BIGINT NOT NULL DEFAULT 0"
    world = make_world(any_mysql_database, tmp_path, **{table: columns})
    ledger = f"{world.database}%"
    world.sql(f"CREATE DATABASE `{ledger}`")
    try:
        by_key = {"key_columns": ("id%s",), "version_column": "v%d", "change_column": "op%"}
        world.use(strategy, ledger_schema=ledger, **(by_key if strategy == "upsert" else {}))
        kinds = {"op%": ["c", "c", "c", "d"]} if strategy == "upsert" else {}
        rows = pa.table({"id%s": pa.array([1, 2, 3, 4], pa.int64()), "%": ["%s", "%%", None, "d"]} | kinds)
        plan = delivered(world, rows)
        found = report(world, plan)
        assert found.is_exact and not found.other, found
        any_mysql_database.sql(f"DELETE FROM `{table}` WHERE `id%s` = 2")
        found = report(world, plan)
        assert found.missing == 1 and found.differences[0].samples[0].startswith("2, %%"), found
        reader = open_wal().open(plan.segments[0])
        checks = examine(world.pipeline, plan.participants[0], world.connection(), [reader], world.installation)
        assert not [check for check in checks if check.verdict is Verdict.PROBLEM], checks
    finally:
        world.sql(f"DROP DATABASE `{ledger}`")


@pytest.mark.parametrize("columns", [1016, 1017])
def test_as_many_columns_as_a_table_can_have(any_mysql_database: Database, tmp_path: Path, columns: int) -> None:
    names = [f"c{i}" for i in range(columns)]
    world = make_world(any_mysql_database, tmp_path, orders=", ".join(f"{name} TINYINT" for name in names))
    table = pa.table({name: pa.array([i % 100, None], pa.int8()) for i, name in enumerate(names)})
    plan = delivered(world, table)
    assert report(world, plan).is_exact
    world.sql(f"UPDATE orders SET {names[-1]} = 101 WHERE {names[0]} = 0")
    found = report(world, plan)
    assert (found.missing, found.other) == (1, 1) and found.differences[0].samples[0].startswith("0, 1, 2")


class TestByKey:
    """Rows are looked up by a key that all deliveries have filled: nothing else of the table is read."""

    COLUMNS = "id BIGINT PRIMARY KEY, name VARCHAR(100)"

    @pytest.fixture
    def world(self, any_mysql_database: Database, tmp_path: Path) -> MySqlWorld:
        return make_world(any_mysql_database, tmp_path, orders=self.COLUMNS)

    def rows_read(self, world: MySqlWorld) -> int:
        return sum(int(count) for _, count in world.sql("SHOW GLOBAL STATUS LIKE 'Handler_read%'"))

    def test_a_small_checkpoint_in_a_large_table_costs_what_it_holds(self, world: MySqlWorld) -> None:
        plan = delivered(world, orders(1, 20))
        world.sql("INSERT INTO orders SELECT id + 100, name FROM orders")
        for _ in range(8):
            world.sql("INSERT INTO orders SELECT id + (SELECT MAX(id) FROM orders), name FROM orders")
        assert world.count() == 10240
        before = self.rows_read(world)
        found = report(world, plan)
        assert found.is_exact and found.other is None
        assert self.rows_read(world) - before < world.count() / 2

    def test_it_is_as_exact_as_reading_all_of_it(self, world: MySqlWorld) -> None:
        first, second = delivered(world, orders(1, 5)), delivered(world, orders(11, 5))
        world.sql("DELETE FROM orders WHERE id = 2")
        world.sql("UPDATE orders SET name = 'another' WHERE id = 12")
        world.sql("INSERT INTO orders VALUES (99, 'order 1')")
        found = report(world, first, second)
        assert (found.missing, found.repeated) == (2, 0)
        assert [(d.number, d.rows, d.samples) for d in found.differences] == [
            (1, 1, ("2, order 2",)),
            (2, 1, ("12, order 12",)),
        ]

    def test_an_added_column_is_compared_where_it_was_delivered(self, world: MySqlWorld) -> None:
        first = delivered(world, orders(1, 3))
        world.sql("ALTER TABLE orders ADD COLUMN note VARCHAR(9) DEFAULT 'old'")
        second = delivered(world, orders(11, 3).append_column("note", pa.array(["a", "b", None])))
        assert report(world, first, second).is_exact
        world.sql("UPDATE orders SET note = 'z' WHERE id IN (1, 12)")
        found = report(world, first, second)
        assert [(d.number, d.rows) for d in found.differences] == [(2, 1)]

    @pytest.mark.parametrize(
        "columns",
        [
            "id BIGINT UNIQUE, name VARCHAR(100)",  # NULL may be there twice
            "id BIGINT, name VARCHAR(100) NOT NULL, UNIQUE KEY (name(7))",
            "id BIGINT, name VARCHAR(100), own BIGINT AUTO_INCREMENT PRIMARY KEY",  # not delivered
        ],
    )
    def test_what_is_no_full_key_of_delivered_columns_is_not_used(
        self, any_mysql_database: Database, tmp_path: Path, columns: str
    ) -> None:
        world = make_world(any_mysql_database, tmp_path, orders=columns)
        plan = delivered(world, orders(1, 5))
        found = report(world, plan)
        assert found.is_exact and found.other == 0, "all of it was read, so others are counted"

    def test_the_key_is_compared_as_the_table_compares_it(self, any_mysql_database: Database, tmp_path: Path) -> None:
        columns = "name VARCHAR(20) COLLATE utf8mb4_general_ci NOT NULL PRIMARY KEY, id BIGINT"
        world = make_world(any_mysql_database, tmp_path, orders=columns)
        plan = delivered(world, pa.table({"name": ["abc", "def"], "id": pa.array([1, 2], pa.int64())}))
        assert report(world, plan).is_exact
        world.sql("UPDATE orders SET name = 'ABC' WHERE id = 1")
        assert report(world, plan).missing == 1


def test_rows_that_were_set_aside_are_not_missing(
    any_mysql_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slices, "MIN_ROWS", 2)
    world = make_world(any_mysql_database, tmp_path).use("xa", branches=3)
    plan = world.plan(orders=orders(1, 10))
    notes = world.participant(plan).prepare(plan, world.fence())
    world.server.end_prepared()  # lost, so the rows are sent after the decision
    world.sql("ALTER TABLE orders ADD CONSTRAINT refuses CHECK (id NOT IN (1, 4, 5, 10))")
    proof = world.participant(plan).commit(plan, world.fence(1, 2), vote_for(notes), set_aside=True)
    found = report(world, plan)
    assert found.is_exact and (found.expected, found.set_aside, found.other) == (6, 4, 0)
    assert "4 rows were refused and set aside" in "\n".join(describe(found))
    for file in of_proof(proof)["orders"].files:
        Path(file.removeprefix("file://")).unlink()  # by a person, who has dealt with them
    world.sql("DELETE FROM orders WHERE id = 6")
    found = report(world, plan)
    assert (found.missing, found.differences[0].samples) == (1, ("6, order 6",))


def test_the_status_tells_losses_and_doubles(
    any_mysql_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"sqlite:///{tmp_path}/ft.db"
    with closing(open_store(url)) as store:
        world = make_real_world(store, tmp_path / "wal", any_mysql_database)
        world.stage(1)
        world.deliver()
    monkeypatch.setattr(common, "server_connections", world.connections)

    def status(allow_repeated: bool = False) -> Any:
        args = Namespace(store=url, pipeline=world.pipeline, numbers=[], allow_repeated=allow_repeated, output="table")
        try:
            command.verify(args)
        except SystemExit as end:
            return end.code
        return 0

    assert status() == 0
    world.database.sql("INSERT INTO orders SELECT * FROM orders WHERE id = 1005")
    assert status() == 1 and status(allow_repeated=True) == 0
    assert "DUPLICATED: 1 extra copy of delivered rows" in capsys.readouterr().out
    world.database.sql("DELETE FROM orders WHERE id = 1006")
    assert status(allow_repeated=True) == 1


def test_kafka_plans_that_differ_are_compared_together(kafka: Kafka, tmp_path: Path, topic: str) -> None:
    """The second is delivered by another strategy, between two others; its equal records stand for no one else's."""
    world = KafkaWorld(tmp_path, kafka.bootstrap, {"alerts": KafkaSink(topic=topic)})
    found: list[Delivered] = []
    before: Proof | None = None
    for number, strategy in enumerate(("transaction", "held", "transaction"), 1):
        world.sinks = {"alerts": KafkaSink(topic=topic, strategy=strategy)}
        plan = world.plan(number, world.segment(number, {"alerts": orders(1, 5)}))
        proof = None
        if number < 3:  # the third is lost
            world.prepare(plan)
            proof = world.commit(plan)
        found.append(Delivered(plan, proof, before))
        before = proof
    [report] = verify_kafka(found[:2], found[1].plan.participants[0], world.connection, open_wal())
    assert report.is_exact and (report.expected, report.other, report.numbers) == (10, 0, (1, 2))
    [report] = verify_kafka(found, found[2].plan.participants[0], world.connection, open_wal())
    assert (report.expected, report.missing, report.repeated) == (15, 5, 0)
