"""JSON text of Arrow columns: exact, for every type, value and slice."""

from __future__ import annotations

import base64
import json
import math
import random
import struct
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from airflow_ft.sinks.base import json_columns
from tests.raising import raises


def texts(column: pa.Array) -> list[str]:
    result: list[str] = json_columns.encode(column).to_pylist()
    return result


def values(column: pa.Array) -> list[Any]:
    return [json.loads(text) for text in texts(column)]


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array([True, False, None]), ["true", "false", "null"]),
        (pa.array([-(2**63), 2**63 - 1, 0], pa.int64()), ["-9223372036854775808", "9223372036854775807", "0"]),
        (pa.array([255], pa.uint8()), ["255"]),
        (pa.array([0.1, 1.5], pa.float32()), ["0.1", "1.5"]),
        (pa.array([date(1, 1, 1), date(9999, 12, 31)]), ['"0001-01-01"', '"9999-12-31"']),
        (
            pa.array([0, -1], pa.timestamp("us", "UTC")),
            ['"1970-01-01T00:00:00.000000Z"', '"1969-12-31T23:59:59.999999Z"'],
        ),
        (pa.array([0], pa.timestamp("us", "Europe/Berlin")), ['"1970-01-01T00:00:00.000000Z"']),
        (pa.array([86_400_000_000], pa.timestamp("us")), ['"1970-01-02T00:00:00.000000"']),
        (pa.array([1], pa.timestamp("ms", "UTC")), ['"1970-01-01T00:00:00.001Z"']),
        (pa.array([b"\x00\xff", b"", None]), ['"AP8="', '""', "null"]),
        (pa.nulls(2), ["null", "null"]),
        (pa.array(["a", "b", "a"]).dictionary_encode(), ['"a"', '"b"', '"a"']),
        (pa.array([["a", None], [], None]), ['["a",null]', "[]", "null"]),
        (pa.array([{"a": 1, "b": None}, None]), ['{"a":1,"b":null}', "null"]),
        (
            pa.array([[("k", 1), ('"', None)], [], None], pa.map_(pa.string(), pa.int64())),
            ['{"k":1,"\\"":null}', "{}", "null"],
        ),
        (pa.array([[(7, "x")]], pa.map_(pa.int32(), pa.string())), ['{"7":"x"}']),
        (pa.array([[(True, "x")]], pa.map_(pa.bool_(), pa.string())), ['{"true":"x"}']),
        (pa.array([[(date(2024, 2, 29), 1)]], pa.map_(pa.date32(), pa.int8())), ['{"2024-02-29":1}']),
        (pa.array([[(0.5, 1)]], pa.map_(pa.float64(), pa.int8())), ['{"0.5":1}']),
        (pa.array([3_723_000_004], pa.time64("us")), ['"01:02:03.000004"']),
        (pa.array([[1, 2], None], pa.list_(pa.int8())), ["[1,2]", "null"]),
        (pa.array([[{"x": [1.5]}]]), ['[{"x":[1.5]}]']),
    ],
)
def test_each_type_has_its_text(column: pa.Array, expected: list[str]) -> None:
    assert texts(column) == expected


@pytest.mark.parametrize(
    "kind", [pa.decimal128(38, 18), pa.decimal128(10, 0), pa.decimal256(60, 30), pa.decimal128(5, 5)]
)
def test_decimals_keep_every_digit_and_have_no_exponent(kind: pa.DataType) -> None:
    unit = Decimal(1).scaleb(-kind.scale)
    biggest = (
        (10**kind.precision - 1) * unit if kind.precision < 28 else Decimal("9" * kind.precision).scaleb(-kind.scale)
    )
    wanted = [Decimal(0), unit, -unit, None, unit * 10, -unit * 12345 if kind.precision > 4 else unit]
    if kind.precision < 28:
        wanted += [biggest, -biggest]
    column = pa.array(wanted, kind)
    for found, value in zip(values(column), wanted, strict=True):
        assert (found is None) if value is None else found == f"{value:.{kind.scale}f}"


def test_text_is_escaped_as_json_demands_and_else_untouched() -> None:
    tricky = [
        "".join(map(chr, range(0x80))),
        '\\\\"\\n',
        "\u2028\u2029\ufeff\x7f",
        "🎉𝄞ключ",
        "",
        None,
        "\\u0041",
        "\x00",
    ]
    assert values(pa.array(tricky)) == tricky
    assert texts(pa.array(["🎉"])) == ['"🎉"']


@pytest.mark.parametrize(
    "column",
    [
        pa.array([[math.nan], [1.0], None, [], [2.0, 3.0]]),
        pa.array([[math.nan], [1.0], None, [], [2.0, 3.0]], pa.large_list(pa.float64())),
        pa.array([[("a", math.nan)], [("b", 1.0)], None, [], [("c", 2.0)]], pa.map_(pa.string(), pa.float64())),
        pa.array([[{"x": [math.nan]}], [{"x": [1.0]}], None, [], [{"x": [2.0]}]]),
    ],
    ids=lambda column: str(column.type),
)
def test_of_a_slice_only_its_own_values_are_judged_and_written(column: pa.Array) -> None:
    """Those of the rows beside it were judged with it: good rows were refused, and each slice cost what all do."""
    with pytest.raises(json_columns.NotJsonError):
        texts(column)
    for first in range(1, len(column)):
        for rows in range(len(column) - first + 1):
            found = texts(column.slice(first, rows))
            expected = [json.loads(json.dumps(each)) for each in column.slice(first, rows).to_pylist()]
            pairs = pa.types.is_map(column.type)
            assert [json.loads(text) for text in found] == [
                dict(each) if pairs and each is not None else each for each in expected
            ]


@pytest.mark.parametrize(
    "column",
    [
        pa.array([0, 2_932_897, 0], pa.date32()),
        pa.array([0, -719_163, 0], pa.date32()),
        pa.array([0, 2**62, 0], pa.timestamp("us", "UTC")),
        pa.array([[{"at": 0}], [{"at": 2**62}], [{"at": 0}]], pa.list_(pa.struct([("at", pa.timestamp("us"))]))),
        pa.array([[(0, 1)], [(2**20 * 3, 1)], []], pa.map_(pa.date32(), pa.int8())),
    ],
    ids=lambda column: str(column.type),
)
def test_a_year_without_four_digits_is_refused(column: pa.Array) -> None:
    """Arrow writes `<value out of range: ...>` in its place, which readers took for the value."""
    assert json_columns.has_times(column.type)
    assert json_columns.beyond_years(column).to_pylist() == [False, True, False]
    with raises(json_columns.NotJsonError, "value_unfit", found="year"):
        texts(column)
    assert not any("range" in text for text in texts(column.take(pa.array([0, 2]))))


def test_slices_and_nulls_do_not_shift_values() -> None:
    rows = [None, ["a", "b"], [], ["c", None], None, ["d"]] * 3
    pairs = [None, [("k", 1)], [], [("l", 2), ("m", None)], None, [("n", 3)]] * 3
    structs = [None, {"a": "x"}, {"a": None}] * 6
    for column in (pa.array(rows), pa.array(pairs, pa.map_(pa.string(), pa.int64())), pa.array(structs),
                   pa.array([None, "x", '"'] * 6), pa.array([None, Decimal("1.5"), Decimal("-2.25")] * 6)):  # fmt: skip
        whole = texts(column)
        for start, length in ((0, 5), (1, 3), (4, 14), (17, 1), (3, 0)):
            assert texts(column.slice(start, length)) == whole[start : start + length]


def test_floats_read_back_as_the_same_bits() -> None:
    chance = random.Random(7)
    doubles = [struct.unpack("<d", chance.randbytes(8))[0] for _ in range(20_000)]
    doubles = [value for value in doubles if math.isfinite(value)] + [
        0.0,
        -0.0,
        5e-324,
        1.7976931348623157e308,
        2**53 + 0.0,
    ]
    for value, found in zip(doubles, values(pa.array(doubles)), strict=True):
        assert struct.pack("<d", value) == struct.pack("<d", float(found))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_json_cannot_hold_is_refused(bad: float) -> None:
    for column in (
        pa.array([1.0, bad]),
        pa.array([[1.0], [bad]]),
        pa.array([{"a": bad}]),
        pa.array([bad], pa.float32()),
    ):
        with raises(json_columns.NotJsonError, "value_unfit", found="nan"):
            json_columns.encode(column)
    broken = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"\xff\xfe")])
    with raises(json_columns.NotJsonError, "value_unfit", found="encoding"):
        json_columns.encode(broken)


def test_a_map_with_a_key_twice_is_refused_at_any_depth() -> None:
    """Files may have one, and readers of JSON would keep one of the two values."""
    names, small = pa.map_(pa.string(), pa.int64()), pa.map_(pa.string(), pa.int8())
    twice = pa.array([[("a", 1), ("b", 1)], None, [("a", 1), ("a", 2)], []], names)
    assert json_columns.repeated_keys(twice).to_pylist() == [False, False, True, False]
    assert json_columns.repeated_keys(twice.slice(0, 2)).to_pylist() == [False, False]
    assert texts(twice.slice(0, 2)) == ['{"a":1,"b":1}', "null"]
    maps: list[Any] = [
        [(1, [("a", 1)]), (2, [("a", 2)])],
        [(1, [("a", 1), ("a", 1)])],
        [(1, None), (1, None)],
    ]
    inside = pa.array(maps, pa.map_(pa.int32(), small))
    assert json_columns.repeated_keys(inside).to_pylist() == [False, True, True]
    structs: list[Any] = [[{"m": [("a", 1)]}, {"m": [("a", 1)]}], [{"m": [("a", 1), ("a", 2)]}]]
    lists = pa.array(structs, pa.list_(pa.struct([("m", small)])))
    assert json_columns.repeated_keys(lists).to_pylist() == [False, True]
    for column in (twice, inside, lists):
        with raises(json_columns.NotJsonError, "value_unfit", found="key"):
            json_columns.encode(column)


def test_a_nan_that_a_null_hides_is_no_value() -> None:
    assert texts(pa.array([1.0, None])) == ["1.0", "null"]
    hidden = pa.StructArray.from_arrays([pa.array([math.nan, 1.0])], ["a"], mask=pa.array([True, False]))
    assert texts(hidden) == ["null", '{"a":1.0}']


def test_objects_have_the_columns_in_their_order() -> None:
    columns = [pa.array([1, None]), pa.array(["x", "y"])]
    assert json_columns.objects(["b", 'a"\n'], columns, 2).to_pylist() == [
        '{"b":1,"a\\"\\n":"x"}',
        '{"b":null,"a\\"\\n":"y"}',
    ]
    assert json_columns.objects([], [], 2).to_pylist() == ["{}", "{}"]
    assert json_columns.objects([], [], 1, end="\n").to_pylist() == ["{}\n"]
    hidden = pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int8()), pa.array(["x", None]))  # no count shows it
    others = [pa.array(["x", None]), pa.nulls(2), pa.array([[1], None]), pa.array([date.max, None])]
    for column in (hidden, *others):
        first, second = json_columns.objects(["a", "b"], [column, column], 2, end="\n").to_pylist()
        assert first == f'{{"a":{texts(column)[0]},"b":{texts(column)[0]}}}\n'
        assert second == '{"a":null,"b":null}\n'


@pytest.mark.parametrize(
    "kind", [pa.duration("us"), pa.map_(pa.list_(pa.int8()), pa.string()), pa.list_(pa.duration("s")),
             pa.struct([("a", pa.duration("ns"))]), pa.month_day_nano_interval(), pa.list_(pa.int8(), 2),
             pa.map_(pa.string(), pa.duration("s"))]
)  # fmt: skip
def test_types_without_a_text_are_known_beforehand(kind: pa.DataType) -> None:
    assert json_columns.unsupported(kind)


def test_everything_that_is_supported_can_be_encoded() -> None:
    plain = [pa.bool_(), pa.int8(), pa.uint64(), pa.float16(), pa.float64(), pa.decimal128(5, 2), pa.decimal256(50, 3),
             pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view(),
             pa.binary(3), pa.date32(), pa.date64(), pa.time32("s"), pa.time64("us"), pa.timestamp("s"),
             pa.timestamp("ns", "UTC"), pa.null()]  # fmt: skip
    nested = (
        [pa.list_(k) for k in plain] + [pa.struct([("a", k)]) for k in plain] + [pa.map_(pa.string(), k) for k in plain]
    )
    for kind in plain + nested:
        assert json_columns.unsupported(kind) is None, kind
        assert texts(pa.nulls(2, kind)) == ["null", "null"], kind


def test_random_nested_values_read_back() -> None:
    chance = random.Random(11)
    kind = pa.list_(
        pa.struct([("s", pa.string()), ("m", pa.map_(pa.string(), pa.list_(pa.int64()))), ("b", pa.binary())])
    )

    def text() -> str | None:
        return (
            None
            if chance.random() < 0.2
            else "".join(chance.choice('a"\\\n\x1f🎉ü') for _ in range(chance.randrange(6)))
        )

    def row() -> Any:
        if chance.random() < 0.2:
            return None
        return [
            {
                "s": text(),
                "m": None if chance.random() < 0.2 else [(f"k{i}", [i, None]) for i in range(chance.randrange(3))],
                "b": None if chance.random() < 0.2 else chance.randbytes(chance.randrange(5)),
            }
            for _ in range(chance.randrange(4))
        ]  # fmt: skip

    rows = [row() for _ in range(500)]

    def plain(value: Any) -> Any:
        if value is None:
            return None
        return [
            {
                "s": item["s"],
                "m": None if item["m"] is None else dict(item["m"]),
                "b": None if item["b"] is None else base64.b64encode(item["b"]).decode(),
            }
            for item in value
        ]  # fmt: skip

    assert values(pa.array(rows, kind)) == [plain(value) for value in rows]


def test_now_is_read_back_by_any_iso_parser() -> None:
    now = datetime.now(UTC)
    assert datetime.fromisoformat(values(pa.array([now], pa.timestamp("us", "UTC")))[0]) == now


def test_nested_values_are_json_that_reads_back() -> None:
    kind = pa.struct(
        [
            ("q\"'ö", pa.list_(pa.struct([("s", pa.string()), ("f", pa.float64())]))),
            ("m", pa.map_(pa.int32(), pa.list_(pa.bool_()))),
            ("t", pa.timestamp("us", "UTC")),
            ("d", pa.date32()),
            ("x", pa.decimal128(30, 3)),
            ("n", pa.null()),
            ("c", pa.dictionary(pa.int8(), pa.string())),
        ]
    )
    values: list[Any] = [
        {"q\"'ö": [{"s": "".join(map(chr, range(200))), "f": 1e-7}, None], "m": [(-1, [True, None]), (2, None)],
         "t": datetime(2024, 1, 1, tzinfo=UTC), "d": date(2024, 1, 1), "x": Decimal("-1.5"), "n": None, "c": "é"},
        None,
        {"q\"'ö": None, "m": None, "t": None, "d": None, "x": None, "n": None, "c": None},
    ]  # fmt: skip
    found = [
        None if text is None else json.loads(text)
        for text in json_columns.encode(pa.array(values, kind), null=None).to_pylist()
    ]
    assert found == [
        {"q\"'ö": [{"s": "".join(map(chr, range(200))), "f": 1e-7}, None], "m": {"-1": [True, None], "2": None},
         "t": "2024-01-01T00:00:00.000000Z", "d": "2024-01-01", "x": "-1.500", "n": None, "c": "é"},
        None,
        {"q\"'ö": None, "m": None, "t": None, "d": None, "x": None, "n": None, "c": None},
    ]  # fmt: skip


def test_which_nested_values_hold_what_is_no_number_of_json() -> None:
    nan, inf = float("nan"), float("inf")
    floats = pa.list_(pa.struct([("f", pa.float32()), ("m", pa.map_(pa.string(), pa.float64()))]))
    values: list[Any] = [
        [{"f": 1.0, "m": [("k", 2.0)]}, None], None, [], [{"f": nan, "m": None}],
        [None, {"f": None, "m": [("k", inf)]}],
        [{"f": None, "m": []}],
    ]  # fmt: skip
    array = pa.array(values, floats)
    expected = [False, False, False, True, True, False]
    assert json_columns.not_finite(array).to_pylist() == expected
    assert json_columns.not_finite(array.slice(2, 3)).to_pylist() == expected[2:5]
    assert json_columns.not_finite(array.slice(0, 0)).to_pylist() == []
    lists = pa.array([[[1.0], [nan]], None, [None, []], [[inf, nan]]], pa.list_(pa.list_(pa.float64())))
    assert json_columns.not_finite(lists).to_pylist() == [True, False, False, True]
    assert json_columns.not_finite(pa.array([{"a": -inf}, None, {"a": 0.5}])).to_pylist() == [True, False, False]
    assert not json_columns.has_floats(pa.struct([("a", pa.map_(pa.string(), pa.decimal128(5, 2)))]))
