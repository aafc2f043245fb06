"""Rows and keys by themselves; `tests/spark/session/test_state.py` compares them with those that Spark has written."""

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pendulum
import pytest

from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.state.hashing import hash_of, partition_of
from airflow_ft.state.rows import RowReader, StateColumn, columns_of, kind_text, write_row
from airflow_ft.state.texts import example, key_of
from tests.raising import raises
from tests.state.scene import schema

AT = datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)
WINDOW = schema((StateColumn("start", "timestamp"), StateColumn("end", "timestamp")))
VALUES: list[tuple[Any, Any, str]] = [
    ("boolean", True, "true"),
    ("byte", -128, "-128"),
    ("short", -2, "-2"),
    ("integer", 2**31 - 1, "2147483647"),
    ("long", -(2**63), str(-(2**63))),
    ("float", 0.5, "0.5"),
    ("double", -1e300, "-1e300"),
    ("string", "äöü €", "äöü €"),
    ("string", "null", '"null"'),
    ("varchar(3)", "abc", "abc"),
    ("binary", b"\0\1\xff", "0001ff"),
    ("date", date(1969, 12, 31), "1969-12-31"),
    ("timestamp", AT, "2026-01-02T03:04:05.678901"),
    ("timestamp", AT, "2026-01-02T04:04:05.678901+01:00"),
    ("timestamp_ntz", AT.replace(tzinfo=None), "2026-01-02T03:04:05.678901"),
    ("decimal(9,2)", Decimal("-12.50"), "-12.5"),
    ("decimal(38,10)", Decimal("1234567890123456789012345678.0123456789"), "1234567890123456789012345678.0123456789"),
    ("decimal(38,0)", Decimal(-(2**64)), str(-(2**64))),
    (WINDOW, {"start": AT, "end": AT}, '{"start": "2026-01-02T03:04:05.678901Z", "end": "2026-01-02T03:04:05.678901"}'),
]


@pytest.mark.parametrize(("kind", "value", "text"), VALUES, ids=[kind_text(each[0]) for each in VALUES])
def test_a_value_comes_back_and_can_be_typed(kind: Any, value: Any, text: str) -> None:
    columns = (
        StateColumn("before", "string"),
        StateColumn("it", kind),
        StateColumn("none", kind),
        StateColumn("after", "long"),
    )
    row = write_row(columns, ["x" * 9, value, None, 7])
    assert len(row) % 8 == 0
    assert RowReader(columns).read(row) == {"before": "x" * 9, "it": value, "none": None, "after": 7}
    assert RowReader(columns).read(b"\0" + row, 1)["it"] == value
    assert key_of(columns[1:3], [text, "null"]) == (value, None)


def test_a_time_of_pendulum_is_written_as_any_other() -> None:
    columns = (StateColumn("at", "timestamp"),)
    assert write_row(columns, [pendulum.instance(AT)]) == write_row(columns, [AT])


def test_arrays_and_maps_are_read() -> None:
    """As Spark has written them."""
    longs = {"type": "array", "elementType": "long", "containsNull": True}
    by_name = {"type": "map", "keyType": "string", "valueType": "integer", "valueContainsNull": True}
    columns = (StateColumn("a", longs), StateColumn("m", by_name))
    array = (3).to_bytes(8, "little") + (0b010).to_bytes(8, "little")
    array += b"".join(n.to_bytes(8, "little") for n in (5, 0, 7))
    keys = (1).to_bytes(8, "little") + bytes(8) + (24 << 32 | 1).to_bytes(8, "little") + b"k".ljust(8, b"\0")
    values = (1).to_bytes(8, "little") + bytes(8) + (9).to_bytes(4, "little") + bytes(4)
    both = len(keys).to_bytes(8, "little") + keys + values
    head = bytes(8) + (24 << 32 | len(array)).to_bytes(8, "little")
    head += (24 + len(array) << 32 | len(both)).to_bytes(8, "little")
    assert RowReader(columns).read(head + array + both) == {"a": [5, None, 7], "m": {"k": 9}}


def test_of_many_columns_the_bits_take_two_words() -> None:
    columns = tuple(StateColumn(f"c{i}", "long") for i in range(70))
    values = [None if i in (0, 63, 64, 69) else i for i in range(70)]
    row = write_row(columns, values)
    assert len(row) == 16 + 70 * 8
    assert list(RowReader(columns).read(row).values()) == values


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("byte", 128),
        ("integer", 1.5),
        ("long", "1"),
        ("long", True),
        ("string", b"x"),
        ("date", AT),
        ("timestamp", AT.replace(tzinfo=None)),
        ("decimal(4,2)", Decimal("1.234")),
        ("decimal(4,2)", Decimal(100)),
        ("decimal(4,2)", Decimal("nan")),
        ("boolean", 1),
    ],
)
def test_what_is_no_value_of_the_keys_type_is_refused(kind: str, value: Any) -> None:
    with raises(ConfigurationError, "key_invalid", column="k"):
        write_row((StateColumn("k", kind),), [value])


@pytest.mark.parametrize(
    ("kind", "text"),
    [("long", "x"), ("boolean", "1"), ("date", "yesterday"), ("decimal(4,2)", "x"), (WINDOW, "{}"), (WINDOW, "3")],
)
def test_what_is_typed_and_is_no_value_is_refused(kind: Any, text: str) -> None:
    with raises(ConfigurationError, "key_invalid", column="k"):
        key_of((StateColumn("k", kind),), [text])
    with raises(ConfigurationError, "key_invalid", columns=["k"], count=0):
        key_of((StateColumn("k", kind),), [])


def test_types_that_cannot_be_read_are_named() -> None:
    for kind in ("variant", "interval", "interval day to second"):
        with raises(ConfigurationError, "state_unreadable", column="v", type=kind):
            RowReader((StateColumn("v", kind),))
    with raises(ConfigurationError, "key_invalid", column="v", type="array<int>"):
        write_row((StateColumn("v", {"type": "array", "elementType": "integer", "containsNull": False}),), [[1]])


def test_columns_of_one_name_get_numbers() -> None:
    same = schema((StateColumn("sum", "long"), StateColumn("sum", "double"), StateColumn("sum_2", "long")))
    assert [each.name for each in columns_of(same)] == ["sum", "sum_2", "sum_2_2"]


@pytest.mark.parametrize("kind", ["float", "double"])
def test_minus_zero_lies_in_the_partition_of_zero(kind: str) -> None:
    column = (StateColumn("k", kind),)
    one, other = (write_row(column, [zero]) for zero in (0.0, -0.0))
    assert one != other and hash_of(column, one, 0, 42) == hash_of(column, other, 0, 42)


def test_the_partition_is_never_negative() -> None:
    column = (StateColumn("k", "string"),)
    found = {partition_of(column, write_row(column, [f"key-{n}"]), 4) for n in range(100)}
    assert found == {0, 1, 2, 3}


@pytest.mark.parametrize("kind", {kind_text(each[0]): each[0] for each in VALUES}.values(), ids=kind_text)
def test_an_example_of_a_key_is_one(kind: Any) -> None:
    column = StateColumn("k", kind)
    [value] = key_of([column], [example(kind)])
    assert value is not None and write_row([column], [value])


def test_what_cannot_be_looked_up_has_no_example() -> None:
    array = {"type": "array", "elementType": "long", "containsNull": True}
    assert example(array) == example(schema((StateColumn("a", array), StateColumn("b", "long")))) == ""
