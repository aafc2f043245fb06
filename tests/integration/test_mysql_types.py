"""Each type of values and each type of column: stored as Python says on every way, or refused with what helps."""

from __future__ import annotations

from contextlib import closing
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pymysql
import pytest

from airflow_ft.protocol.errors import DeclinedError, UnfitTargetError
from airflow_ft.sinks.base.columns import Objection
from airflow_ft.sinks.mysql.catalog import Table, read_table
from airflow_ft.sinks.mysql.column_fit import judge
from airflow_ft.sinks.mysql.naming import TableName
from airflow_ft.sinks.mysql.server_texts import repertoires
from airflow_ft.sinks.mysql.session import Session
from tests.raising import raises
from tests.sinks.mysql.world import MySqlWorld, each_way, make_world
from tools.servers import Database

D = Decimal
MOMENT = datetime.fromisoformat("2024-02-29 23:59:58")

KINDS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "null": (pa.null(), [None, None]),
    "boolean": (pa.bool_(), [True, False]),
    "byte": (pa.int8(), [1, 0]),
    "long": (pa.int64(), [2024, 1]),
    "unsigned": (pa.uint64(), [2024, 1]),
    "whole decimal": (pa.decimal128(10, 0), [D(2024), D(1)]),
    "decimal": (pa.decimal128(10, 2), [D("20.24"), D("1.00")]),
    "float": (pa.float32(), [0.5, 2024.0]),
    "double": (pa.float64(), [0.1, 2024.0]),
    "string": (pa.string(), ["a", "1"]),
    "words": (pa.dictionary(pa.int32(), pa.string()), ["a", "1"]),
    "binary": (pa.binary(), [b"a", b"1"]),
    "date": (pa.date32(), [MOMENT.date(), date(1999, 1, 1)]),
    "timestamp": (pa.timestamp("us", "UTC"), [MOMENT, MOMENT]),
    "local timestamp": (pa.timestamp("us"), [MOMENT, MOMENT]),
    "time": (pa.time64("us"), [time(1, 2, 3), time(0)]),
    "duration": (pa.duration("us"), [timedelta(1), timedelta(0)]),
    "months": (pa.month_day_nano_interval(), [None, None]),
    "array": (pa.list_(pa.int32()), [[1, 2], []]),
    "fixed array": (pa.list_(pa.int32(), 2), [[1, 2], [3, 4]]),
    "struct": (pa.struct([("a", pa.int32())]), [{"a": 1}, {"a": None}]),
    "map": (pa.map_(pa.string(), pa.int32()), [[("a", 1)], []]),
    "variant": (pa.struct([("value", pa.binary()), ("metadata", pa.binary())]), [None, None]),
    "struct of intervals": (pa.struct([("a", pa.duration("us"))]), [None, None]),
}
WHOLE = {"null", "boolean", "byte", "long", "unsigned", "whole decimal"}
TEXT = {"null", "string", "words"}
NESTED = {*TEXT, "array", "struct", "map"}
MOMENTS = {"null", "date", "timestamp", "local timestamp"}
TAKEN: dict[str, set[str]] = {
    "SMALLINT": WHOLE,
    "MEDIUMINT UNSIGNED": WHOLE,
    "INT": WHOLE,
    "BIGINT": WHOLE,
    "BIT(64)": WHOLE - {"whole decimal"},
    "YEAR": {"null", "long", "unsigned", "whole decimal"},  # a byte has no year, true is no year
    "DECIMAL(10,2)": {*WHOLE, "decimal"},
    "DECIMAL(20,5) UNSIGNED": {*WHOLE, "decimal"},
    "FLOAT": WHOLE - {"whole decimal"} | {"float"},
    "DOUBLE": WHOLE - {"whole decimal"} | {"float", "double"},
    "DATE": {"null", "date"},
    "DATETIME": MOMENTS,
    "DATETIME(6)": MOMENTS,
    "TIMESTAMP(6) NULL": MOMENTS,
    "TIME": {"null", "time"},
    "CHAR(9)": TEXT,
    "VARCHAR(99)": TEXT,
    "TINYTEXT": TEXT,
    "TEXT": NESTED,
    "LONGTEXT": NESTED,
    "JSON": NESTED - {"string", "words"},  # not every text is JSON
    "BINARY(1)": {*TEXT, "binary"},
    "VARBINARY(99)": {*TEXT, "binary"},
    "BLOB": {*TEXT, "binary"},
    "ENUM('1','a')": TEXT,
    "SET('1','a')": TEXT,
    "POINT": {"null"},
}
ONLY_BY_VALUE = {("YEAR", "byte"), ("JSON", "string"), ("JSON", "words")}


def described(world: MySqlWorld) -> Table:
    with closing(Session(world.connection(), world.limits)) as session:
        return read_table(session, TableName(world.database, "orders"))


@pytest.fixture
def table(any_mysql_database: Database, tmp_path: Path) -> Table:
    columns = ", ".join(f"`{name}` {name}" for name in TAKEN)
    return described(make_world(any_mysql_database, tmp_path, orders=columns))


def test_every_type_is_taken_or_refused_with_what_helps(table: Table) -> None:
    for name, taken in TAKEN.items():
        column = table.column(name)
        assert column is not None
        for kind, (arrow, _) in KINDS.items():
            verdict = judge(arrow, column, source="v")
            expected = kind in taken or (name, kind) in ONLY_BY_VALUE
            assert isinstance(verdict, Objection) is not expected, (name, kind, verdict)
            if isinstance(verdict, Objection):
                assert verdict.found and len(verdict.remedy) > 10, (name, kind)
                # The rows wait where a column of another type takes them.
                somewhere = any(kind in kinds for kinds in TAKEN.values())
                assert verdict.by_table is somewhere, (name, kind)


@pytest.mark.parametrize(
    ("kind", "column", "remedy"),
    [
        ("boolean", "YEAR", "CAST(v AS INT)"),
        ("date", "YEAR", "year(v)"),
        ("string", "INT", "CAST(v AS BIGINT)"),
        ("decimal", "INT", "CAST(v AS BIGINT)"),
        ("double", "DECIMAL(10,2)", "CAST(v AS DECIMAL(10,2))"),
        ("decimal", "DOUBLE", "CAST(v AS DOUBLE)"),
        ("double", "FLOAT", "CAST(v AS FLOAT)"),
        ("timestamp", "DATE", "CAST(v AS DATE)"),
        ("timestamp", "TIME", "CAST(v AS TIME) in the job, with spark.sql.timeType.enabled=true"),
        ("long", "DATETIME", "CAST(v AS TIMESTAMP)"),
        ("long", "VARCHAR(99)", "CAST(v AS STRING)"),
        ("boolean", "ENUM('1','a')", "CAST(v AS STRING)"),
        ("long", "BLOB", "CAST(v AS BINARY)"),
        ("struct", "VARCHAR(99)", "to_json(v)"),
        ("variant", "JSON", "to_json(v)"),
        ("duration", "BIGINT", "CAST(v AS BIGINT)"),
        ("fixed array", "JSON", "CAST(v AS ARRAY<...>)"),
    ],
)
def test_the_remedy_is_a_cast(table: Table, kind: str, column: str, remedy: str) -> None:
    found = table.column(column)
    assert found is not None
    verdict = judge(KINDS[kind][0], found, source="v")
    assert isinstance(verdict, Objection) and remedy in verdict.remedy


def stored(value: Any, column: str) -> Any:
    """What Python reads from a column of that type into which the value went."""
    if value is None:
        return None
    if column.startswith(("DATETIME", "TIMESTAMP")) and not isinstance(value, datetime):
        return datetime.combine(value, time())
    if column == "TIME":
        return timedelta(hours=value.hour, minutes=value.minute, seconds=value.second)
    if column.startswith(("BINARY", "VARBINARY", "BLOB")) and isinstance(value, str):
        return value.encode()
    return int(value) if isinstance(value, bool) else value


@each_way
def test_what_is_taken_is_stored_as_python_says(any_mysql_database: Database, tmp_path: Path, way: str) -> None:
    pairs = [(name, kind) for name, kinds in TAKEN.items() for kind in sorted(kinds) if name != "POINT"]
    fitting = [(name, kind) for name, kind in pairs if not (name == "YEAR" and kind != "null")]
    columns = ", ".join(f"c{at} {name}" for at, (name, _) in enumerate(fitting))
    world = make_world(any_mysql_database, tmp_path, orders=f"id INT, {columns}, y1 YEAR, y2 YEAR")
    world.use_way(way)
    given = {f"c{at}": pa.array(KINDS[kind][1], KINDS[kind][0]) for at, (_, kind) in enumerate(fitting)}
    years = {"y1": pa.array([2024, None], pa.int64()), "y2": pa.array([D(1999), None], pa.decimal128(10, 0))}
    world.deliver(world.plan(orders=pa.table({"id": pa.array([1, 2], pa.int32()), **given, **years})))
    wrong = []
    for at, (name, kind) in enumerate(fitting):
        if kind in ("array", "struct", "map"):
            continue  # test_nested_values_become_json
        read = f"c{at} + 0" if name.startswith("BIT") else f"c{at}"
        found = [row[0] for row in world.sql(f"SELECT {read} FROM orders ORDER BY id")]
        if found != (expected := [stored(value, name) for value in KINDS[kind][1]]):
            wrong.append((name, kind, expected, found))
    assert wrong == []
    assert world.sql("SELECT y1, y2 FROM orders ORDER BY id") == [(2024, 1999), (None, None)]


@pytest.mark.parametrize(
    ("column", "kind", "raw"),
    [
        ("DATE", pa.date32(), 2_932_897),  # year 10000
        ("DATE", pa.date32(), -800_000),  # before year 1
        ("DATETIME(6)", pa.timestamp("us"), 253_402_300_800_000_000),
        ("TIMESTAMP NULL", pa.timestamp("us", "UTC"), -80_000_000_000_000_000),
    ],
)
def test_a_date_that_python_does_not_have_is_declined(
    any_mysql_database: Database, tmp_path: Path, column: str, kind: pa.DataType, raw: int
) -> None:
    world = make_world(
        any_mysql_database, tmp_path, orders=f"k {column.split()[0]} NOT NULL, v {column}, PRIMARY KEY (k)"
    )
    width = pa.int32() if pa.types.is_date(kind) else pa.int64()
    values = pa.array([20_000 if pa.types.is_date(kind) else 10**15, raw], width).cast(kind)
    plan = world.plan(orders=pa.table({"k": values.take(pa.array([0, 0])), "v": values}))
    with raises(DeclinedError, "value_unfit", problem="range", column="v") as declined:
        world.participant(plan).prepare(plan, world.fence())
    assert declined.error and declined.error.row.startswith("2 ")
    wrong_key = world.plan(orders=pa.table({"k": values, "v": values}))
    with raises(DeclinedError, "value_unfit", problem="range", column="k"):
        world.participant(wrong_key).prepare(wrong_key, world.fence())


def test_true_does_not_go_into_a_decimal_below_one(any_mysql_database: Database, tmp_path: Path) -> None:
    world = make_world(any_mysql_database, tmp_path, orders="v DECIMAL(2,2)")
    world.deliver(world.plan(orders=pa.table({"v": [False, None]})))
    plan = world.plan(orders=pa.table({"v": [False, True]}))
    with raises(UnfitTargetError, "value_unfit", problem="range", column="v", row="2"):
        world.participant(plan).prepare(plan, world.fence())


CHARSETS = ["latin1", "gbk", "utf16", "utf32", "utf8mb3", "sjis", "cp932", "swe7", "ujis", "koi8r", "big5"]
POINTS = [*range(0x2600), *range(0x3000, 0x3400), *range(0x6660, 0x6680), *range(0xFF00, 0x10000), 0x1F600, 0x10FFFF]


@each_way
@pytest.mark.parametrize("charset", CHARSETS)
def test_a_text_arrives_unless_its_column_lacks_a_character(
    any_mysql_database: Database, tmp_path: Path, way: str, charset: str
) -> None:
    world = make_world(any_mysql_database, tmp_path, orders=f"id INT PRIMARY KEY, v VARCHAR(9) CHARACTER SET {charset}")
    world.use_way(way)
    texts = pa.array([f"a{chr(point)}b" for point in POINTS])
    with closing(Session(world.connection(), world.limits)) as session:
        found = repertoires(session, [charset]).get(charset)
    lacks = found.lacks(texts) if found is not None else pa.array([False] * len(texts))
    rows = pa.table({"id": pa.array(POINTS, pa.int32()), "v": texts})
    held = rows.filter(pc.invert(lacks))
    world.deliver(world.plan(orders=held))
    assert len(held) > 90
    assert [row[0] for row in world.sql("SELECT v FROM orders ORDER BY id")] == held.column("v").to_pylist()
    refused = rows.filter(lacks)
    for at in range(0, len(refused), max(1, len(refused) // 10)):
        with pytest.raises(pymysql.err.MySQLError):  # the server itself does not take it
            world.sql("UPDATE orders SET v = %s WHERE id = 65", refused.column("v")[at].as_py())
    if len(refused):
        plan = world.plan(orders=pa.concat_tables([held, refused]))
        with raises(UnfitTargetError, "value_unfit", problem="charset", column="v") as unfit:
            world.participant(plan).prepare(plan, world.fence(1, 2))
        assert unfit.error and unfit.error.row.split(" ")[0] == str(len(held) + 1)


@pytest.mark.parametrize(("charset", "fits"), [("latin1", 65_535), ("utf16", 32_767), ("utf32", 16_383)])
def test_a_text_is_as_long_as_its_bytes_in_the_column(
    any_mysql_database: Database, tmp_path: Path, charset: str, fits: int
) -> None:
    world = make_world(any_mysql_database, tmp_path, orders=f"v TEXT CHARACTER SET {charset}")
    world.deliver(world.plan(orders=pa.table({"v": ["x" * fits]})))
    plan = world.plan(orders=pa.table({"v": ["x" * (fits + 1)]}))
    with raises(UnfitTargetError, "value_unfit", problem="length", column="v"):
        world.participant(plan).prepare(plan, world.fence(1, 2))
    if charset == "latin1":
        world.deliver(world.plan(orders=pa.table({"v": ["ü" * fits]})), 1, 3)
        assert world.sql("SELECT CHAR_LENGTH(v) FROM orders") == [(fits,), (fits,)]
