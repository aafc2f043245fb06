"""The strategy `upsert` against real servers: last change wins, deletes, and no older checkpoint undoes a newer one."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_ft.protocol.doctor import Verdict
from airflow_ft.protocol.errors import (
    AirflowFtError,
    DeclinedError,
    FencedError,
    SinkAccessError,
    StoreBehindSinkError,
    UnfitTargetError,
)
from airflow_ft.protocol.set_aside import of_proof
from airflow_ft.protocol.verify import Delivered
from airflow_ft.protocol.votes import Outcome
from airflow_ft.sinks.mysql.catalog import read_table
from airflow_ft.sinks.mysql.comparison import usable_key
from airflow_ft.sinks.mysql.doctor import examine
from airflow_ft.sinks.mysql.naming import TableName
from airflow_ft.sinks.mysql.session import Session
from airflow_ft.sinks.mysql.verify import verify
from airflow_ft.wal import open_wal
from tests.integration.proxy import Proxy
from tests.raising import raises
from tests.sinks.mysql.committer import Committer
from tests.sinks.mysql.world import MySqlWorld, make_world, vote_for
from tools.servers import Database, MariaDb

TABLE = "id BIGINT PRIMARY KEY, name VARCHAR(100) NOT NULL, version BIGINT NOT NULL DEFAULT 0"
KEYS: dict[str, Any] = {"key_columns": ("id",), "version_column": "version", "change_column": "op"}


@pytest.fixture
def world(any_mysql_database: Database, tmp_path: Path) -> MySqlWorld:
    return make_world(any_mysql_database, tmp_path, orders=TABLE).use("upsert", **KEYS)


def changes(*rows: tuple[str, int, str | None]) -> pa.Table:
    """(kind, id, name)."""
    kinds, ids, names = zip(*rows, strict=True) if rows else ((), (), ())
    return pa.table(
        {"op": pa.array(kinds, pa.string()), "id": pa.array(ids, pa.int64()), "name": pa.array(names, pa.string())}
    )


def state(world: MySqlWorld) -> list[tuple[Any, ...]]:
    return world.sql("SELECT id, name, version FROM orders ORDER BY id")


def test_inserts_updates_and_deletes_by_key(world: MySqlWorld) -> None:
    world.deliver(world.plan(orders=changes(("c", 1, "a"), ("c", 2, "b"), ("c", 3, "c"))), 1, 1)
    assert state(world) == [(1, "a", 1), (2, "b", 1), (3, "c", 1)]
    plan = world.plan(orders=changes(("u", 1, "A"), ("d", 2, None), ("r", 4, "d")))
    world.deliver(plan, 1, 2)
    assert state(world) == [(1, "A", 2), (3, "c", 1), (4, "d", 2)]
    proof = world.participant(plan).proof(plan)
    assert proof is not None and proof.counts == {"orders": 3} and proof.outcome is Outcome.COMMITTED


def test_the_last_change_of_a_key_wins_within_a_checkpoint(world: MySqlWorld) -> None:
    rows = [("c", 1, "first"), ("d", 1, None), ("c", 1, "second"), ("u", 1, "third"), ("c", 2, "x"), ("d", 2, None)]
    first = world.segment(1, {"orders": changes(*rows)})  # type: ignore[arg-type]
    second = world.segment(2, {"orders": changes(("c", 2, "again"), ("d", 3, None), ("c", 3, "there"))})
    plan = world.plan_of(2, first, second)
    world.deliver(plan, 1, 1)
    assert state(world) == [(1, "third", 2), (2, "again", 2), (3, "there", 2)]


def test_keys_are_those_of_the_table_not_of_the_bytes(any_mysql_database: Database, tmp_path: Path) -> None:
    """In a collation without case 'a' and 'A' are one key; their order must be kept all the same."""
    columns = "id VARCHAR(20) COLLATE utf8mb4_unicode_ci PRIMARY KEY, version BIGINT NOT NULL DEFAULT 0"
    world = make_world(any_mysql_database, tmp_path, orders=columns).use("upsert", **KEYS)
    world.deliver(world.plan(orders=pa.table({"op": ["c", "d", "c", "d"], "id": ["a", "A", "b'\\", "C"]})), 1, 1)
    assert world.sql("SELECT id FROM orders") == [("b'\\",)]


def test_keys_of_several_columns_and_a_repeated_delivery(any_mysql_database: Database, tmp_path: Path) -> None:
    columns = "shop VARBINARY(8), at DATETIME(6), v INT, version BIGINT, PRIMARY KEY (shop, at)"
    world = make_world(any_mysql_database, tmp_path, orders=columns)
    world.use("upsert", **{**KEYS, "key_columns": ("shop", "at")})
    at = pa.array([1, 2, 1], pa.timestamp("us"))
    rows = pa.table({"op": ["c", "c", "d"], "shop": [b"\x00a", b"b", b"\x00a"], "at": at, "v": [1, 2, None]})
    plan = world.plan(orders=rows)
    world.deliver(plan, 1, 1)
    proof = world.participant(plan).commit(plan, world.fence(1, 2))
    assert proof.counts == {"orders": 3}
    assert world.sql("SELECT shop, v, version FROM orders") == [(b"b", 2, 1)]


@pytest.mark.parametrize("local_infile", [True, False])
def test_many_rows_go_in_several_statements(world: MySqlWorld, local_infile: bool) -> None:
    world.limits, world.extra = replace(world.limits, insert_bytes=2000), {"local_infile": local_infile}
    world.deliver(world.plan(orders=changes(*(("c", i, f"name {i}") for i in range(3000)))), 1, 1)
    world.deliver(world.plan(orders=changes(*(("d" if i % 3 else "u", i, "new") for i in range(3000)))), 1, 2)
    assert state(world) == [(i, "new", 2) for i in range(0, 3000, 3)]


def test_an_older_checkpoint_neither_overwrites_nor_revives(world: MySqlWorld) -> None:
    first = world.plan(orders=changes(("c", 1, "old"), ("c", 2, "old")))
    world.participant(first).prepare(first, world.fence(1, 1))
    second = world.plan_of(2, world.segment(2, {"orders": changes(("c", 1, "new"), ("d", 2, None))}))
    world.deliver(second, 1, 2)
    with pytest.raises(StoreBehindSinkError):
        world.participant(first).commit(first, replace(world.fence(1, 3)))
    with pytest.raises(FencedError):
        world.participant(first).commit(first, world.fence(1, 1))
    assert state(world) == [(1, "new", 2)]


def test_rows_of_a_higher_version_are_left_unchanged(world: MySqlWorld) -> None:
    world.deliver(world.plan(orders=changes(("c", 4, "x"))), 1, 1)
    world.sql("INSERT INTO orders VALUES (1, 'newer', 7), (2, 'older', 0), (3, 'newer', 7)")
    plan = world.plan(orders=changes(("u", 1, "x"), ("u", 2, "x"), ("d", 3, None), ("d", 4, None)))
    world.deliver(plan, 1, 2)
    assert state(world) == [(1, "newer", 7), (2, "x", 2), (3, "newer", 7)]


def test_versions_of_another_pipeline_are_refused_at_the_start(world: MySqlWorld) -> None:
    """Changes of these rows would have no effect, and nothing would say so."""
    world.sql("INSERT INTO orders VALUES (1, 'theirs', 7)")
    plan = world.plan(orders=changes(("u", 1, "ours")))
    with raises(UnfitTargetError, "versions_ahead", sink="orders", column="version"):
        world.participant(plan).prepare(plan, world.fence())
    world.sql("UPDATE orders SET version = 0")
    world.deliver(plan, 1, 2)
    assert state(world) == [(1, "ours", 1)]


def test_versions_ahead_are_refused_in_a_sink_that_is_added(world: MySqlWorld) -> None:
    world.deliver(world.plan(orders=changes(("c", 1, "a"))))
    world.sql("CREATE TABLE more LIKE orders")
    world.sql("INSERT INTO more VALUES (1, 'theirs', 7)")
    world.sinks["more"] = replace(world.sinks["orders"], table="more")
    plan = world.plan(more=changes(("u", 1, "ours")))
    with raises(UnfitTargetError, "versions_ahead", sink="more", column="version"):
        world.participant(plan).prepare(plan, world.fence())


def test_versions_ahead_are_refused_after_another_strategy(world: MySqlWorld) -> None:
    world.use("local", key_columns=(), version_column=None, change_column=None)
    world.deliver(world.plan(orders=pa.table({"id": [1], "name": ["a"], "version": [7]})))
    plan = world.use("upsert", **KEYS).plan(orders=changes(("u", 1, "b")))
    with raises(UnfitTargetError, "versions_ahead", sink="orders", column="version"):
        world.participant(plan).prepare(plan, world.fence())


def test_versions_that_take_too_long_name_an_index(world: MySqlWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    value = Session.value

    def slowly(session: Session, sql: str, *args: Any) -> Any:
        if "SELECT EXISTS" not in sql:
            return value(session, sql, *args)
        asked.append(sql)
        return value(session, "SELECT SLEEP(4)")

    monkeypatch.setattr(Session, "value", slowly)
    world.limits = replace(world.limits, answer=2)
    plan = world.plan(orders=changes(("u", 1, "ours")))
    with raises(UnfitTargetError, "versions_unread", sink="orders", column="version") as refused:
        world.participant(plan).prepare(plan, world.fence())
    assert len(asked) == 1  # not tried again
    assert refused.error and f"ON `{world.database}`.`orders` (`version`)." in refused.error.remedy


def test_versions_are_read_once(world: MySqlWorld) -> None:
    """A version column need not have an index."""
    world.deliver(world.plan(orders=changes(("c", 1, "a"))))
    world.sql("INSERT INTO orders VALUES (2, 'by hand', 7)")
    world.deliver(world.plan(orders=changes(("u", 2, "b"))))
    assert state(world) == [(1, "a", 1), (2, "by hand", 7)]


def test_a_tombstone_is_met_by_a_late_delivery(world: MySqlWorld) -> None:
    plan = world.plan(orders=changes(("c", 1, "a")))
    world.participant(plan).prepare(plan, world.fence())
    world.participant(plan).abort(plan, world.fence(1, 2), {"reason": "USER"})
    assert world.participant(plan).commit(plan, world.fence(1, 3)).outcome is Outcome.ABORTED
    assert state(world) == []


@pytest.mark.parametrize("kind", ["lost request", "lost reply"])
@pytest.mark.parametrize("statement", [b"ON DUPLICATE KEY UPDATE `name`", b"DELETE FROM", b"\x03COMMIT"])
def test_a_lost_request_or_reply_is_settled_by_the_marker(world: MySqlWorld, kind: str, statement: bytes) -> None:
    world.sql("INSERT INTO orders VALUES (2, 'b', 0)")
    plan = world.plan(orders=changes(("c", 1, "a"), ("d", 2, None)))
    world.participant(plan).prepare(plan, world.fence())
    with Proxy(world.server.port) as proxy:
        world.port, world.extra = proxy.port, {"ssl_mode": "DISABLED"}
        proxy.cut(kind, statement)
        world.participant(plan).commit(plan, world.fence(1, 2))
        assert proxy.cuts == 1
    assert state(world) == [(1, "a", 1)]


@pytest.mark.chaos
@pytest.mark.parametrize("end", ["killed", "woken"])
@pytest.mark.parametrize("stop", ["announced", "before commit", "after commit"])
def test_a_delivery_that_stopped_is_finished_by_the_next_attempt(world: MySqlWorld, stop: str, end: str) -> None:
    plan = world.plan(orders=changes(("c", 1, "a"), ("c", 2, "b"), ("d", 2, None)))
    world.participant(plan).prepare(plan, world.fence())
    with Committer(plan, world.connection(), world.fence(1, 2), world.limits, stop=stop) as other:
        other.wait_until_stopped()
        if end == "killed":
            other.kill()
        proof = world.participant(plan).commit(plan, world.fence(1, 3))
        if end == "woken":
            other.wake()
            answer = other.answer()
            assert answer.get("error") == "FencedError" or answer["outcome"] == "committed"
    assert state(world) == [(1, "a", 1)] and world.participant(plan).proof(plan) == proof


@pytest.mark.parametrize(
    ("table", "code", "fields"),
    [
        ("id BIGINT, name TEXT, version BIGINT", "key_unfit", {"key_columns": ["id"]}),
        ("id BIGINT, name TEXT, version BIGINT, UNIQUE (id)", "key_unfit", {"key_columns": ["id"]}),
        (
            "id BIGINT PRIMARY KEY, name VARCHAR(9) UNIQUE, version BIGINT",
            "other_unique_key",
            {"keys": ["name (name)"]},
        ),
        ("id BIGINT PRIMARY KEY, name TEXT, version INT", "column_unfit", {"version_column": "version"}),
        ("id BIGINT PRIMARY KEY, name TEXT", "column_missing", {"version_column": "version"}),
        (
            "id BIGINT PRIMARY KEY, name VARCHAR(9), version BIGINT, UNIQUE (name(3))",
            "other_unique_key",
            {"keys": ["name (name(3))"]},
        ),
        ("id SET('x','y') PRIMARY KEY, name TEXT, version BIGINT", "column_unfit", {"key_column": "id"}),
    ],
)
def test_tables_that_do_not_fit_are_refused(
    any_mysql_database: Database, tmp_path: Path, table: str, code: str, fields: dict[str, Any]
) -> None:
    world = make_world(any_mysql_database, tmp_path, orders=table).use("upsert", **KEYS)
    plan = world.plan(orders=changes(("c", 1, "a")))
    with raises(UnfitTargetError, code, sink="orders", table=f"{world.database}.orders", **fields) as refused:
        world.participant(plan).prepare(plan, world.fence())
    if "version_column" in fields:
        change = "ADD COLUMN" if code == "column_missing" else "MODIFY COLUMN"
        assert refused.error and f"{change} `version` BIGINT" in refused.error.remedy


BINARY = "CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"  # the remedy keeps which keys are equal
PREFIXES = {
    "id VARCHAR(20), name TEXT, version BIGINT, PRIMARY KEY (id(4))": (
        "PRIMARY (id(4))",
        "",
        "DROP PRIMARY KEY, ADD PRIMARY KEY (`id`).",
    ),
    "id VARBINARY(20) NOT NULL, name TEXT, version BIGINT, UNIQUE KEY by_id (id(4))": (
        "by_id (id(4))",
        "",
        "DROP KEY `by_id`, ADD UNIQUE KEY `by_id` (`id`).",
    ),
    f"id TEXT {BINARY}, name TEXT, version BIGINT, PRIMARY KEY (id(4))": (
        "PRIMARY (id(4))",
        f"MODIFY `id` VARCHAR(255) {BINARY} NOT NULL,",
        "DROP PRIMARY KEY, ADD PRIMARY KEY (`id`).",
    ),
}

HASHES = {
    f"id TEXT {BINARY} NOT NULL, name TEXT, version BIGINT, UNIQUE KEY k (id)": f"VARCHAR(255) {BINARY}",
    "id BLOB NOT NULL, name TEXT, version BIGINT, UNIQUE KEY k (id)": "VARBINARY(1020)",
    f"id VARCHAR(3000) {BINARY} NOT NULL, name TEXT, version BIGINT, UNIQUE KEY k (id)": f"VARCHAR(255) {BINARY}",
    "id VARCHAR(20) NOT NULL, name TEXT, version BIGINT, UNIQUE KEY k (id) USING HASH": "VARCHAR(20)",
}


@pytest.mark.parametrize("table", HASHES)
def test_a_key_that_mariadb_keeps_as_a_hash_is_refused(mariadb_database: Database, tmp_path: Path, table: str) -> None:
    world = make_world(mariadb_database, tmp_path, orders=table)
    world.use("upsert", key_columns=("id",), version_column="version", change_column="op")
    rows = pa.table({"op": ["c", "c", "d"], "id": ["key-1", "key-2", "key-1"], "name": ["a", "b", None]})
    plan = world.plan(orders=rows)
    with raises(UnfitTargetError, "key_unfit", key="k (id)") as refused:
        world.participant(plan).prepare(plan, world.fence())
    remedy = "DROP KEY `k`, ADD UNIQUE KEY `k` (`id`)."
    assert refused.error and refused.error.remedy.endswith(remedy)
    with closing(Session(world.connection(), world.limits)) as session:  # a comparison by this key reads too much
        found = read_table(session, TableName(world.database, "orders"))
        assert usable_key(session, found, [frozenset(["id"])]) == ()
    world.sql(f"ALTER TABLE orders MODIFY `id` {HASHES[table]} NOT NULL, {remedy.rstrip('.')}")
    world.deliver(plan)
    [report] = verify([Delivered(plan, None, None)], plan.participants[0], world.connection(), open_wal())
    assert report.is_complete and world.count() == 1


def test_a_hash_of_many_columns_is_to_be_shortened(mariadb_database: Database, tmp_path: Path) -> None:
    """None of them is too long alone: the same key would become a hash again."""
    names = ["a", "b", "c", "d"]
    columns = ", ".join(f"{name} VARCHAR(255) {BINARY} NOT NULL" for name in names)
    world = make_world(mariadb_database, tmp_path, orders=f"{columns}, version BIGINT, UNIQUE KEY k (a, b, c, d)")
    plan = world.use("upsert", key_columns=names, version_column="version").plan(
        orders=pa.table({name: ["x"] for name in names})
    )
    with raises(UnfitTargetError, "key_unfit", key="k (a, b, c, d)") as refused:
        world.participant(plan).prepare(plan, world.fence())
    assert refused.error and "3,072 bytes together" in refused.error.remedy


@pytest.mark.parametrize("table", PREFIXES)
def test_a_key_over_the_prefix_of_a_text_is_refused(any_mysql_database: Database, tmp_path: Path, table: str) -> None:
    world = make_world(any_mysql_database, tmp_path, orders=table)
    world.use("upsert", key_columns=("id",), version_column="version")
    rows = pa.table({"id": ["key-1", "key-2", "key-3"], "name": ["a", "b", "c"]})
    plan = world.plan(orders=rows)
    key, change, remedy = PREFIXES[table]
    with raises(UnfitTargetError, "key_unfit", key=key) as refused:
        world.participant(plan).prepare(plan, world.fence())
    assert refused.error and refused.error.remedy.endswith(remedy)
    checks = examine("orders", plan.participants[0], world.connection(), [])
    assert any(check.verdict is Verdict.PROBLEM and key in check.text for check in checks)
    world.sql(f"ALTER TABLE orders {change} {remedy.rstrip('.')}")
    world.deliver(plan)
    assert world.count() == 3


@pytest.mark.parametrize("name", ["none", "id"])
def test_a_unique_key_over_an_expression_is_another_one(mysql_database: Database, tmp_path: Path, name: str) -> None:
    columns = "id BIGINT PRIMARY KEY, `none` INT NOT NULL, j JSON, version BIGINT, UNIQUE KEY e ((`none` DIV 2))"
    world = make_world(mysql_database, tmp_path, orders=columns)
    world.use("upsert", key_columns=(name,), version_column="version")
    plan = world.plan(orders=pa.table({"id": [1], "none": pa.array([1], pa.int32())}))
    code = "key_unfit" if name == "none" else "other_unique_key"
    with raises(UnfitTargetError, code) as refused:
        world.participant(plan).prepare(plan, world.fence())
    assert refused.error is not None
    if name == "id":
        [key] = refused.error.fields["keys"]
        assert key.startswith("e ((") and "none" in key
    world.sql("ALTER TABLE orders DROP KEY e, ADD UNIQUE KEY m ((CAST(j->'$.a' AS UNSIGNED ARRAY)))")
    with raises(UnfitTargetError, code) as refused:
        world.participant(plan).prepare(plan, world.fence())
    assert refused.error and (name == "none" or refused.error.fields["keys"][0].startswith("m ("))


def test_a_key_that_the_server_computes_cannot_be_sent(mysql_database: Database, tmp_path: Path) -> None:
    columns = "id VARCHAR(9), n INT AS (LENGTH(id)) STORED, version BIGINT, PRIMARY KEY (n)"
    world = make_world(mysql_database, tmp_path, orders=columns)
    world.use("upsert", key_columns=("n",), version_column="version")
    plan = world.plan(orders=pa.table({"id": ["a"]}))
    with raises(UnfitTargetError, "column_generated", key_column="n") as refused:
        world.participant(plan).prepare(plan, world.fence())
    assert refused.error and "MODIFY `n` int NOT NULL" in refused.error.remedy


def test_an_invisible_key_keeps_rows_apart_as_well(mysql_database: Database, tmp_path: Path) -> None:
    columns = "id BIGINT PRIMARY KEY, n INT INVISIBLE, version BIGINT INVISIBLE, UNIQUE KEY hidden (n) INVISIBLE"
    world = make_world(mysql_database, tmp_path, orders=columns)
    world.use("upsert", key_columns=("id",), version_column="version")
    plan = world.plan(orders=pa.table({"id": [1], "n": pa.array([1], pa.int32())}))
    with raises(UnfitTargetError, "other_unique_key", keys=["hidden (n)"]):
        world.participant(plan).prepare(plan, world.fence())
    world.sql("ALTER TABLE orders DROP KEY hidden")
    world.deliver(plan)
    assert world.sql("SELECT id, n, version FROM orders") == [(1, 1, 1)]


DELETES: dict[str, tuple[str, pa.DataType, Any, str, type[AirflowFtError]]] = {
    "null": ("BIGINT", pa.int64(), None, "null", DeclinedError),
    "latin1": ("VARCHAR(9) CHARACTER SET latin1", pa.string(), "日", "charset", UnfitTargetError),
    "utf8mb3": ("VARCHAR(9) CHARACTER SET utf8mb3", pa.string(), "😀", "charset", UnfitTargetError),
    "length": ("VARCHAR(3)", pa.string(), "abcd", "length", UnfitTargetError),
    "range": ("INT", pa.int64(), 2**40, "range", UnfitTargetError),
    "date": ("DATE", pa.date32(), -800_000, "range", DeclinedError),
    "label": ("ENUM('a','b')", pa.string(), "1", "label", UnfitTargetError),
}


@pytest.mark.parametrize("name", DELETES)
def test_the_key_of_a_delete_is_judged_before_the_decision(
    any_mysql_database: Database, tmp_path: Path, name: str
) -> None:
    column, kind, wrong, problem, refusal = DELETES[name]
    world = make_world(
        any_mysql_database, tmp_path, orders=f"id {column} PRIMARY KEY, must INT NOT NULL, version BIGINT"
    )
    world.use("upsert", **KEYS)
    good = {"length": "abc", "label": "a", "range": 7, "null": 7, "date": 20_000}.get(name, "ä")
    ids = pa.array([good, wrong], pa.int32()).cast(kind) if name == "date" else pa.array([good, wrong], kind)
    rows = pa.table({"op": ["d", "d"], "id": ids, "must": pa.nulls(2, pa.int32())})
    plan = world.plan(orders=rows)
    code = "null_refused" if name == "null" else "value_unfit"
    with raises(refusal, code, problem=problem, sink="orders", column="id") as refused:
        world.participant(plan).prepare(plan, world.fence())
    checks = examine("orders", plan.participants[0], world.connection(), [open_wal().open(plan.segments[0])])
    assert refused.error is not None
    assert any(check.verdict is Verdict.PROBLEM and refused.error.what in check.text for check in checks)
    world.deliver(world.plan(orders=rows.slice(0, 1)), 1, 2)


@pytest.mark.parametrize("strategy", ["local", "upsert"])
@pytest.mark.parametrize(
    ("kind", "wrong", "column", "problem", "refusal"),
    [
        (pa.list_(pa.float64()), [1.0, float("nan")], "JSON", "nan", DeclinedError),
        (
            pa.struct([("a", pa.list_(pa.struct([("f", pa.float32())])))]),
            {"a": [{"f": float("inf")}]},
            "TEXT",
            "nan",
            DeclinedError,
        ),
        (pa.map_(pa.string(), pa.float64()), [("k", float("-inf"))], "LONGTEXT", "nan", DeclinedError),
        (pa.list_(pa.string()), ["x" * 65_533], "TEXT", "length", UnfitTargetError),
        (pa.list_(pa.string()), ["日"], "TEXT CHARACTER SET latin1", "charset", UnfitTargetError),
    ],
    ids=lambda given: str(given) if isinstance(given, pa.DataType) else "",
)
def test_prepare_refuses_nested_values_that_do_not_fit_as_json(
    any_mysql_database: Database,
    tmp_path: Path,
    strategy: str,
    kind: pa.DataType,
    wrong: Any,
    column: str,
    problem: str,
    refusal: type[AirflowFtError],
) -> None:
    world = make_world(any_mysql_database, tmp_path, orders=f"id BIGINT PRIMARY KEY, v {column}, version BIGINT")
    world.use(strategy, **({"key_columns": ("id",), "version_column": "version"} if strategy == "upsert" else {}))
    plan = world.plan(orders=pa.table({"id": [1, 2, 3], "v": pa.array([None, wrong, None], kind)}))
    with raises(refusal, "value_unfit", problem=problem, column="v", row="2 (id=2)"):
        world.participant(plan).prepare(plan, world.fence())


@pytest.mark.parametrize("strategy", ["upsert", "local"])
@pytest.mark.parametrize(
    ("column", "good", "wrong"),
    [
        ("JSON", ['{"a": "ü\\u00fc\'"}', "1", "null"], "{"),
        ("JSON", ["[]"], "NaN"),
        ("UUID", ["123e4567-e89b-12d3-a456-426655440000"], "123e4567"),
        ("INET6", ["::1"], "::g"),
    ],
)
def test_prepare_asks_the_server_about_texts_only_it_can_judge(
    any_mysql_database: Database, tmp_path: Path, strategy: str, column: str, good: list[str], wrong: str
) -> None:
    if column != "JSON" and not isinstance(any_mysql_database.server, MariaDb):
        return  # MySQL has no such type
    world = make_world(any_mysql_database, tmp_path, orders=f"id BIGINT PRIMARY KEY, v {column}, version BIGINT")
    world.use(strategy, **({"key_columns": ("id",), "version_column": "version"} if strategy == "upsert" else {}))
    count = 1200  # of several statements

    def rows(texts: list[str | None]) -> pa.Table:
        return pa.table({"id": range(len(texts)), "v": pa.array(texts, pa.string())})

    many: list[str | None] = [f'["{at}"]' for at in range(count)] if column == "JSON" else []
    world.deliver(world.plan(orders=rows([*good, None, *many])), 1, 1)
    assert world.count() == len(good) + 1 + len(many)
    plan = world.plan(orders=rows([*good, None, *many, wrong]))
    if strategy == "local":  # its own transaction declines, unless another sink decides
        world.participant(plan).prepare(plan, world.fence(1, 2))
        plan = replace(plan, commit_point=None)
    place = len(good) + 1 + len(many)
    where = {"column": "v", "row": f"{place + 1} (id={place})"}
    with raises(DeclinedError, "value_unfit", problem="syntax", **where):
        world.participant(plan).prepare(plan, world.fence(1, 2))


@pytest.mark.parametrize("event", ["INSERT", "UPDATE", "DELETE"])
def test_triggers_of_every_statement_in_an_upsert_are_reported(world: MySqlWorld, event: str) -> None:
    row = "OLD" if event == "DELETE" else "NEW"
    world.sql(f"CREATE TRIGGER told AFTER {event} ON orders FOR EACH ROW SET @told = {row}.id")
    plan = world.plan(orders=changes(("c", 1, "a"), ("d", 2, None)))
    notes = world.participant(plan).prepare(plan, world.fence())["tables"]["orders"]["notes"]
    expected = "triggers fire for each row: told" + ("" if event == "INSERT" else f" (on {event})")
    assert notes == [expected]
    checks = examine("orders", plan.participants[0], world.connection(), [])
    assert [check.text for check in checks if check.verdict is Verdict.WARNING and "told" in check.text] == [expected]
    world.use("upsert", change_column=None)
    plan = world.plan(orders=changes(("c", 1, "a")).select(["id", "name"]))
    notes = world.participant(plan).prepare(plan, world.fence(1, 2))["tables"]["orders"]["notes"]
    assert notes == ([] if event == "DELETE" else [expected])


@pytest.mark.parametrize(("table", "fits"), [(TABLE, True), ("id BIGINT, name TEXT, version BIGINT", False)])
def test_the_doctor_looks_at_keys_and_rows(
    any_mysql_database: Database, tmp_path: Path, table: str, fits: bool
) -> None:
    world = make_world(any_mysql_database, tmp_path, orders=table).use("upsert", **KEYS)
    plan = world.plan(orders=changes(("c", 1, "a"), ("d", 2, None)))
    checks = examine("orders", plan.participants[0], world.connection(), [open_wal().open(plan.segments[0])])
    problems = [check for check in checks if check.verdict is not Verdict.OK]
    assert problems == [] if fits else "ADD PRIMARY KEY (`id`)" in problems[0].remedy


@pytest.mark.parametrize(
    ("rows", "code", "fields"),
    [
        (changes(("moved", 1, "a")), "change_kind_unknown", {"column": "op", "value": "moved"}),
        (pa.table({"id": [1], "name": ["a"]}), "job_column_missing", {"column": "op", "argument": "change_column"}),
        (pa.table({"op": ["c"], "name": ["a"]}), "job_column_missing", {"column": "id"}),
        (pa.table({"op": ["c"], "id": [1], "name": ["a"], "version": [9]}), "column_reserved", {"column": "version"}),
        (pa.table({"op": ["c", "d"], "id": [1, 2], "name": [None, "a"]}), "null_refused", {"column": "name"}),
    ],
)
def test_rows_that_do_not_fit_are_declined_before_the_decision(
    world: MySqlWorld, rows: pa.Table, code: str, fields: dict[str, str]
) -> None:
    plan = world.plan(orders=rows)
    with raises(DeclinedError, code, **fields):
        world.participant(plan).prepare(plan, world.fence())


@pytest.mark.parametrize(
    "key", ["PRIMARY KEY (id, p WITHOUT OVERLAPS)", "PRIMARY KEY (id), UNIQUE (name, p WITHOUT OVERLAPS)"]
)
def test_a_key_over_a_period_is_refused_before_the_decision(
    mariadb_database: Database, tmp_path: Path, key: str
) -> None:
    table = f"id BIGINT, name VARCHAR(9), a DATE, b DATE, version BIGINT, PERIOD FOR p (a, b), {key}"
    world = make_world(mariadb_database, tmp_path, orders=table)
    world.use("upsert", key_columns=("id",), version_column="version")
    plan = world.plan(orders=pa.table({"id": [1], "name": ["a"]}))
    with raises(UnfitTargetError, "table_unsupported") as refused:
        world.participant(plan).prepare(plan, world.fence())
    assert refused.error and "WITHOUT OVERLAPS" in refused.error.fields["key"]


def test_prepare_refuses_a_row_that_is_too_large_for_a_packet(
    any_mysql_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commit refuses the row too, or sets it aside."""
    world = make_world(
        any_mysql_database, tmp_path, orders="id BIGINT PRIMARY KEY, a LONGTEXT, b LONGTEXT, c LONGTEXT, version BIGINT"
    )
    world.use("upsert", key_columns=("id",), version_column="version")
    large = "x" * 30_000
    plan = world.plan(orders=pa.table({"id": [1, 2, 3], **{name: ["", large, ""] for name in "abc"}}))
    participant = world.participant(plan)
    vote = vote_for(participant.prepare(plan, world.fence()))
    with monkeypatch.context() as lower:  # as if the server's limit had been lowered
        lower.setattr(Session, "max_allowed_packet", 65_000)
        small = world.participant(plan)
        with raises(SinkAccessError, "limit_reached", setting="max_allowed_packet", row="2"):
            small.prepare(plan, world.fence(1, 2))
        with raises(SinkAccessError, "limit_reached", setting="max_allowed_packet"):
            small.commit(plan, world.fence(1, 3), vote)
        proof = small.commit(plan, world.fence(1, 4), vote, set_aside=True)
    assert (proof.counts, of_proof(proof)["orders"].rows) == ({"orders": 2}, 1)
    assert world.sql("SELECT id FROM orders ORDER BY id") == [(1,), (3,)]
