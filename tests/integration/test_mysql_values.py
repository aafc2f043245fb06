"""Every value arrives as it was: by LOAD DATA LOCAL, and by INSERT on both servers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.sinks.mysql.world import MySqlWorld, each_way, make_world
from tools.servers import Database, MariaDb

pytestmark = each_way


@dataclass(frozen=True)
class Case:
    """Values of an Arrow type and the column they go into; `read` is how they are asked back ({} is the column)."""

    kind: pa.DataType
    column: str
    values: list[Any]
    read: str = "{}"
    expected: list[Any] | None = None
    only: str = ""


def integers(bits: int, signed: bool) -> list[int | None]:
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    return [low, low + 1, 0, 1, 7, 10, 99, 100, high - 1, high, None] + ([-1, -10] if signed else [])


TRICKY = [
    "", " ", "  both  ", "a\tb", "a\nb", "a\r\nb", "\r", "\\", "\\\\", "\\N", "\\n", "NULL", "null", "N", "'", '"', "`",
    "''", "it's", "%s %d %%", "a\0b", "\0", "\x1a", "\x08", "ü", "日本語", "😀", "👩‍👩‍👧", "x" * 5000, ",", ";", "--",
    "/* */", "\\0", "\\t", "\ufeff", "\u2028", "tail\\", "tab\t", "\t", "\n", "e\u0301", None,
    "0x41", "x'41'", "_utf8mb4'a'",
]  # fmt: skip
EVERY_BYTE = bytes(range(256))
BINARY = [
    b"", b"\0", b"\\", b"\n", b"\t", b"'", b'"', b"\\N", b"NULL", b"\xff", b"\xfe\xff", b"\xc3\x28", EVERY_BYTE,
    EVERY_BYTE[::-1], b"\x1a", b"\r\n", b" ", b"a ", b"\0" * 100, b"\xf0\x9f\x98\x80", None, b"0x00", EVERY_BYTE * 40,
]  # fmt: skip
DOUBLES = [
    0.0, -0.0, 1.0, -1.0, 0.1, 0.2, 0.1 + 0.2, 1 / 3, 1e22, 1e23, 123456789.123456789, 5e-324, 2.2250738585072014e-308,
    2.225073858507201e-308, 1.7976931348623157e308, -1.7976931348623157e308, 1e-300, 9007199254740993.0, 1e15, 1e16,
    4.35, 2.675, 1.0000000000000002, None, float(np.pi), 1e100, 1e-7, 123456.7,
]  # fmt: skip
FLOATS = [
    None if v is None else float(np.float32(v))
    for v in [
        0.0, 1.0, -1.0, 0.1, 0.3, 16777216.0, 16777217.0, 3.4028234663852886e38, -3.4028234663852886e38, 1e-45,
        1.1754943508222875e-38, 3.14159265, 1e10, 1e-10, 123456.789, 0.5, 7.038531e-26, 8.589973e9, 2.5e-40, None,
        33554430.0, 9.999999e-5, 1.17549421e-38,
    ]
]  # fmt: skip


def moments(text: str) -> list[datetime | None]:
    """One a line; an empty line is None."""
    return [datetime.fromisoformat(line.strip()) if line.strip() else None for line in text.split("\n")]


MOMENTS = moments(
    """1000-01-01
    1001-01-01
    1582-10-10
    1677-09-20
    1753-01-01
    1899-12-31 23:59:59.999999
    1969-12-31 23:59:59
    1970-01-01
    1970-01-01 00:00:00.000001
    2000-02-29 12:00:00

    2024-03-31 02:30:00
    2024-10-27 02:30:00
    2024-01-01 00:00:00.100000
    2024-01-01 00:00:00.999999
    2024-12-31 23:59:59.500000
    2038-01-19 03:14:07
    2038-01-19 03:14:08
    2100-02-28 00:00:00.000010
    2262-04-12
    9999-12-31 23:59:59.999999"""
)
STAMPS = moments(
    """1970-01-01 00:00:01
    2000-01-01
    2024-03-31 01:30:00
    2024-03-31 02:30:00

    2024-10-27 00:30:00
    2024-10-27 01:30:00
    2038-01-19 03:14:07.999999"""
)
UTC_STAMPS = [None if s is None else s.replace(tzinfo=UTC) for s in STAMPS]
DAYS = [
    date(1000, 1, 1), date(1582, 10, 4), date(1582, 10, 10), date(1582, 10, 15), date(1900, 2, 28), date(1969, 12, 31),
    date(1970, 1, 1), date(2000, 2, 29), date(2024, 2, 29), date(9999, 12, 31), None,
]  # fmt: skip
TIMES = [time(0), time(0, 0, 0, 1), time(1, 2, 3), time(12), time(23, 59, 59), time(23, 59, 59, 999999), None]
D10 = [
    Decimal(text)
    for text in [
        "0", "1", "-1", "0.0000000001", "-0.0000000001", "0.1", "1234567890123456789012345678.0123456789", "0.0000001",
        "0.000001", "1E+5", "42.5", "9999999999999999999999999999.9999999999", "1e-9", "3.3", "-2.5", "100", "0.01",
        "-9999999999999999999999999999.9999999999", "7", "8.000", "9",
    ]
] + [None]  # fmt: skip
D65 = [Decimal("9" * 35 + "." + "9" * 30), Decimal("-" + "9" * 35 + "." + "9" * 30), Decimal("1e-30"), Decimal(0), None]
NESTED = [
    {"a": 1, "b": ["x", None, 'q"\\/\n\t\x01\x7f', "😀"], "m": [("k", 1.5), ("ü\"", None)], "d": Decimal("1.10"),
     "o": b"\x00'\xff", "t": time(1, 2, 3, 4)},
    {"a": None, "b": [], "m": [], "d": None, "o": b"", "t": None},
    {"a": -(2**63), "b": None, "m": None, "d": Decimal("-0.01"), "o": None, "t": None}, None,
]  # fmt: skip
NESTED_TYPE = pa.struct(
    [
        ("a", pa.int64()),
        ("b", pa.list_(pa.string())),
        ("m", pa.map_(pa.string(), pa.float64())),
        ("d", pa.decimal128(10, 2)),
        ("o", pa.binary()),
        ("t", pa.time64("us")),
    ]
)
NESTED_JSON = [
    {"a": 1, "b": ["x", None, 'q"\\/\n\t\x01\x7f', "😀"], "m": {"k": 1.5, 'ü"': None}, "d": "1.10",
     "o": "ACf/", "t": "01:02:03.000004"},
    {"a": None, "b": [], "m": {}, "d": None, "o": "", "t": None},
    {"a": -(2**63), "b": None, "m": None, "d": "-0.01", "o": None, "t": None}, None,
]  # fmt: skip


def duration(value: time | None) -> timedelta | None:
    if value is None:
        return None
    return timedelta(hours=value.hour, minutes=value.minute, seconds=value.second, microseconds=value.microsecond)


CASES = {
    "tinyint": Case(pa.int8(), "TINYINT", integers(8, True)),
    "tinyint unsigned": Case(pa.uint8(), "TINYINT UNSIGNED", integers(8, False)),
    "smallint": Case(pa.int16(), "SMALLINT", integers(16, True)),
    "smallint unsigned": Case(pa.uint16(), "SMALLINT UNSIGNED", integers(16, False)),
    "mediumint": Case(pa.int32(), "MEDIUMINT", integers(24, True)),
    "mediumint unsigned": Case(pa.uint32(), "MEDIUMINT UNSIGNED", integers(24, False)),
    "int": Case(pa.int32(), "INT", integers(32, True)),
    "int unsigned": Case(pa.uint32(), "INT UNSIGNED", integers(32, False)),
    "bigint": Case(pa.int64(), "BIGINT", integers(64, True)),
    "bigint unsigned": Case(pa.uint64(), "BIGINT UNSIGNED", integers(64, False)),
    "bigint into decimal": Case(pa.uint64(), "DECIMAL(20,0)", integers(64, False)),
    "whole decimal into bigint": Case(pa.decimal128(20, 0), "BIGINT UNSIGNED", [Decimal(2**64 - 1), Decimal(0)]),
    "int into double": Case(pa.int64(), "DOUBLE", [2**53, -(2**53), 0, None]),
    "bool": Case(pa.bool_(), "TINYINT(1)", [True, False, None], expected=[1, 0, None]),
    "bool into bit": Case(pa.bool_(), "BIT(1)", [True, False, None], "{} + 0", [1, 0, None]),
    "bit": Case(pa.uint64(), "BIT(64)", integers(64, False), "{} + 0"),
    "bit of some": Case(pa.int16(), "BIT(10)", [0, 1, 49, 48, 1023, None], "{} + 0"),
    "year": Case(pa.int16(), "YEAR", [1901, 2024, 2155, None]),
    "decimal(38,10)": Case(pa.decimal128(38, 10), "DECIMAL(38,10)", D10),
    "decimal(38,10) into (65,30)": Case(pa.decimal128(38, 10), "DECIMAL(65,30)", D10),
    "decimal(65,30)": Case(pa.decimal256(65, 30), "DECIMAL(65,30)", D65),
    "double": Case(pa.float64(), "DOUBLE", DOUBLES),
    "float": Case(pa.float32(), "FLOAT", FLOATS, "{} * 1e0"),
    "float into double": Case(pa.float32(), "DOUBLE", FLOATS),
    "date": Case(pa.date32(), "DATE", DAYS),
    "date into datetime": Case(
        pa.date32(), "DATETIME", DAYS, expected=[d and datetime.fromisoformat(d.isoformat()) for d in DAYS]
    ),
    "datetime": Case(pa.timestamp("us"), "DATETIME(6)", MOMENTS),
    "datetime with zone": Case(
        pa.timestamp("us", "UTC"), "DATETIME(6)", [m and m.replace(tzinfo=UTC) for m in MOMENTS], expected=MOMENTS
    ),
    "datetime of another zone": Case(pa.timestamp("us", "Europe/Berlin"), "DATETIME(6)", UTC_STAMPS, expected=STAMPS),
    "seconds": Case(pa.timestamp("us"), "DATETIME", [m and m.replace(microsecond=0) for m in MOMENTS]),
    "timestamp": Case(pa.timestamp("us", "UTC"), "TIMESTAMP(6) NULL", UTC_STAMPS, expected=STAMPS),
    "timestamp without zone": Case(pa.timestamp("us"), "TIMESTAMP(6) NULL", STAMPS),
    "time": Case(pa.time64("us"), "TIME(6)", TIMES, expected=[duration(t) for t in TIMES]),
    "varchar": Case(pa.string(), "VARCHAR(5000)", TRICKY),
    "text": Case(pa.string(), "TEXT", TRICKY),
    "longtext": Case(pa.large_string(), "LONGTEXT", [*TRICKY, "long \\ 😀\t" * 300_000]),
    "dictionary": Case(pa.dictionary(pa.int32(), pa.string()), "TEXT", TRICKY),
    "text into blob": Case(pa.string(), "BLOB", TRICKY, expected=[t if t is None else t.encode() for t in TRICKY]),
    "blob": Case(pa.binary(), "BLOB", BINARY),
    "longblob": Case(pa.large_binary(), "LONGBLOB", [*BINARY, EVERY_BYTE * 8000]),
    "varbinary": Case(pa.binary(), "VARBINARY(20000)", BINARY),
    "binary": Case(pa.binary(4), "BINARY(4)", [b"\0\0\0\0", b"\xff\\\n\t", b"abcd", None]),
    "enum": Case(pa.string(), "ENUM('a','b''c')", ["a", "b'c", None]),
    "set": Case(pa.string(), "SET('x','y')", ["", "x", "x,y", None]),
    "only nulls": Case(pa.null(), "INT", [None, None]),
    "uuid": Case(pa.string(), "UUID", ["123e4567-e89b-12d3-a456-426655440000", None], only="mariadb"),
}  # fmt: skip


def deliver(world: MySqlWorld, way: str, table: pa.Table) -> None:
    world.use_way(way)
    plan = world.plan(orders=table)
    world.deliver(plan)
    proof = world.participant(plan).proof(plan)
    assert proof is not None and proof.detail["path"] == way


def same(found: Any, expected: Any) -> bool:
    if isinstance(expected, float) and found is not None:
        return bool(np.float64(found).tobytes() == np.float64(expected).tobytes() or found == expected == 0)
    return bool(found == expected and (found is None) == (expected is None))


def test_values_are_exact(any_mysql_database: Database, tmp_path: Path, way: str) -> None:
    kind = "mariadb" if isinstance(any_mysql_database.server, MariaDb) else "mysql"
    cases = {name: case for name, case in CASES.items() if case.only in ("", kind)}
    length = max(len(case.values) for case in cases.values())
    definitions = ["id INT PRIMARY KEY", *(f"`{name}` {case.column}" for name, case in cases.items())]
    world = make_world(any_mysql_database, tmp_path, orders=", ".join(definitions))
    columns = {"id": pa.array(range(length), pa.int32())}
    for name, case in cases.items():
        columns[name] = pa.array((case.values * length)[:length], case.kind)
    deliver(world, way, pa.table(columns))

    wrong = []
    for name, case in cases.items():
        found = world.sql(f"SELECT {case.read.format(f'`{name}`')} FROM orders ORDER BY id")
        values = case.expected if case.expected is not None else case.values
        for index, ((value,), expected) in enumerate(zip(found, (values * length)[:length], strict=True)):
            if not same(value, expected):
                wrong.append((name, index, expected, value))
    assert wrong == []


@pytest.mark.parametrize("column", ["JSON", "LONGTEXT"])
def test_nested_values_become_json(any_mysql_database: Database, tmp_path: Path, way: str, column: str) -> None:
    world = make_world(any_mysql_database, tmp_path, orders=f"id INT, nested {column}, listed {column}, text {column}")
    listed = [[1, None, 3], [], None, [2**62]]
    texts = ['{"a": "\\u00e9\\t"}', "[]", None, '"x"']
    deliver(
        world,
        way,
        pa.table(
            {
                "id": [0, 1, 2, 3],
                "nested": pa.array(NESTED, NESTED_TYPE),
                "listed": pa.array(listed, pa.list_(pa.int64())),
                "text": texts,
            }
        ),
    )
    rows = world.sql("SELECT nested, listed, text FROM orders ORDER BY id")
    assert [row[0] and json.loads(row[0]) for row in rows] == NESTED_JSON
    assert [row[1] if row[1] is None else json.loads(row[1]) for row in rows] == listed
    assert [row[2] if row[2] is None else json.loads(row[2]) for row in rows] == [
        text if text is None else json.loads(text) for text in texts
    ]


def test_any_name_of_table_and_column_works(any_mysql_database: Database, tmp_path: Path, way: str) -> None:
    names = [
        "id",
        "per cent %s %d 100%",
        "back`tick",
        "quo'te",
        'dou"ble',
        "with blank",
        "Größe",
        "select",
        "a.b",
        "@x",
    ]
    defined = ", ".join(f"`{name.replace('`', '``')}` VARCHAR(50)" for name in names)
    world = make_world(any_mysql_database, tmp_path, orders="id INT")
    world.sql("DROP TABLE orders")
    table = "odd`name.with %s 'all'"
    world.sql(f"CREATE TABLE `odd``name.with %s 'all'` ({defined}) CHARACTER SET utf8mb4")
    world.sinks = {"orders": type(world.sinks["orders"])(table="`odd``name.with %s 'all'`", conn_id="shop")}
    deliver(world, way, pa.table({name: [f"value of {name}", None] for name in names}))
    found = world.sql(f"SELECT * FROM `{table.replace('`', '``')}`")
    assert sorted(found, key=str) == sorted([tuple(f"value of {n}" for n in names), (None,) * len(names)], key=str)


def test_a_single_column_of_empty_strings(any_mysql_database: Database, tmp_path: Path, way: str) -> None:
    world = make_world(any_mysql_database, tmp_path, orders="name VARCHAR(10)")
    deliver(world, way, pa.table({"name": ["", None, "", "x", ""]}))
    assert sorted(world.sql("SELECT name FROM orders"), key=str) == [("",), ("",), ("",), ("x",), (None,)]


def test_zero_in_an_auto_increment_column_stays_zero(any_mysql_database: Database, tmp_path: Path, way: str) -> None:
    world = make_world(any_mysql_database, tmp_path, orders="id INT AUTO_INCREMENT PRIMARY KEY, name VARCHAR(10)")
    deliver(world, way, pa.table({"id": pa.array([0, 5], pa.int32()), "name": ["a", "b"]}))
    assert world.sql("SELECT id FROM orders ORDER BY id") == [(0,), (5,)]


def test_wide_rows_go_in_pieces(any_mysql_database: Database, tmp_path: Path, way: str) -> None:
    world = make_world(any_mysql_database, tmp_path, orders="id INT, body LONGTEXT")
    bodies = [chr(97 + i % 26) * (200_000 + i) for i in range(100)]
    deliver(world, way, pa.table({"id": pa.array(range(100), pa.int32()), "body": bodies}))
    assert [row[0] for row in world.sql("SELECT body FROM orders ORDER BY id")] == bodies


@pytest.mark.parametrize("strategy", ["local", "upsert"])
def test_segments_of_a_delivery_may_differ_in_column_types(
    any_mysql_database: Database, tmp_path: Path, way: str, strategy: str
) -> None:
    """A job that has changed since: the server keeps the types of a prepared statement, and must be told."""
    world = make_world(any_mysql_database, tmp_path, orders="id BIGINT PRIMARY KEY, v DOUBLE, version BIGINT")
    world.use_way(way)
    if strategy == "upsert":
        world.use("upsert", key_columns=("id",), version_column="version")
    kinds = [
        (pa.int8(), [1, 2], pa.float64(), [0.5, 1e300]),
        (pa.int64(), [2**40, -(2**40)], pa.int32(), [7, -7]),
        (pa.int16(), [300, -300], pa.float32(), [2.5, -2.5]),
        (pa.int8(), [3, 4], pa.int8(), [5, None]),
    ]
    segments = [
        world.segment(number, {"orders": pa.table({"id": pa.array(ids, first), "v": pa.array(values, second)})})
        for number, (first, ids, second, values) in enumerate(kinds, 1)
    ]
    plan = world.plan_of(len(segments), *segments)
    world.deliver(plan)
    expected = [row for _, ids, _, values in kinds for row in zip(ids, values, strict=True)]
    assert world.sql("SELECT id, v FROM orders ORDER BY id") == sorted(expected)
