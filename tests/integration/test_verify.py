"""`airflow ft verify` on real servers: it names what is lacking, and calls nothing else a difference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from airflow_ft.pipeline.actions.verifying import describe
from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.protocol.model import Plan
from airflow_ft.protocol.verify import Delivered, SinkReport, verify
from airflow_ft.protocol.votes import Proof
from airflow_ft.sinks.kafka.spec import KafkaSink
from airflow_ft.sinks.kafka.verify import verify as verify_kafka
from airflow_ft.sinks.mysql.spec import MySqlSink
from airflow_ft.sinks.mysql.verify import verify as verify_mysql
from airflow_ft.store import open_store
from airflow_ft.store.decision_log import DecisionLog
from airflow_ft.wal import open_wal
from tests.conftest import TopicFactory
from tests.integration.kafka_world import World as KafkaWorld
from tests.integration.real_world import RealWorld, make_world
from tests.integration.test_mysql_upsert import KEYS, changes
from tests.integration.test_mysql_upsert import TABLE as UPSERTED
from tests.integration.test_mysql_values import CASES
from tests.sinks.mysql.world import MySqlWorld
from tests.sinks.mysql.world import make_world as make_mysql_world
from tools.servers import Database, Kafka, MariaDb
from tools.servers.processes import free_port


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DecisionLog]:
    with closing(open_store(f"sqlite:///{tmp_path}/ft.db")) as store:
        yield store


@pytest.fixture
def world(store: DecisionLog, tmp_path: Path, any_mysql_database: Database, kafka: Kafka, topic: str) -> RealWorld:
    return make_world(store, tmp_path / "wal", any_mysql_database, kafka, topic)


def compared(world: RealWorld, *numbers: int) -> dict[str, SinkReport]:
    def verifier(delivered: Sequence[Delivered], plan: Any) -> Sequence[SinkReport]:
        with_kind = {"mysql": verify_mysql, "kafka": verify_kafka}[plan.kind]
        return with_kind(delivered, plan, world.connections(plan.name), open_wal())

    return {report.sink: report for report in verify(world.store, world.pipeline, verifier, numbers)}


def send(world: RealWorld, count: int, key: str = "a stranger's") -> None:
    assert world.kafka is not None
    producer = Producer({"bootstrap.servers": world.kafka.bootstrap})
    for i in range(count):
        producer.produce(world.topic, key=key, value=f"{i}")
    assert producer.flush(30) == 0


def test_what_was_delivered_is_complete_also_beside_others_rows(world: RealWorld) -> None:
    world.stage(3)
    world.deliver()
    send(world, 7)
    world.database.sql("INSERT INTO orders VALUES (-1, 'a stranger''s'), (-2, NULL)")
    world.stage(1, rows=0)
    world.deliver()
    reports = compared(world)
    assert all(report.is_complete for report in reports.values()), reports
    rows, copies = reports["rows"], reports["copies"]
    assert (rows.numbers, rows.expected, rows.missing, rows.repeated, rows.other) == ((2, 3, 4), 40, 0, 0, 22)
    assert (copies.expected, copies.missing, copies.repeated) == (40, 0, 0)
    assert "complete: 40 of 40 rows" in "\n".join(describe(rows))


def test_rows_that_are_gone_are_named_by_file_with_samples(world: RealWorld) -> None:
    world.stage(2)
    world.deliver()
    world.database.sql("DELETE FROM orders WHERE id IN (1003, 2004, 2005)")
    world.database.sql("UPDATE orders SET name = 'another' WHERE id = 2006")
    report = compared(world)["rows"]
    assert (report.missing, report.other) == (4, 1)
    assert [(d.number, d.rows) for d in report.differences] == [(1, 1), (2, 3)]
    assert report.differences[0].samples == ("1003, order 1003",)
    text = "\n".join(describe(report))
    assert "INCOMPLETE: 36 of 40 rows are there" in text and "3 rows of checkpoint 2, rows/part-" in text
    assert compared(world, 1)["rows"].missing == 1


def test_doubled_rows_are_told(world: RealWorld) -> None:
    world.stage(1)
    world.deliver()
    world.database.sql("INSERT INTO orders SELECT * FROM orders WHERE id < 1005")
    report = compared(world)["rows"]
    assert (report.missing, report.repeated, report.other) == (0, 5, 0)
    assert "5 extra copies of delivered rows" in "\n".join(describe(report))


def test_equal_rows_of_several_checkpoints_are_counted_together(world: RealWorld) -> None:
    world.tables = lambda number, rows: dict.fromkeys(  # type: ignore[method-assign]
        world.sinks, pa.table({"id": pa.array([7, 7, None], pa.int64()), "name": ["x", "x", None]})
    )
    world.stage(2)
    world.deliver()
    assert all(report.is_complete and not report.repeated for report in compared(world).values())
    world.database.sql("DELETE FROM orders WHERE id = 7 LIMIT 1")
    assert compared(world)["rows"].missing == 1


def test_it_leaves_nothing_in_the_database(world: RealWorld) -> None:
    world.stage(1)
    world.deliver()
    before = world.server.sql("SHOW TABLES", world.database.name)
    compared(world)
    assert world.server.sql("SHOW TABLES", world.database.name) == before
    assert len(world.ids()) == 20


def test_a_checkpoint_in_doubt_is_compared_when_asked_for(world: RealWorld) -> None:
    """What a person wants to know before `--redeliver`: are the rows there?"""
    world.stage(1)
    world.prepare()
    world.commit("shop")
    assert compared(world) == {}
    reports = compared(world, 1)
    assert reports["rows"].is_complete
    assert (reports["copies"].missing, reports["copies"].differences[0].rows) == (20, 20)
    world.deliver()
    assert compared(world, 1)["copies"].is_complete


def test_what_cannot_be_compared_is_refused_with_the_reason(world: RealWorld) -> None:
    world.stage(1)
    for number in (1, 9):
        with pytest.raises(ConfigurationError) as refused:
            compared(world, number)
        assert refused.value.checkpoint == number
    world.deliver()
    world.store.prune(world.pipeline, 1)
    with pytest.raises(ConfigurationError) as refused:
        compared(world, 1)
    assert refused.value.checkpoint == 1 and "num_retained" in refused.value.headline
    assert compared(world) == {}


def test_verify_compares_the_other_sinks_when_one_is_down(world: RealWorld) -> None:
    world.stage(1)
    world.deliver()
    world.overrides = {"shop": {"port": free_port()}}
    reports = compared(world)
    assert reports["copies"].is_complete
    assert "comparing table" in reports["rows"].error and not reports["rows"].is_complete
    assert "NOT COMPARED" in "\n".join(describe(reports["rows"]))


def test_a_user_without_the_privilege_is_told_which(world: RealWorld) -> None:
    world.stage(1)
    world.deliver()
    user = f"v{world.database.name}"[:30]
    world.server.sql(f"CREATE USER '{user}'@'%' IDENTIFIED BY 'secret'")
    world.server.sql(f"GRANT SELECT ON `{world.database.name}`.* TO '{user}'@'%'")
    try:
        world.overrides = {"shop": {"login": user, "password": "secret"}}
        error = compared(world)["rows"].error
        assert f"GRANT CREATE TEMPORARY TABLES ON `{world.database.name}`.* TO '{user}'@'%'" in error
    finally:
        world.server.sql(f"DROP USER '{user}'@'%'")


class TwoTables(RealWorld):
    @property
    def sinks(self) -> dict[str, Any]:
        return super().sinks | {"lines": MySqlSink(table="lines", conn_id="shop")}


def test_verify_compares_the_other_table_when_one_is_unreadable(world: RealWorld) -> None:
    world = TwoTables(**{each.name: getattr(world, each.name) for each in fields(world)})
    world.database.sql("CREATE TABLE `lines` LIKE orders")
    world.stage(1)
    world.deliver()
    user = f"v{world.database.name}"[:30]
    world.server.sql(f"CREATE USER '{user}'@'%' IDENTIFIED BY 'secret'")
    world.database.sql(f"GRANT INSERT ON `lines` TO '{user}'@'%'")
    world.database.sql(f"GRANT SELECT ON orders TO '{user}'@'%'")
    world.database.sql(f"GRANT CREATE TEMPORARY TABLES ON `{world.database.name}`.* TO '{user}'@'%'")
    try:
        world.overrides = {"shop": {"login": user, "password": "secret"}}
        reports = compared(world)
        assert reports["rows"].is_complete, reports["rows"].error
        lines = reports["lines"]
        assert (lines.error_code, lines.target) == ("privilege_missing", f"{world.database.name}.lines")
        assert f"GRANT SELECT ON `{world.database.name}`.`lines` TO '{user}'@'%'" in lines.error
    finally:
        world.server.sql(f"DROP USER '{user}'@'%'")


@pytest.mark.parametrize(
    ("strategy", "change", "code"),
    [
        ("local", "DROP COLUMN name", "column_missing"),
        ("local", "MODIFY id TINYINT", "value_unfit"),
        ("upsert", "MODIFY id TINYINT", "value_unfit"),
        ("upsert", "DROP PRIMARY KEY", "key_unfit"),
    ],
)
def test_verify_compares_the_other_table_when_one_was_altered(
    any_mysql_database: Database, tmp_path: Path, strategy: str, change: str, code: str
) -> None:
    world = make_mysql_world(any_mysql_database, tmp_path, orders=UPSERTED, more=UPSERTED)
    world.use(strategy, **({**KEYS, "change_column": None} if strategy == "upsert" else {}))
    rows = pa.table({"id": [1000, 1001], "name": ["a", "b"]})
    plan = world.plan(orders=rows, more=rows)
    world.deliver(plan)
    world.sql("DELETE FROM orders")
    world.sql(f"ALTER TABLE orders {change}")
    [one, other] = verify_mysql([Delivered(plan, None, None)], plan.participants[0], world.connection(), open_wal())
    assert one.error_code == code and other.is_complete and other.expected == 2


def test_checkpoints_without_a_common_column_are_not_compared(any_mysql_database: Database, tmp_path: Path) -> None:
    world = make_mysql_world(any_mysql_database, tmp_path)
    delivered = []
    for rows in ({"id": [1]}, {"name": ["a"]}):
        plan = world.plan(orders=pa.table(rows))
        world.deliver(plan)
        delivered.append(Delivered(plan, None, None))
    participant = world.participant_plan()
    [report] = verify_mysql(delivered, participant, world.connection(), open_wal())
    assert report.error and not report.is_complete
    for each in delivered:
        [report] = verify_mysql([each], participant, world.connection(), open_wal())
        assert report.is_complete


def test_every_type_of_column_is_compared_exactly(any_mysql_database: Database, tmp_path: Path) -> None:
    """Complete as delivered; then each column in turn is changed in one row, and that row alone is lacking."""
    server = "mariadb" if isinstance(any_mysql_database.server, MariaDb) else "mysql"
    cases = {name: case for name, case in CASES.items() if case.only in ("", server) and name != "only nulls"}
    columns = ", ".join(f"`{name}` {case.column}" for name, case in cases.items())
    world = make_mysql_world(any_mysql_database, tmp_path, orders=f"id INT, {columns}")
    length = max(len(case.values) for case in cases.values())
    data = {name: pa.array((case.values * length)[:length], case.kind) for name, case in cases.items()}
    plan = world.plan(orders=pa.table({"id": pa.array(range(length), pa.int32()), **data}))
    world.deliver(plan)

    def report() -> SinkReport:
        [found] = verify_mysql([Delivered(plan, None, None)], plan.participants[0], world.connection(), open_wal())
        return found

    assert report().is_complete, report().differences
    wrong = []
    world.sql("CREATE TABLE kept AS SELECT * FROM orders")
    for name in cases:
        [(row,)] = world.sql(f"SELECT MIN(id) FROM orders WHERE `{name}` IS NOT NULL")
        world.sql(f"UPDATE orders SET `{name}` = NULL WHERE id = {row}")
        found = report()
        if (found.missing, found.other) != (1, 1):
            wrong.append((name, found.missing, found.other))
        world.sql(f"DELETE FROM orders WHERE id = {row}")
        world.sql(f"INSERT INTO orders SELECT * FROM kept WHERE id = {row}")
    assert wrong == []
    assert report().is_complete


@pytest.mark.parametrize("column", ["FLOAT", "DOUBLE"])
def test_the_smallest_difference_counts(mariadb_database: Database, tmp_path: Path, column: str) -> None:
    world = make_mysql_world(mariadb_database, tmp_path, orders=f"id INT, x {column}")
    values = pa.array([1.0, 1.0000001, 3.0], pa.float32() if column == "FLOAT" else pa.float64())
    plan = world.plan(orders=pa.table({"id": pa.array([1, 2, 3], pa.int32()), "x": values}))
    world.deliver(plan)
    world.sql("UPDATE orders SET x = 1 WHERE id = 2")
    [report] = verify_mysql([Delivered(plan, None, None)], plan.participants[0], world.connection(), open_wal())
    assert report.missing == 1


def test_json_and_a_table_that_demands_keys(any_mysql_database: Database, tmp_path: Path) -> None:
    world = make_mysql_world(any_mysql_database, tmp_path, orders="id INT PRIMARY KEY, doc JSON, at TIMESTAMP NOT NULL")
    table = pa.table(
        {
            "id": pa.array([1, 2], pa.int32()),
            "doc": ['{"b": 1, "a": [1, 2]}', None],
            "at": pa.array([1_700_000_000_000_000, 1_700_000_001_000_000], pa.timestamp("us", "UTC")),
        }
    )
    plan = world.plan(orders=table)
    world.deliver(plan)
    [report] = verify_mysql([Delivered(plan, None, None)], plan.participants[0], world.connection(), open_wal())
    assert report.is_complete, report


def delivered_by(world: KafkaWorld, numbers: Sequence[int], rows: int) -> tuple[list[Plan], list[Proof]]:
    """The proofs as they are recorded: right after each delivery."""
    plans = [world.checkpoint(number, rows) for number in numbers]
    proofs = []
    for plan in plans:
        world.prepare(plan)
        proofs.append(world.commit(plan))
    return plans, proofs


class TestKafka:
    def test_only_committed_records_of_a_checkpoint_are_counted(self, kafka: Kafka, tmp_path: Path, topic: str) -> None:
        world = KafkaWorld(tmp_path, kafka.bootstrap, {"alerts": KafkaSink(topic=topic, slots=2)})
        plans, proofs = delivered_by(world, (1, 2, 3), 50)
        delivered = [Delivered(plans[1], proofs[1], proofs[0])]
        [report] = verify_kafka(delivered, plans[1].participants[0], world.connection, open_wal())
        assert (report.expected, report.missing, report.repeated, report.other) == (50, 0, 0, 0)
        assert report.notes == ()

    def test_keys_headers_partitions_and_times_are_compared(self, kafka: Kafka, tmp_path: Path, topic: str) -> None:
        sink = KafkaSink(topic=topic, key="k", value="v", partition="p", timestamp="t", headers="h")
        world = KafkaWorld(tmp_path, kafka.bootstrap, {"alerts": sink})
        table = pa.table(
            {
                "k": pa.array([b"a", None, b"", b"a"], pa.binary()),
                "v": pa.array([b"1", b"2", None, b"1"], pa.binary()),
                "p": pa.array([0, 1, 2, 0], pa.int32()),
                "t": pa.array([1_700_000_000_000 + i for i in range(4)], pa.int64()),
                "h": pa.array([[("x", b"1"), ("x", None)], [], None, [("y", b"")]], pa.map_(pa.string(), pa.binary())),
            }
        )
        plan = world.plan(1, world.segment(1, {"alerts": table}))
        world.prepare(plan)
        proof = world.commit(plan)
        [report] = verify_kafka([Delivered(plan, proof, None)], plan.participants[0], world.connection, open_wal())
        assert (report.expected, report.missing, report.other) == (4, 0, 0)

    def test_verify_explains_missing_records_removed_by_retention(
        self, kafka: Kafka, tmp_path: Path, topic_factory: TopicFactory
    ) -> None:
        topic = topic_factory(1)
        world = KafkaWorld(tmp_path, kafka.bootstrap, {"alerts": KafkaSink(topic=topic)})
        plans, (first, second) = delivered_by(world, (1, 2), 30)
        end = second.detail["partitions"][topic]["0"]["last_offset"]
        place = TopicPartition(topic, 0, end - 9)
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        for future in admin.delete_records([place]).values():
            future.result(30)
        [report] = verify_kafka(
            [Delivered(plans[1], second, first)], plans[1].participants[0], world.connection, open_wal()
        )
        assert (report.missing, report.expected) == (20, 30)
        assert "retention" in report.notes[0]
        assert report.differences[0].number == 2 and "value" in report.differences[0].samples[0]


class TestUpsert:
    """Compare each key's newest change in the log. Keys that others may rightly have changed are not judged."""

    @pytest.fixture
    def world(self, any_mysql_database: Database, tmp_path: Path) -> MySqlWorld:
        return make_mysql_world(any_mysql_database, tmp_path, orders=UPSERTED).use("upsert", **KEYS)

    def delivered(self, world: MySqlWorld, *rows: tuple[str, int, str | None]) -> Plan:
        plan = world.plan(orders=changes(*rows))
        world.deliver(plan, 1, plan.number)
        return plan

    def report(self, world: MySqlWorld, *plans: Plan, newest_other: int = 0) -> SinkReport:
        delivered = [Delivered(plan, None, None, newest_other=newest_other) for plan in plans]
        [found] = verify_mysql(delivered, plans[-1].participants[0], world.connection(), open_wal())
        return found

    def three(self, world: MySqlWorld) -> list[Plan]:
        return [
            self.delivered(world, ("c", 1, "a"), ("c", 2, "b"), ("c", 3, "c"), ("c", 4, "d"), ("d", 9, None)),
            self.delivered(world, ("u", 1, "A"), ("d", 2, None), ("d", 3, None), ("c", 3, "again")),
            self.delivered(world, ("u", 1, "AA"), ("d", 4, None), ("d", 4, None), ("c", 5, "e")),
        ]

    def test_what_was_delivered_is_complete_also_beside_others_rows(self, world: MySqlWorld) -> None:
        plans = self.three(world)
        world.sql("INSERT INTO orders VALUES (-1, 'a stranger''s', 0)")
        before = world.sql("SHOW TABLES")
        report = self.report(world, *plans)
        assert report.is_complete and report.differences == ()
        assert (report.expected, report.missing, report.other) == (6, 0, 1)  # keys 1, 3, 5; deleted 2, 4, 9
        assert report.notes == ("compared 6 keys, each with the newest of its changes (13 in the log)",)
        assert world.sql("SHOW TABLES") == before

    def test_each_difference_names_the_checkpoint_that_wrote_last(self, world: MySqlWorld) -> None:
        plans = self.three(world)
        world.sql("DELETE FROM orders WHERE id = 5")
        world.sql("UPDATE orders SET name = 'another' WHERE id = 3")
        world.sql("UPDATE orders SET version = 1 WHERE id = 1")
        world.sql("INSERT INTO orders VALUES (2, 'b', 1)")
        report = self.report(world, *plans)
        assert [(d.number, d.file, d.rows, d.samples) for d in report.differences] == [
            (2, "rows that are there with other values", 1, ("3, again",)),
            (3, "rows that are there with other values", 1, ("1, AA",)),
            (3, "rows that are not there", 1, ("5, e",)),
            (2, "deleted rows that are there", 1, ("2",)),
        ]
        assert (report.expected, report.missing, report.other) == (6, 4, 0)
        assert "INCOMPLETE: 2 of 6 rows" in "\n".join(describe(report))

    def test_keys_changed_by_newer_checkpoints_count_as_unknown(self, world: MySqlWorld) -> None:
        """Number 1 alone: 1 and 3 were written by later ones, 2 and 4 deleted; 9 is still gone."""
        plans = self.three(world)
        report = self.report(world, plans[0])
        assert report.is_complete and report.expected == 5
        assert report.notes[1].startswith("4 keys not judged")
        report = self.report(world, plans[0], plans[2], newest_other=2)
        assert report.is_complete and (report.expected, report.differences) == (6, ())
        assert report.notes[1].startswith("2 keys not judged")

    def test_updates_by_newer_checkpoints_count_as_unknown(self, world: MySqlWorld) -> None:
        """Also without deletes: a lost row is found, and an updated one is unknown."""
        world.use("upsert", change_column=None)
        plans = []
        for number, ids in enumerate(([1, 2, 3], [1]), start=1):
            names = [f"of {number}"] * len(ids)
            plans.append(world.plan(orders=pa.table({"id": pa.array(ids, pa.int32()), "name": names})))
            world.deliver(plans[-1], 1, number)
        world.sql("DELETE FROM orders WHERE id = 3")
        report = self.report(world, plans[0])
        assert [(d.file, d.samples) for d in report.differences] == [("rows that are not there", ("3, of 1",))]
        assert report.notes[1].startswith("1 key not judged")

    def test_verifying_the_newest_checkpoint_alone_finds_lost_rows(self, world: MySqlWorld) -> None:
        plans = self.three(world)
        world.sql("DELETE FROM orders WHERE id IN (1, 3)")
        report = self.report(world, plans[2])
        assert [(d.number, d.rows, d.samples) for d in report.differences] == [(3, 1, ("1, AA",))]

    def test_a_row_that_a_later_number_may_delete_is_unknown(self, world: MySqlWorld) -> None:
        """The sink got its `change_column` after the number that is compared."""
        world.use("upsert", change_column=None)
        first = world.plan(orders=pa.table({"id": pa.array([1, 2], pa.int32()), "name": ["a", "b"]}))
        world.deliver(first, 1, first.number)
        world.use("upsert", **KEYS)
        second = self.delivered(world, ("d", 1, None))
        assert [d.samples for d in self.report(world, first).differences] == [("1, a",)], "without deletes it is lost"
        planned = first.participants + second.participants
        for plans in [[first], [first, second]]:  # two groups, since their settings differ
            delivered = [Delivered(plan, None, None, planned) for plan in plans]
            report, *later = verify_mysql(delivered, plans[-1].participants[0], world.connection(), open_wal())
            assert report.is_complete and report.notes[1].startswith("1 key not judged")
            assert all(each.is_complete for each in later) and len(later) == len(plans) - 1

    def test_deletes_of_another_table_make_no_row_unknown(self, any_mysql_database: Database, tmp_path: Path) -> None:
        world = make_mysql_world(any_mysql_database, tmp_path, orders=UPSERTED, stock=UPSERTED).use("upsert", **KEYS)
        world.sinks["orders"] = replace(world.sinks["orders"], change_column=None)
        rows = pa.table({"id": pa.array([1, 2], pa.int32()), "name": ["a", "b"]})
        first = world.plan(orders=rows, stock=changes(("c", 1, "a")))
        world.deliver(first, 1, 1)
        second = world.plan(stock=changes(("d", 1, None)))
        world.deliver(second, 1, 2)
        world.sql("DELETE FROM orders WHERE id = 1")
        delivered = [Delivered(first, None, None, second.participants)]
        orders, stock = verify_mysql(delivered, first.participants[0], world.connection(), open_wal())
        assert [d.samples for d in orders.differences] == [("1, a",)]
        assert stock.is_complete and stock.notes[1].startswith("1 key not judged")

    def test_one_that_is_in_doubt_lacks_what_it_did_not_change_yet(self, world: MySqlWorld) -> None:
        plans = self.three(world)
        plan = world.plan(orders=changes(("u", 1, "AAA"), ("d", 3, None)))
        world.participant(plan).prepare(plan, world.fence(1, 9))
        report = self.report(world, *plans, plan)
        assert {(d.number, d.file) for d in report.differences} == {
            (4, "rows that are there with other values"),
            (4, "deleted rows that are there"),
        }

    def test_a_column_that_only_some_delivered_is_left_out_and_told(self, world: MySqlWorld) -> None:
        world.sql("ALTER TABLE orders ADD COLUMN note VARCHAR(20) NULL")
        first = self.delivered(world, ("c", 1, "a"), ("c", 2, "b"))
        table = changes(("u", 1, "A")).append_column("note", pa.array(["new"]))
        second = world.plan(orders=table)
        world.deliver(second, 1, 2)
        report = self.report(world, first, second)
        assert report.is_complete and report.notes[-1].endswith("only some checkpoints delivered them: note")

    def test_without_deletes_and_with_a_key_of_two_columns(self, any_mysql_database: Database, tmp_path: Path) -> None:
        columns = "shop VARCHAR(20), id INT, price DOUBLE, v BIGINT NOT NULL, UNIQUE KEY (id, shop)"
        columns = columns.replace("VARCHAR(20)", "VARCHAR(20) NOT NULL").replace("id INT", "id INT NOT NULL")
        world = make_mysql_world(any_mysql_database, tmp_path, orders=columns)
        world = world.use("upsert", key_columns=("shop", "id"), version_column="v")
        plans = []
        for number in (1, 2):
            ids = pa.array(range(3 * number), pa.int32())
            table = pa.table({"shop": ["x"] * len(ids), "id": ids, "price": pa.array([0.1 * number] * len(ids))})
            plans.append(world.plan(orders=table))
            world.deliver(plans[-1], 1, number)
        assert self.report(world, *plans).is_complete
        world.sql("UPDATE orders SET price = price * 1.000001 WHERE id = 4")
        report = self.report(world, *plans)
        assert [(d.number, d.rows) for d in report.differences] == [(2, 1)]

    @pytest.mark.parametrize(("more", "change"), [({}, "version = 1"), ({"text": ["x"]}, "text = 'y'")])
    def test_an_equal_key_in_another_spelling_is_no_difference(
        self, any_mysql_database: Database, tmp_path: Path, more: dict[str, list[str]], change: str
    ) -> None:
        columns = "code VARCHAR(9) COLLATE utf8mb4_unicode_ci PRIMARY KEY, text VARCHAR(9), version BIGINT NOT NULL"
        world = make_mysql_world(any_mysql_database, tmp_path, orders=columns)
        world.use("upsert", key_columns=("code",), version_column="version")
        plans = []
        for number, code in enumerate(("A", "a"), 1):
            plans.append(world.plan(orders=pa.table({"code": [code], **more})))
            world.deliver(plans[-1], 1, number)
        assert self.report(world, plans[1]).is_complete
        world.sql(f"UPDATE orders SET {change}")
        assert not self.report(world, plans[1]).is_complete
