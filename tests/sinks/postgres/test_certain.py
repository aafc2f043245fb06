"""A trial that sends nothing: only where the server would take each row for certain."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest

from airflow_ft.sinks.postgres.catalog import Column
from airflow_ft.sinks.postgres.certain import fills, takes
from airflow_ft.sinks.postgres.encoding import changed


def column(type: str, modifier: int = -1, *, must: bool = False, sort: str = "b") -> Column:
    return Column("v", type, sort, "", modifier, type, must, False, False, True, type)


YEAR_10000 = 253_402_300_800_000_000
VALUES: list[tuple[pa.Array, Column, bool]] = [
    (pa.array([1, None]), column("int8"), True),
    (pa.array([1, None]), column("int8", must=True), False),
    (pa.array([2**15 - 1]), column("int2"), True),
    (pa.array([2**15]), column("int2"), False),
    (pa.array([2**63], pa.uint64()), column("int8"), False),
    (pa.array([2**63], pa.uint64()), column("numeric"), True),
    (pa.array([1]), column("numeric", (3 << 16 | 1) + 4), False),
    (pa.array([Decimal("99.9")], pa.decimal128(3, 1)), column("numeric", (3 << 16 | 1) + 4), True),
    (pa.array([Decimal("100.0")], pa.decimal128(4, 1)), column("numeric", (3 << 16 | 1) + 4), False),
    (pa.array([Decimal("1.25")], pa.decimal128(4, 2)), column("numeric", (9 << 16 | 1) + 4), False),
    (pa.array([0.1]), column("float8"), True),
    (pa.array(["a", None, ""]), column("text"), True),
    (pa.array(["a\0"]), column("text"), False),
    (pa.array([b"\xff"]).view(pa.string()), column("text"), False),
    (pa.array(["äbc"]), column("varchar", 7), True),
    (pa.array(["abcd"]), column("varchar", 7), False),
    (pa.array(["abc "]), column("varchar", 7), False),
    (pa.array(["a"]), column("bpchar", 7), False),
    (pa.array(["a"]), column("mood", sort="e"), False),
    (pa.array(["{}"]), column("json"), False),
    (pa.array([b"a"]), column("bytea"), True),
    (pa.array([YEAR_10000 - 1], pa.timestamp("us", "UTC")), column("timestamptz"), True),
    (pa.array([YEAR_10000 + 86_400_000_000], pa.timestamp("us", "UTC")), column("timestamptz"), False),
    (pa.array([1500], pa.timestamp("ms")), column("timestamp", 0), False),
    (pa.array([2**31 - 1], pa.int32()).cast(pa.date32()), column("date"), False),
    (pa.array([None], pa.string()), column("text"), True),
]


def test_what_the_server_would_change_in_a_text_is_found() -> None:
    texts = ['{"a": 1, "b": 2}', '{"a": [{"b": 1, "\\u0062": 2}]}', "{", '{"a":1,"a"\t:1}', None]
    unfit = [b'{"a":1,"a":"\xff"}']  # which the server refuses
    rows = pa.RecordBatch.from_arrays([pa.array(texts)], ["v"])
    assert sorted(changed(rows, [column("jsonb")])) == [1, 3] and changed(rows, [column("json")]) == {}
    rows = pa.RecordBatch.from_arrays([pa.array(unfit).view(pa.string())], ["v"])
    assert changed(rows, [column("jsonb")]) == {}
    spans = ["1.1234567 seconds", "1.1234560 seconds", "PT0.0000001S", "1 day"]
    rows = pa.RecordBatch.from_arrays([pa.array(spans)], ["v"])
    assert sorted(changed(rows, [column("interval")])) == [0, 2]


@pytest.mark.parametrize(
    ("precision", "digits", "into"),
    [(2, 2, (10, 0)), (4, 4, (5, 0)), (38, 38, (5, -1)), (1, 0, (5, -1)), (1, 0, (1, -99))],
)
def test_decimals_of_few_digits_are_compared(precision: int, digits: int, into: tuple[int, int]) -> None:
    """PyArrow itself refuses to round them."""
    values = pa.array([Decimal(0), Decimal(1).scaleb(-digits), None], pa.decimal128(precision, digits))
    rows = pa.RecordBatch.from_arrays([values], ["v"])
    assert list(changed(rows, [column("numeric", (into[0] << 16 | into[1] & 0x7FF) + 4)])) == [1]


@pytest.mark.parametrize("case", range(len(VALUES)))
def test_what_is_taken_for_certain(case: int) -> None:
    values, into, expected = VALUES[case]
    rows = pa.RecordBatch.from_arrays([values], ["v"])
    assert (takes(rows, [into]) and fills(rows, [into])) is expected
