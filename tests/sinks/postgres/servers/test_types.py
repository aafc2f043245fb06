"""Values of all types go into PostgreSQL as they are, to the ends of their ranges; or are refused by name."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from airflow_ft.protocol.errors import DeclinedError, UnfitTargetError
from airflow_ft.sinks.postgres import requirements
from airflow_ft.testing.world import SINK
from tests.raising import raises
from tests.sinks.postgres.conftest import Make
from tests.sinks.postgres.world import table_of

pytestmark = [pytest.mark.server, pytest.mark.sampled]

NOON = dt.datetime(2024, 5, 31, 12, 0, 0, 250)
UTC = dt.UTC
MICRO = pa.timestamp("us")
BERLIN = pa.timestamp("us", "Europe/Berlin")
UUID = "0e37df36-f698-11e6-8dd4-cb9ced3df976"
ODD = [
    "",
    "007",
    'it\'s "quoted", with\ttabs',
    "C:\\n",
    "two\nlines\r\nand\r",
    "\\.",
    "a\n\\.\nb",
    "\\N",
    "NULL",
    " ",
    "\N{SNOWMAN}\N{PILE OF POO}",
]


def ends(bits: int) -> list[int]:
    return [-(2 ** (bits - 1)), 0, 2 ** (bits - 1) - 1]


VALUES: dict[str, tuple[str, pa.DataType, list[Any], list[str]]] = {
    "boolean": ("boolean", pa.bool_(), [True, False], ["true", "false"]),
    "smallint": ("smallint", pa.int16(), ends(16), ["-32768", "0", "32767"]),
    "integer": ("integer", pa.int32(), ends(32), ["-2147483648", "0", "2147483647"]),
    "bigint": ("bigint", pa.int64(), ends(64), ["-9223372036854775808", "0", "9223372036854775807"]),
    "unsigned": ("bigint", pa.uint64(), [2**63 - 1], ["9223372036854775807"]),
    "whole decimal": (
        "bigint",
        pa.decimal128(38, 0),
        [Decimal(2**63 - 1), Decimal(1000)],
        ["9223372036854775807", "1000"],
    ),
    "integer as numeric": (
        "numeric(21,2)",
        pa.int64(),
        ends(64),
        ["-9223372036854775808.00", "0.00", "9223372036854775807.00"],
    ),
    "integer as double": ("float8", pa.int32(), ends(32), ["-2147483648", "0", "2147483647"]),
    "real": (
        "real",
        pa.float32(),
        [0.1, -0.0, 1.1754944e-38, 3.4028235e38, math.nan, math.inf, -math.inf],
        ["0.1", "-0", "1.1754944e-38", "3.4028235e+38", "NaN", "Infinity", "-Infinity"],
    ),
    "double": (
        "double precision",
        pa.float64(),
        [0.1, -0.0, 5e-324, 1.7976931348623157e308, 2.0**53 + 2, math.nan, -math.inf],
        ["0.1", "-0", "5e-324", "1.7976931348623157e+308", "9.007199254740994e+15", "NaN", "-Infinity"],
    ),
    "single as double": (
        "double precision",
        pa.float32(),
        [0.1, 3.4028235e38],
        ["0.10000000149011612", "3.4028234663852886e+38"],
    ),
    "numeric": (
        "numeric",
        pa.decimal128(38, 10),
        [Decimal("0.0000000001"), Decimal("-1234567890123456789012345678.1")],
        ["0.0000000001", "-1234567890123456789012345678.1000000000"],
    ),
    "long numeric": ("numeric", pa.decimal256(76, 0), [Decimal("9" * 76)], ["9" * 76]),
    "numeric with digits": (
        "numeric(10,2)",
        pa.decimal128(38, 10),
        [Decimal("1.10"), Decimal("-99999999.99")],
        ["1.10", "-99999999.99"],
    ),
    "text": ("text", pa.string(), ODD, ODD),
    "large text": ("text", pa.large_string(), ["a" * 100_000], ["a" * 100_000]),
    "varchar": ("varchar(3)", pa.string(), ["", "\N{SNOWMAN}" * 3, "a  "], ["", "\N{SNOWMAN}" * 3, "a  "]),
    "char": ("char(3)", pa.string(), ["a", "abc"], ["a", "abc"]),
    "bytea": (
        "bytea",
        pa.binary(),
        [b"", b"\0\xff\\\n", bytes(range(256))],
        ["\\x", "\\x00ff5c0a", "\\x" + bytes(range(256)).hex()],
    ),
    "date": (
        "date",
        pa.date32(),
        [dt.date(1, 1, 1), dt.date(1969, 12, 31), dt.date(9999, 12, 31)],
        ["0001-01-01", "1969-12-31", "9999-12-31"],
    ),
    "late date": ("date", pa.date32(), [2932897, 5000000], ["10000-01-01", "15659-07-15"]),
    "timestamp": (
        "timestamp",
        MICRO,
        [NOON, dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59, 999999)],
        ["2024-05-31 12:00:00.00025", "0001-01-01 00:00:00", "9999-12-31 23:59:59.999999"],
    ),
    "instant as timestamp": ("timestamp", BERLIN, [NOON.replace(tzinfo=UTC)], ["2024-05-31 12:00:00.00025"]),
    "timestamptz": (
        "timestamptz",
        BERLIN,
        [NOON.replace(tzinfo=UTC), dt.datetime(1, 1, 1, tzinfo=UTC)],
        ["2024-05-31 12:00:00.00025+00", "0001-01-01 00:00:00+00"],
    ),
    "milliseconds": (
        "timestamptz(3)",
        pa.timestamp("ms", "UTC"),
        [dt.datetime(2024, 5, 31, 12, 0, 0, 250_000, tzinfo=UTC)],
        ["2024-05-31 12:00:00.25+00"],
    ),
    "time": ("time", pa.time64("us"), [dt.time(0), dt.time(23, 59, 59, 999999)], ["00:00:00", "23:59:59.999999"]),
    "uuid": ("uuid", pa.string(), [UUID.upper()], [UUID]),
    "json": ("json", pa.string(), ['{"a": "b\\n\\"c\\""}'], ['{"a": "b\\n\\"c\\""}']),
    "jsonb": ("jsonb", pa.string(), ['{"b":1,  "a":[null]}'], ['{"a": [null], "b": 1}']),
    "interval": ("interval", pa.string(), ["1 year 2 days 00:00:03.5"], ["1 year 2 days 00:00:03.5"]),
    "inet": ("inet", pa.string(), ["10.0.0.1"], ["10.0.0.1/32"]),
    "cidr": ("cidr", pa.string(), ["10.0.0.0/8"], ["10.0.0.0/8"]),
    "macaddr": ("macaddr", pa.string(), ["08-00-2B-01-02-03"], ["08:00:2b:01:02:03"]),
    "macaddr8": ("macaddr8", pa.string(), ["08:00:2b:01:02:03:04:05"], ["08:00:2b:01:02:03:04:05"]),
    "bit": ("bit(3)", pa.string(), ["101"], ["101"]),
    "varbit": ("bit varying(5)", pa.string(), ["", "10101"], ["", "10101"]),
    "xml": ("xml", pa.string(), ["<a>b</a>"], ["<a>b</a>"]),
    "tsvector": ("tsvector", pa.string(), ["a fat cat"], ["'a' 'cat' 'fat'"]),
    "tsquery": ("tsquery", pa.string(), ["fat & cat"], ["'fat' & 'cat'"]),
    "citext": ("citext", pa.string(), ["Fine"], ["Fine"]),
    "hstore": ("hstore", pa.string(), ["a=>1"], ['"a"=>"1"']),
    "ltree": ("ltree", pa.string(), ["a.b"], ["a.b"]),
    "enum": ("mood", pa.string(), ["fine", "so, so"], ["fine", "so, so"]),
    "range": ("int4range", pa.string(), ["[1,5)"], ["[1,5)"]),
    "domain": ("positive", pa.int64(), [1, 2**31 - 1], ["1", "2147483647"]),
    "array of numbers": (
        "bigint[]",
        pa.list_(pa.int64()),
        [[1, None, -(2**63)], []],
        ["{1,NULL,-9223372036854775808}", "{}"],
    ),
    "array of texts": (
        "text[]",
        pa.list_(pa.string()),
        [['a"b\\', "", "NULL", None, "x,y", "{}", "two\nlines"]],
        ['{"a\\"b\\\\","","NULL",NULL,"x,y","{}","two\nlines"}'],
    ),
    "array of bytes": ("bytea[]", pa.list_(pa.binary()), [[b"\0\\", b""]], ['{"\\\\x005c","\\\\x"}']),
    "array of uuids": ("uuid[]", pa.list_(pa.string()), [[UUID, None]], [f"{{{UUID},NULL}}"]),
    "array of documents": ("jsonb[]", pa.list_(pa.string()), [['{"a":"b,c"}']], ['{"{\\"a\\": \\"b,c\\"}"}']),
    "array of instants": (
        "timestamptz[]",
        pa.list_(BERLIN),
        [[NOON.replace(tzinfo=UTC)]],
        ['{"2024-05-31 12:00:00.00025+00"}'],
    ),
    "array of floats": ("real[]", pa.list_(pa.float32()), [[0.1, math.nan, -math.inf]], ["{0.1,NaN,-Infinity}"]),
}
EXTENSIONS = "CREATE EXTENSION citext; CREATE EXTENSION hstore; CREATE EXTENSION ltree;"
MADE = "CREATE TYPE mood AS ENUM ('fine', 'so, so'); CREATE DOMAIN positive AS integer CHECK (VALUE > 0);"


@pytest.mark.parametrize("name", list(VALUES))
def test_every_value_arrives_as_it_is(make: Make, name: str) -> None:
    declared, type, values, texts = VALUES[name]
    extensions = EXTENSIONS if declared in EXTENSIONS else ""
    world = make(f"{extensions} {MADE} CREATE TABLE orders (id int, value {declared})")
    table = table_of(world)
    table.sql(f"ALTER DATABASE {table.database.name} SET timezone = 'Asia/Tokyo'")  # the sink's sessions are in UTC
    column = pa.array([*values, None], pa.int32() if name == "late date" else type).cast(type)
    world.deliver(world.plan(pa.table({"id": pa.array(range(len(column)), pa.int32()), "value": column})))
    text = "rtrim(value::text)" if name == "char" else "value::text"
    found = table.sql(f"SET timezone = 'UTC'; SELECT {text} FROM orders ORDER BY id")
    assert [row[0] for row in found] == [*texts, None]


def test_null_and_empty_text_stay_apart_in_the_only_column(make: Make) -> None:
    world = make("CREATE TABLE orders (text text)")
    world.deliver(world.plan(pa.table({"text": [None, "", "\\.", None]})))
    assert table_of(world).sql("SELECT text FROM orders ORDER BY ctid") == [(None,), ("",), ("\\.",), (None,)]


LISTS = pa.list_(pa.int64())


@pytest.mark.parametrize(
    ("declared", "type"),
    [
        ("bigint", pa.float64()),
        ("bigint", pa.string()),
        ("bigint", pa.bool_()),
        ("bigint", pa.decimal128(10, 2)),
        ("boolean", pa.int32()),
        ("numeric", pa.float64()),
        ("numeric(5,-2)", pa.int64()),
        ("numeric", pa.string()),
        ("real", pa.float64()),
        ("real", pa.int32()),
        ("float8", pa.int64()),
        ("text", pa.int64()),
        ("text", pa.binary()),
        ("text", pa.date32()),
        ("bytea", pa.string()),
        ("date", MICRO),
        ("timestamp", pa.date32()),
        ("timestamptz", MICRO),
        ("time", MICRO),
        ("name", pa.string()),
        ('"char"', pa.string()),
        ("money", pa.string()),
        ("regclass", pa.string()),
        ("interval day", pa.string()),
        ("bigint", LISTS),
        ("text[]", LISTS),
        ("bit(3)", pa.int64()),
        ("int4range[]", pa.list_(pa.string())),
        ("bigint[]", pa.list_(LISTS)),
        ("text[]", pa.string()),
        ("jsonb", pa.struct([("a", pa.int64())])),
        ("jsonb", LISTS),
    ],
)  # fmt: skip
def test_a_type_that_would_change_values_is_refused_beforehand(make: Make, declared: str, type: pa.DataType) -> None:
    world = make(f"CREATE TABLE orders (value {declared})")
    plan = world.plan(pa.table({"value": pa.array([], type)}))
    [asked] = requirements.schema_problems(
        plan.participants[0], table_of(world).connection, {SINK: pa.schema([("value", type)])}
    )
    assert isinstance(asked, UnfitTargetError) and asked.column == "value" and " job" in asked.remedy
    with raises(UnfitTargetError, "column_unfit", sink=SINK, column="value", table="public.orders"):
        world.prepare(plan)


@pytest.mark.parametrize(
    ("declared", "type", "good", "bad", "sqlstate"),
    [
        ("smallint", pa.int64(), 32767, 32768, "22003"),
        ("bigint", pa.uint64(), 1, 2**63, "22003"),
        ("numeric(4,2)", pa.decimal128(10, 2), Decimal("99.99"), Decimal("100.00"), "22003"),
        ("numeric(10,2)", pa.decimal128(38, 4), Decimal("1.2300"), Decimal("1.2345"), None),
        ("varchar(3)", pa.string(), "abc", "abcd", "22001"),
        ("varchar(3)", pa.string(), "abc", "abc ", None),
        ("char(3)", pa.string(), "a", "a ", None),
        ("text", pa.string(), "a", "a\0b", "22021"),
        ("timestamp(3)", MICRO, dt.datetime(2024, 5, 31), NOON, None),
        ("timestamptz(0)", BERLIN, dt.datetime(2024, 5, 31, tzinfo=UTC), NOON.replace(tzinfo=UTC), None),
        ("time(0)", pa.time64("us"), dt.time(1), dt.time(1, 0, 0, 1), None),
        ("date", pa.date32(), dt.date(1, 1, 1), -719163, None),
        ("timestamp", MICRO, NOON, -62135596800000001, None),
        ("uuid", pa.string(), UUID, "no uuid", "22P02"),
        ("jsonb", pa.string(), "{}", "{", "22P02"),
        ("jsonb", pa.string(), "{}", '"\\u0000"', "22P05"),
        ("mood", pa.string(), "fine", "FINE", "22P02"),
        ("positive", pa.int64(), 1, 0, "23514"),
        ("text NOT NULL", pa.string(), "", None, "23502"),
        ("numeric(10,2)[]", pa.list_(pa.decimal128(38, 4)), [Decimal("1.2300")], [Decimal("1.2345")], None),
        ("varchar(2)[]", pa.list_(pa.string()), ["ab"], ["ab", "ab "], None),
    ],
)  # fmt: skip
@pytest.mark.parametrize("decides", [True, False])
def test_a_value_that_does_not_fit_is_reported_with_its_row(
    make: Make, declared: str, type: pa.DataType, good: Any, bad: Any, sqlstate: str | None, decides: bool
) -> None:
    """Behind texts of several lines, of which the server counts each."""
    world = make(f"{MADE} CREATE TABLE orders (id int, text text, value {declared})")
    world.commit_point = decides
    whole = pa.array([good, good, good], type)
    if isinstance(bad, int) and not pa.types.is_integer(type):
        offending = pa.array([bad], pa.int32() if pa.types.is_date(type) else pa.int64()).cast(type)
    else:
        offending = pa.array([bad], type)
    values = pa.concat_arrays([whole.slice(0, 2), offending, whole.slice(0, 1)])
    rows = pa.table({"id": [1, 2, 3, 4], "text": ["two\nlines", "and\n\nthree", "x\ny", "z"], "value": values})
    plan = world.plan(rows)
    code = {"23502": "null_refused", "23514": "row_refused"}.get(sqlstate or "", "value_unfit")
    with raises(DeclinedError, code, sink=SINK, row_number=3, sqlstate=sqlstate) as caught:
        vote = world.prepare(plan)
        assert decides, "nobody could refuse them later"
        world.commit(plan, vote)
    assert caught.error is not None and "row 3 of " in caught.error.headline and world.target.ids() == []
    proof = world.commit(plan, world.vote_without_prepare(plan), set_aside=True)
    assert proof.counts[SINK] == 3 and world.target.ids() == [1, 2, 4]
