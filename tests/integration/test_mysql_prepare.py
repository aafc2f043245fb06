"""The vote: what prepare refuses, as what, and what it accepts. And what only the server can refuse, in commit."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_ft.protocol.doctor import Verdict
from airflow_ft.protocol.errors import AirflowFtError, DeclinedError, SinkAccessError, UnfitTargetError
from airflow_ft.sinks.mysql.doctor import examine
from airflow_ft.sinks.mysql.spec import MySqlSink
from tests.raising import raises
from tests.sinks.mysql.world import MySqlWorld, each_way, make_world, orders
from tools.servers import Database, MariaDb, MySql

I64, STRING, STAMP = pa.int64(), pa.string(), pa.timestamp("us")
D = Decimal
AT = datetime.fromisoformat
INT_1 = pa.array([1], pa.int32())

REFUSED: dict[str, tuple[str, pa.DataType, list[Any], str, str]] = {
    # name: column, type, values (of rows 1, 2, 3), kind of misfit, offending row
    "null": ("INT NOT NULL", pa.int32(), [1, None, 3], "null", "2"),
    "null for auto_increment": ("INT AUTO_INCREMENT, KEY (v)", pa.int32(), [1, None, 3], "null", "2"),
    "too large": ("INT", I64, [1, 2, 2**31], "range", "3"),
    "too small": ("TINYINT", I64, [1, -129, 3], "range", "2"),
    "negative unsigned": ("BIGINT UNSIGNED", I64, [1, -1, 3], "range", "2"),
    "uint64 into bigint": ("BIGINT", pa.uint64(), [1, 2, 2**63], "range", "3"),
    "bit": ("BIT(3)", I64, [1, 8, 3], "range", "2"),
    "year": ("YEAR", I64, [1901, 1900, 2000], "range", "2"),
    "int as double": ("DOUBLE", I64, [1, 2**53 + 1, 0], "range", "2"),
    "decimal digits": ("DECIMAL(5,2)", pa.decimal128(10, 2), [D("999.99"), D("1000.00"), D(0)], "digits", "2"),
    "decimal of int": ("DECIMAL(3,1)", I64, [1, 2, 100], "digits", "3"),
    "decimal scale": ("DECIMAL(10,1)", pa.decimal128(10, 2), [D("1.10"), D("2.20"), D("3.33")], "scale", "3"),
    "decimal sign": ("DECIMAL(10,2) UNSIGNED", pa.decimal128(10, 2), [D(1), D("-0.01"), D(2)], "sign", "2"),
    "double into decimal": ("DECIMAL(10,2)", pa.float64(), [1.0, 2.0, 3.0], "type", ""),
    "double into float": ("FLOAT", pa.float64(), [1.0, 2.0, 3.0], "type", ""),
    "rounding double": ("DOUBLE(10,2)", pa.float64(), [1.0, 2.0, 3.0], "type", ""),
    "nan": ("DOUBLE", pa.float64(), [1.0, float("nan"), 3.0], "nan", "2"),
    "infinity": ("DOUBLE", pa.float64(), [1.0, 2.0, float("-inf")], "nan", "3"),
    "negative double": ("DOUBLE UNSIGNED", pa.float64(), [1.0, -0.5, 3.0], "sign", "2"),
    "text length": ("VARCHAR(3)", STRING, ["abc", "ab", "üüüü"], "length", "3"),
    "text bytes": ("TINYTEXT", STRING, ["a", "ü" * 128, "b"], "length", "2"),
    "blanks in char": ("CHAR(5)", STRING, ["ab", "ab ", "c"], "blanks", "2"),
    "four bytes": ("VARCHAR(9) CHARACTER SET utf8mb3", STRING, ["ü", "日", "😀"], "charset", "3"),
    "latin1": ("VARCHAR(9) CHARACTER SET latin1", STRING, ["ä€", "日", "c"], "charset", "2"),
    "blob length": ("VARBINARY(2)", pa.binary(), [b"ab", b"abc", b""], "length", "2"),
    "short binary": ("BINARY(3)", pa.binary(), [b"abc", b"ab", b"abc"], "padding", "2"),
    "bytes into text": ("VARCHAR(9)", pa.binary(), [b"a", b"b", b"c"], "type", ""),
    "text into int": ("INT", STRING, ["1", "2", "3"], "type", ""),
    "int into text": ("VARCHAR(9)", I64, [1, 2, 3], "type", ""),
    "text into datetime": ("DATETIME", STRING, ["a", "b", "c"], "type", ""),
    "early date": ("DATE", pa.date32(), [date(1000, 1, 1), date(999, 12, 31), None], "range", "2"),
    "early timestamp": ("TIMESTAMP NULL", STAMP, [AT("1970-01-01"), None, None], "range", "1"),
    "timestamp of no column": ("TIMESTAMP NULL", STAMP, [AT("1970-01-01"), AT("0999-12-31"), None],
                               "range", "2"),
    "day of the epoch": ("TIMESTAMP NULL", pa.date32(), [date(1970, 1, 1), None, None], "range", "1"),
    "late timestamp": ("TIMESTAMP NULL", STAMP, [None, AT("2107-01-01"), None], "range", "2"),
    "fraction": ("DATETIME(3)", STAMP, [AT("2024-01-01 01:01:01.001000"), AT("2024-01-01 01:01:01.000001"), None],
                 "fraction", "2"),
    "fraction of time": ("TIME", pa.time64("us"), [time(1), time(1, 1, 1, 1), None], "fraction", "2"),
    "timestamp into date": ("DATE", STAMP, [None, None, AT("2024-01-01")], "type", ""),
    "struct into varchar": ("VARCHAR(99)", pa.struct([("a", I64)]), [{"a": 1}, None, None], "type", ""),
    "keys with parts": ("JSON", pa.map_(pa.list_(I64), I64), [[([1], 1)], None, None], "no type", ""),
    "a key twice": ("JSON", pa.map_(STRING, I64), [[("a", 1)], None, [("a", 1), ("a", 2)]], "key", "3"),
    "generated": ("INT AS (id + 1)", pa.int32(), [1, 2, 3], "generated", ""),
    "stored": ("INT GENERATED ALWAYS AS (id + 1) STORED", pa.int32(), [1, 2, 3], "generated", ""),
    "point": ("POINT", pa.binary(), [b"", b"", b""], "type", ""),
}  # fmt: skip


CODES = {"null": "null_refused", "type": "column_unfit", "no type": "type_unsupported", "generated": "column_generated"}
ALLOWED = {
    "null for auto_increment": "AUTO_INCREMENT", "too large": "2147483647", "text length": "varchar(3)",
    "negative unsigned": "0 to 18446744073709551615", "timestamp of no column": "1970-01-01 00:00:01 to 2",
    "double into decimal": "decimal(10,2)", "text into int": "int", "text into datetime": "datetime",
}  # fmt: skip

# No other column would take these as they are. For the others the table can be changed, so the rows are kept.
NO_TABLE_HELPS = {
    "null", "null for auto_increment", "nan", "infinity", "early date", "timestamp of no column", "keys with parts",
    "a key twice",
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_value_or_type_that_does_not_fit_is_refused(any_mysql_database: Database, tmp_path: Path, name: str) -> None:
    column, kind, values, problem, row = REFUSED[name]
    world = make_world(any_mysql_database, tmp_path, orders=f"id BIGINT PRIMARY KEY, v {column}")
    plan = world.plan(orders=pa.table({"id": [71, 72, 73], "v": pa.array(values, kind)}))
    kind_of_error = DeclinedError if name in NO_TABLE_HELPS else UnfitTargetError
    where = {"sink": "orders", "column": "v", "checkpoint": 1, "participant": "shop"}
    more = {"problem": problem} if row else {}
    with raises(kind_of_error, CODES.get(problem, "value_unfit"), **where, **more) as refused:
        world.participant(plan).prepare(plan, world.fence())
    error = refused.error
    assert error is not None and error.row == (f"{row} (id={70 + int(row)})" if row else "")
    assert error.remedy and error.fields["table"] == f"{world.database}.orders"
    assert ALLOWED.get(name, "") in error.fields.get("allowed", "")


SCHEMAS: dict[str, tuple[str, pa.Table, list[str], type[AirflowFtError]]] = {
    "unknown column": ("id INT", pa.table({"id": INT_1, "more": [1]}), ["column_missing"], UnfitTargetError),
    "name of 65": ("id INT", pa.table({"id": INT_1, "n" * 65: [1]}), ["name_invalid"], DeclinedError),
    "name with a blank": ("id INT", pa.table({"id": INT_1, "n ": [1]}), ["name_invalid"], DeclinedError),
    "name of 64": ("id INT", pa.table({"id": INT_1, "n" * 64: [1]}), ["column_missing"], UnfitTargetError),
    "missing value": ("id INT, must INT NOT NULL", pa.table({"id": INT_1}), ["column_required"], UnfitTargetError),
    "same column": ("id INT", pa.table({"id": INT_1, "ID": INT_1}), ["column_ambiguous"], DeclinedError),
    "all of it": ("id CHAR(3), must INT NOT NULL", pa.table({"id": INT_1, "more": [1]}),
                  ["column_missing", "column_required", "column_unfit"], UnfitTargetError),
    "table and job": ("id INT, must INT NOT NULL", pa.table({"id": INT_1, "ID": INT_1}),
                      ["column_ambiguous", "column_required"], DeclinedError),
}  # fmt: skip


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_schema_that_does_not_fit_is_refused(any_mysql_database: Database, tmp_path: Path, name: str) -> None:
    columns, table, codes, kind = SCHEMAS[name]
    world = make_world(any_mysql_database, tmp_path, orders=columns)
    plan = world.plan(orders=table)
    code = codes[0] if len(codes) == 1 else "several_problems"
    with raises(kind, code) as refused:
        world.participant(plan).prepare(plan, world.fence())
    assert refused.error and refused.error.fields.get("codes", codes) == codes


def test_what_a_row_may_leave_out_is_no_objection(any_mysql_database: Database, tmp_path: Path) -> None:
    columns = (
        "id INT NOT NULL AUTO_INCREMENT PRIMARY KEY, name VARCHAR(9), a INT, b INT NOT NULL DEFAULT 3,"
        " c TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP, d INT AS (b + 1), e VARCHAR(9) NOT NULL DEFAULT ''"
    )
    world = make_world(any_mysql_database, tmp_path, orders=columns)
    world.deliver(world.plan(orders=pa.table({"name": ["x"]})))
    assert world.sql("SELECT id, name, a, b, d, e FROM orders") == [(1, "x", None, 3, 4, "")]


SERVER_REFUSES: dict[str, tuple[str, pa.DataType, list[Any]]] = {
    "json": ("JSON", STRING, ["{}", "{"]),
    "deep json": ("JSON", STRING, ["{}", "[" * 120 + "]" * 120]),
    "check": ("INT, CHECK (v < 5)", pa.int32(), [1, 5]),
    "unique": ("INT, UNIQUE (v)", pa.int32(), [1, 1]),
    "foreign key": ("INT, FOREIGN KEY (v) REFERENCES parents (id)", pa.int32(), [1, 2]),
    "unique text ignores case": ("VARCHAR(9), UNIQUE (v)", STRING, ["a", "A"]),
    "generated column overflows": ("INT, w TINYINT AS (v * 2) STORED", pa.int32(), [1, 100]),
}


@each_way
@pytest.mark.parametrize("name", SERVER_REFUSES)
def test_what_only_the_server_can_refuse_leaves_nothing(
    any_mysql_database: Database, tmp_path: Path, name: str, way: str
) -> None:
    column, kind, values = SERVER_REFUSES[name]
    any_mysql_database.sql("CREATE TABLE parents (id INT PRIMARY KEY) ENGINE=InnoDB")
    any_mysql_database.sql("INSERT INTO parents VALUES (1)")
    world = make_world(any_mysql_database, tmp_path, orders=f"id BIGINT, v {column}")
    world.use_way(way)
    plan = world.plan(orders=pa.table({"id": [1, 2], "v": pa.array(values, kind)}))
    participant = world.participant(plan)
    participant.prepare(plan, world.fence())
    with pytest.raises(DeclinedError) as declined:
        participant.commit(plan, world.fence())
    assert (declined.value.sink, "." in declined.value.column) == ("orders", False)
    assert world.count() == 0 and world.markers() == []


def test_json_nested_too_deeply_is_refused_before_the_decision(any_mysql_database: Database, tmp_path: Path) -> None:
    """MySQL's JSON_VALID does not say no, it fails: prepare was tried again for ever."""
    world = make_world(any_mysql_database, tmp_path, orders="id BIGINT, v JSON")
    world.sinks = {"orders": MySqlSink(table="orders", conn_id="shop", strategy="local")}
    deep = "[" * 120 + "]" * 120
    plan = replace(world.plan(orders=pa.table({"id": [1, 2, 3], "v": ["{}", deep, "[]"]})), commit_point=None)
    with raises(DeclinedError, "value_unfit", problem="syntax", allowed="only JSON", row="2 (id=2)"):
        world.participant(plan).prepare(plan, world.fence())


@each_way
def test_a_trigger_may_refuse_a_row_in_its_own_words(any_mysql_database: Database, tmp_path: Path, way: str) -> None:
    world = make_world(any_mysql_database, tmp_path)
    world.use_way(way)
    world.sql(
        "CREATE TRIGGER refuse BEFORE INSERT ON orders FOR EACH ROW BEGIN IF NEW.id = 2 THEN"
        " SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'no twos please', MYSQL_ERRNO = 31001; END IF; END"
    )
    plan = world.plan(orders=orders(1, 3))
    participant = world.participant(plan)
    notes = participant.prepare(plan, world.fence())
    assert notes["tables"]["orders"]["notes"] == ["triggers fire for each row: refuse"]
    with raises(DeclinedError, "row_refused", errno=31001) as declined:
        participant.commit(plan, world.fence())
    assert declined.error and "no twos please" in declined.error.headline
    assert world.count() == 0 and world.markers() == []


@pytest.mark.parametrize(
    ("make", "code", "fields"),
    [
        (lambda w: w.sql("DROP TABLE orders"), "table_missing", {}),
        (lambda w: w.sql("ALTER TABLE orders ENGINE=MyISAM"), "table_unsupported", {"engine": "MyISAM"}),
        (
            lambda w: (w.sql("RENAME TABLE orders TO o"), w.sql("CREATE VIEW orders AS SELECT * FROM o")),
            "table_unsupported",
            {"type": "view"},
        ),
    ],
)
def test_a_target_that_is_no_innodb_table_is_unfit(
    any_mysql_database: Database,
    tmp_path: Path,
    make: Callable[[MySqlWorld], object],
    code: str,
    fields: dict[str, str],
) -> None:
    world = make_world(any_mysql_database, tmp_path)
    make(world)
    plan = world.plan(orders=orders(1, 3))
    where = {"sink": "orders", "table": f"{world.database}.orders"}
    with raises(UnfitTargetError, code, **where, **fields):  # as in the other SQL sinks
        world.participant(plan).prepare(plan, world.fence())


@pytest.mark.sampled(among="servers of their own")
@pytest.mark.parametrize(
    ("kind", "options", "setting"),
    [
        (MariaDb, {"innodb_flush_log_at_trx_commit": 2}, "innodb_flush_log_at_trx_commit=2"),
        (MySql, {"sync_binlog": 0}, "sync_binlog=0"),
    ],
)
def test_a_server_that_may_forget_commits_is_refused_by_default(
    own_server: Callable[..., Any], tmp_path: Path, kind: type[Any], options: dict[str, int], setting: str
) -> None:
    with Database.fresh(own_server(kind, **options)) as database:
        world = make_world(database, tmp_path)
        plan = world.plan(orders=orders(1, 3))
        with raises(SinkAccessError, "server_setting_unsafe", settings=[setting]) as refused:
            world.participant(plan).prepare(plan, world.fence())
        assert refused.error and "allow_unsafe_durability=True" in refused.error.remedy

        world.sinks = {"orders": MySqlSink(table="orders", conn_id="shop", allow_unsafe_durability=True)}
        allowed = world.plan_of(1, *plan.segments)
        assert setting in world.participant(allowed).prepare(allowed, world.fence())["warnings"][0]

        world.server.sql("SET GLOBAL read_only = 1")
        with raises(SinkAccessError, "server_read_only", setting="read_only"):
            world.participant(allowed).prepare(allowed, world.fence())
        world.server.sql("SET GLOBAL read_only = 0")


@pytest.mark.sampled(among="servers of their own")
def test_a_disabled_redo_log_is_refused_unless_allowed(own_server: Callable[..., Any], tmp_path: Path) -> None:
    with Database.fresh(own_server(MySql)) as database:
        world = make_world(database, tmp_path)
        plan = world.plan(orders=orders(1, 3))
        world.participant(plan).prepare(plan, world.fence())
        world.server.sql("ALTER INSTANCE DISABLE INNODB REDO_LOG")
        with raises(SinkAccessError, "server_setting_unsafe") as refused:
            world.participant(plan).prepare(plan, world.fence())
        assert refused.error and "ALTER INSTANCE ENABLE INNODB REDO_LOG" in refused.error.remedy
        checks = examine("orders", plan.participants[0], world.connection(), [])
        assert [c.verdict for c in checks if "redo log" in c.text] == [Verdict.PROBLEM]
        world.sinks = {"orders": MySqlSink(table="orders", conn_id="shop", allow_unsafe_durability=True)}
        allowed = world.plan_of(1, *plan.segments)
        assert "redo log" in world.participant(allowed).prepare(allowed, world.fence())["warnings"][0]
        world.server.sql("ALTER INSTANCE ENABLE INNODB REDO_LOG")


@pytest.mark.sampled(among="servers of their own")
@pytest.mark.parametrize(("flush", "safe"), [(1, True), (3, True), (0, False)])
def test_what_mariadb_writes_through_at_each_commit_is_accepted(
    own_server: Callable[..., Any], tmp_path: Path, flush: int, safe: bool
) -> None:
    with Database.fresh(own_server(MariaDb, innodb_flush_log_at_trx_commit=flush)) as database:
        world = make_world(database, tmp_path)
        plan = world.plan(orders=orders(1, 3))
        checks = examine("orders", plan.participants[0], world.connection(), [])
        assert [c.verdict for c in checks if c.name.endswith("durability")] == [Verdict.OK if safe else Verdict.PROBLEM]
        if safe:
            world.participant(plan).prepare(plan, world.fence())


@pytest.mark.sampled(among="servers of their own")
def test_where_the_server_forbids_load_local_rows_go_by_insert(
    own_server: Callable[..., Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Database.fresh(own_server(MySql, local_infile=0)) as database:
        world = make_world(database, tmp_path)
        plan = world.plan(orders=orders(1, 3))
        participant = world.participant(plan)
        notes = participant.prepare(plan, world.fence())
        assert notes["path"] == "insert" and "LOAD DATA LOCAL" in notes["warnings"][0]
        assert notes["warnings"][0] in caplog.text
        assert participant.commit(plan, world.fence()).detail["path"] == "insert"
        assert world.count() == 3


@pytest.mark.sampled(among="servers of their own")
def test_mariadb_loads_rows_where_it_forbids_prepared_statements(
    own_server: Callable[..., Any], tmp_path: Path
) -> None:
    with Database.fresh(own_server(MariaDb, local_infile=1)) as database:
        world = make_world(database, tmp_path)
        for number, allowed, way in ((1, 16_382, "insert"), (2, 0, "load")):
            world.server.sql(f"SET GLOBAL max_prepared_stmt_count = {allowed}")
            world.predecessor = number - 1
            plan = world.plan(orders=orders(number, 3))
            notes = world.participant(plan).prepare(plan, world.fence())
            assert (notes["path"], notes["warnings"]) == (way, [])
            assert world.participant(plan).commit(plan, world.fence()).detail["path"] == way
        assert world.count() == 6

        world.use_way("insert")
        plan = world.plan(orders=orders(7, 3))
        with raises(SinkAccessError, "limit_reached", setting="max_prepared_stmt_count") as refused:
            world.participant(plan).prepare(plan, world.fence())
        assert refused.error and "max_prepared_stmt_count = 16382" in refused.error.remedy

        world.extra = {}
        world.sql("TRUNCATE orders")
        world.sql("ALTER TABLE orders ADD PRIMARY KEY (id), ADD version BIGINT NOT NULL DEFAULT 0")
        world.use("upsert", key_columns=("id",), version_column="version")
        plan = world.plan(orders=orders(10, 3))
        with raises(SinkAccessError, "limit_reached", setting="max_prepared_stmt_count") as refused:
            world.participant(plan).prepare(plan, world.fence())
        assert refused.error and "local_infile" not in refused.error.remedy, "an upsert sends no LOAD DATA"


@pytest.mark.sampled(among="servers of their own")
def test_a_value_larger_than_a_packet_is_an_access_problem(own_server: Callable[..., Any], tmp_path: Path) -> None:
    with Database.fresh(own_server(MariaDb, max_allowed_packet=1 << 20)) as database:
        world = make_world(database, tmp_path, orders="v LONGBLOB")
        for more in (0, 1, 1023):
            plan = world.plan(orders=pa.table({"v": [b"x" * ((1 << 20) + more)]}))
            with raises(SinkAccessError, "limit_reached", column="v", bytes=(1 << 20) + more) as large:
                world.participant(plan).prepare(plan, world.fence())
            assert large.error
            [fix] = re.findall(r"SET GLOBAL \w+ = \d+", large.error.remedy)
            world.sql(fix)
            world.participant(plan).prepare(plan, world.fence())
            world.sql("SET GLOBAL max_allowed_packet = 1048576")
        world.use_way("insert")
        world.deliver(world.plan(orders=pa.table({"v": [b"y" * 500_000] * 9})))
        assert world.sql("SELECT COUNT(*), MIN(LENGTH(v)) FROM orders") == [(9, 500_000)]

        world.sql("ALTER TABLE orders ADD w LONGBLOB, ADD x LONGBLOB")
        wide = world.plan(orders=pa.table({c: [b"1", b"z" * 500_000, b"2"] for c in "vwx"}))
        participant = world.participant(wide)
        participant.prepare(wide, world.fence())
        with raises(SinkAccessError, "limit_reached", setting="max_allowed_packet") as large:
            participant.commit(wide, world.fence())
        assert large.error and large.error.fields["bytes"] > 1_500_000
        world.extra = {}  # LOAD DATA takes the row between two packets
        proof = world.participant(wide).commit(wide, world.fence())
        assert (proof.detail["path"], proof.counts) == ("insert", {"orders": 3})
        lengths = world.sql("SELECT LENGTH(v), LENGTH(w), LENGTH(x) FROM orders WHERE x IS NOT NULL ORDER BY v")
        assert lengths == [(1, 1, 1), (1, 1, 1), (500_000, 500_000, 500_000)]


@each_way
def test_a_row_that_the_server_refuses_is_named_at_any_position(
    any_mysql_database: Database, tmp_path: Path, way: str
) -> None:
    world = make_world(any_mysql_database, tmp_path, orders="id BIGINT, v VARCHAR(3), n INT, e TINYINT AS (n) STORED")
    world.use_way(way)
    world.limits = replace(world.limits, insert_bytes=500)
    numbers = pa.array([1] * 76 + [300] + [2] * 23, pa.int32())
    plan = world.plan(orders=pa.table({"id": range(100), "v": ["abc"] * 100, "n": numbers}))
    world.participant(plan).prepare(plan, world.fence())
    with pytest.raises(DeclinedError) as declined:
        world.participant(plan).commit(plan, world.fence())
    assert (declined.value.sink, declined.value.column) == ("orders", "e")
    assert declined.value.row.startswith("77 "), declined.value
    assert world.count() == 0


def test_the_remedy_names_privileges_that_a_column_default_needs(mariadb_database: Database, tmp_path: Path) -> None:
    world = make_world(mariadb_database, tmp_path)
    world.sql("CREATE SEQUENCE numbers")
    world.sql("ALTER TABLE orders ADD COLUMN n BIGINT DEFAULT NEXTVAL(numbers)")
    world.deliver(world.plan(orders=orders(1, 3)))
    user = f"s{world.database[-8:]}"
    world.sql(f"CREATE USER '{user}'@'%' IDENTIFIED BY 'x'")
    for table in ("airflow_ft_head", "airflow_ft_ledger", "orders"):
        world.sql(f"GRANT ALL ON `{world.database}`.{table} TO '{user}'@'%'")
    plan = world.plan(orders=orders(10, 3))
    grant = f"GRANT SELECT, INSERT on `{world.database}`.`numbers`"
    with raises(SinkAccessError, "privilege_missing", grant=grant) as refused:
        world.participant(plan, login=user, password="x").prepare(plan, world.fence(1, 2))
    assert refused.error and grant in refused.error.remedy
    world.sql(f"DROP USER '{user}'@'%'")


def test_the_fingerprint_follows_the_tables_shape(any_mysql_database: Database, tmp_path: Path) -> None:
    world = make_world(any_mysql_database, tmp_path)
    plan = world.plan(orders=orders(1, 3))

    def fingerprint() -> str:
        return str(world.participant(plan).prepare(plan, world.fence())["tables"]["orders"]["fingerprint"])

    first = fingerprint()
    assert fingerprint() == first
    world.sql("ALTER TABLE orders MODIFY name VARCHAR(200)")
    assert fingerprint() != first
