"""ENUM and SET: a text is one of the labels or refused, and never the number of one; `verify` looks at it as text."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from airflow_ft.protocol.errors import UnfitTargetError
from airflow_ft.protocol.model import ParticipantPlan, Plan
from airflow_ft.protocol.set_aside import of_proof
from airflow_ft.protocol.verify import Delivered, SinkReport
from airflow_ft.sinks.mysql.verify import verify
from airflow_ft.wal import open_wal
from tests.raising import raises
from tests.sinks.mysql.world import MySqlWorld, each_way, make_world
from tools.servers import Database

KINDS = "ENUM('new','paid','sent')"
KEYS = {"key_columns": ("id",), "version_column": "version"}


def rows(*values: str | None) -> pa.Table:
    return pa.table({"id": pa.array(range(1, len(values) + 1), pa.int64()), "v": pa.array(values, pa.string())})


def compared(world: MySqlWorld, *plans: Plan) -> SinkReport:
    plan: ParticipantPlan = plans[0].participants[0]
    [report] = verify(
        [Delivered(each, world.participant(each).proof(each), None) for each in plans],
        plan,
        world.connection(),
        open_wal(),
    )
    return report


@pytest.mark.parametrize(
    ("column", "wrong"),
    [
        (KINDS, "1"),
        (KINDS, "0"),
        (KINDS, ""),
        (KINDS, "NEW"),
        (KINDS, "new "),
        (KINDS, " 1"),
        ("ENUM('1','2','')", "3"),
        ("ENUM('2','1')", "0"),
        ("SET('x','y','z')", "3"),
        ("SET('x','y','z')", "x,2"),
        ("SET('x','y','z')", "x,,y"),
        ("SET('x','y','z')", "X"),
        ("SET('4','2','1')", "7"),
    ],
)
@pytest.mark.parametrize("strategy", ["local", "upsert"])
def test_a_text_that_is_no_label_is_refused_before_the_decision(
    any_mysql_database: Database, tmp_path: Path, column: str, wrong: str, strategy: str
) -> None:
    world = make_world(any_mysql_database, tmp_path, orders=f"id BIGINT PRIMARY KEY, v {column}, version BIGINT")
    world.use(strategy, **(KEYS if strategy == "upsert" else {}))
    plan = world.plan(orders=rows(None, wrong, None))
    where = {"sink": "orders", "column": "v", "row": "2 (id=2)"}
    with raises(UnfitTargetError, "value_unfit", problem="label", **where) as refused:  # ALTER TABLE can add the label
        world.participant(plan).prepare(plan, world.fence())
    assert refused.error and f"({wrong!r})" in refused.error.headline


@each_way
def test_labels_arrive_unchanged_even_if_they_look_like_numbers(
    any_mysql_database: Database, tmp_path: Path, way: str
) -> None:
    labels = ["2", "1", "", "it''s", "ü", "😀", "a?b", "back\\\\slash", "com,ma", "(x)", "0"]
    values = ["2", "1", "", "it's", "ü", "😀", "a?b", "back\\slash", "com,ma", "(x)", "0"]
    column = "ENUM({})".format(", ".join(f"'{label}'" for label in labels))
    world = make_world(any_mysql_database, tmp_path, orders=f"id BIGINT, v {column}")
    world.use_way(way)
    plan = world.plan(orders=rows(*values, None))
    world.deliver(plan)
    assert [row[0] for row in world.sql("SELECT v FROM orders ORDER BY id")] == [*values, None]
    assert (report := compared(world, plan)).missing == 0 and report.expected == len(values) + 1


@each_way
def test_a_set_holds_its_labels_whatever_their_order(any_mysql_database: Database, tmp_path: Path, way: str) -> None:
    world = make_world(any_mysql_database, tmp_path, orders="id BIGINT, v SET('z','1','2','ä')")
    world.use_way(way)
    plan = world.plan(orders=rows("2", "1,2", "2,1,z", "ä,ä", "", None))
    world.deliver(plan)
    expected = ["2", "1,2", "z,1,2", "ä", "", None]
    assert [row[0] for row in world.sql("SELECT v FROM orders ORDER BY id")] == expected
    report = compared(world, plan)
    assert (report.missing, report.repeated, report.other) == (0, 0, 0)


@each_way
@pytest.mark.parametrize("strategy", ["local", "upsert"])
def test_labels_changed_after_the_vote_make_no_text_a_number(
    any_mysql_database: Database, tmp_path: Path, way: str, strategy: str
) -> None:
    world = make_world(any_mysql_database, tmp_path, orders="id BIGINT PRIMARY KEY, v ENUM('1','2'), version BIGINT")
    world.use_way(way)
    world.use(strategy, **(KEYS if strategy == "upsert" else {}))
    plan = world.plan(orders=rows("1", "2"))
    participant = world.participant(plan)
    participant.prepare(plan, world.fence())
    world.sql(f"ALTER TABLE orders MODIFY v {KINDS}")
    with raises(UnfitTargetError, "value_unfit", problem="label", changed=True, sink="orders", column="v"):
        participant.commit(plan, world.fence())
    assert world.count() == 0 and world.markers() == []


@each_way
@pytest.mark.parametrize("strategy", ["local", "upsert"])
def test_texts_that_are_no_labels_any_more_can_be_set_aside(
    any_mysql_database: Database, tmp_path: Path, way: str, strategy: str
) -> None:
    columns = "id BIGINT PRIMARY KEY, v ENUM('1','new','2'), version BIGINT"
    world = make_world(any_mysql_database, tmp_path, orders=columns)
    world.use_way(way)
    world.use(strategy, **(KEYS if strategy == "upsert" else {}))
    plan = world.plan(orders=rows("1", "new", None, "2"))
    participant = world.participant(plan)
    participant.prepare(plan, world.fence())
    world.sql(f"ALTER TABLE orders MODIFY v {KINDS}")
    proof = participant.commit(plan, world.fence(), set_aside=True)
    assert sorted(world.sql("SELECT id, v FROM orders")) == [(2, "new"), (3, None)]
    assert of_proof(proof)["orders"].rows == 2
    report = compared(world, plan)
    assert (report.expected, report.missing, report.set_aside) == (2, 0, 2)


@pytest.mark.parametrize("strategy", ["local", "upsert"])
@pytest.mark.parametrize(
    ("column", "text", "index"), [(KINDS, "1", "new"), ("SET('x','y')", "3", "x,y"), (KINDS, "PAID", "paid")]
)
def test_verify_finds_a_label_that_was_stored_for_another_text(
    any_mysql_database: Database, tmp_path: Path, column: str, text: str, index: str, strategy: str
) -> None:
    """As if the server had taken the text for a number."""
    world = make_world(any_mysql_database, tmp_path, orders="id BIGINT PRIMARY KEY, v VARCHAR(9), version BIGINT")
    world.use(strategy, **(KEYS if strategy == "upsert" else {}))
    plan = world.plan(orders=rows(text, None))
    world.deliver(plan)
    world.sql("UPDATE orders SET v = NULL WHERE id = 1")
    world.sql(f"ALTER TABLE orders MODIFY v {column}")
    world.sql("UPDATE orders SET v = %s WHERE id = 1", index)
    report = compared(world, plan)
    assert (report.expected, report.missing) == (2, 1)
    assert text in report.differences[0].samples[0]


@pytest.mark.parametrize("key", ["", "PRIMARY KEY (v)", "PRIMARY KEY (v, id)", "UNIQUE KEY (id, v)"])
@pytest.mark.parametrize(("column", "right", "text", "index"), [
    ("ENUM('new','paid','sent') NOT NULL", "paid", "1", "new"),
    ("ENUM('new','1','sent') NOT NULL", "1", "3", "sent"),
    ("SET('x','y','z') NOT NULL", "z", "3", "x,y"),
])  # fmt: skip
def test_verify_looks_labels_up_by_their_text(
    any_mysql_database: Database, tmp_path: Path, key: str, column: str, right: str, text: str, index: str
) -> None:
    """Whether the table is read or a key with labels asked: a row is there when its text is."""
    columns = f"id BIGINT NOT NULL, v VARCHAR(9) NOT NULL{key and ', '}{key}"
    world = make_world(any_mysql_database, tmp_path, orders=columns)
    plan = world.plan(orders=rows(right, text))
    world.deliver(plan)
    world.sql("UPDATE orders SET v = %s WHERE id = 2", index)
    world.sql(f"ALTER TABLE orders MODIFY v {column}")
    assert sorted(world.sql("SELECT id, v FROM orders")) == [(1, right), (2, index)]
    report = compared(world, plan)
    assert (report.expected, report.missing, report.repeated) == (2, 1, 0)
    assert [text in each for each in report.differences[0].samples] == [True]


@each_way
def test_a_delete_by_an_enum_deletes_the_row_of_that_label(
    any_mysql_database: Database, tmp_path: Path, way: str
) -> None:
    columns = "id ENUM('2','1','new'), v VARCHAR(9), version BIGINT, PRIMARY KEY (id)"
    world = make_world(any_mysql_database, tmp_path, orders=columns)
    world.use_way(way)
    world.use("upsert", change_column="op", **KEYS)
    first = world.plan(orders=pa.table({"op": ["c", "c", "c"], "id": ["2", "1", "new"], "v": ["a", "b", "c"]}))
    world.deliver(first, 1, 1)
    second = world.plan(orders=pa.table({"op": ["d", "u"], "id": ["2", "new"], "v": [None, "C"]}))
    world.deliver(second, 1, 2)
    assert sorted(world.sql("SELECT id, v FROM orders")) == [("1", "b"), ("new", "C")]
    report = compared(world, first, second)
    assert (report.expected, report.missing, report.other) == (3, 0, 0)
    third = world.plan(orders=pa.table({"op": ["d"], "id": ["3"], "v": [None]}))
    with raises(UnfitTargetError, "value_unfit", problem="label", column="id") as refused:
        world.participant(third).prepare(third, world.fence(1, 3))
    assert refused.error and "('3')" in refused.error.headline


@pytest.mark.parametrize("kind", [pa.int64(), pa.bool_(), pa.decimal128(19, 0), pa.float64()])
def test_a_number_is_refused_with_the_cast(any_mysql_database: Database, tmp_path: Path, kind: pa.DataType) -> None:
    world = make_world(any_mysql_database, tmp_path, orders=f"v {KINDS}")
    plan = world.plan(orders=pa.table({"v": pa.array([1], pa.int64()).cast(kind)}))
    with raises(UnfitTargetError, "column_unfit", column="v") as refused:
        world.participant(plan).prepare(plan, world.fence())
    assert refused.error and refused.error.fields["allowed"].startswith("enum(")
    assert "CAST(v AS STRING)" in refused.error.remedy


def test_values_in_a_delete_that_are_not_sent_are_not_compared(any_mysql_database: Database, tmp_path: Path) -> None:
    world = make_world(any_mysql_database, tmp_path, orders=f"id BIGINT PRIMARY KEY, v {KINDS}, version BIGINT")
    world.use("upsert", change_column="op", **KEYS)
    table = rows("paid", "unknown").append_column("op", pa.array(["c", "d"]))
    world.deliver(world.plan(orders=table))
    assert world.sql("SELECT id, v FROM orders") == [(1, "paid")]
    world.sinks = {name: replace(sink, change_column=None) for name, sink in world.sinks.items()}
    plan = world.plan(orders=table.select(["id", "v"]))
    with raises(UnfitTargetError, "value_unfit", problem="label", column="v") as refused:
        world.participant(plan).prepare(plan, world.fence(1, 2))
    assert refused.error and "'unknown'" in refused.error.headline
