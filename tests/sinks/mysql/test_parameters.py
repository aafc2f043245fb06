from __future__ import annotations

import struct
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from airflow_ft.sinks.mysql.encoding import TargetColumn, form_of
from airflow_ft.sinks.mysql.parameters import MAX_PARAMETERS, Parameters, insert_statement, parameter_types, parameters

NULL = None


def columns(schema: pa.Schema) -> list[TargetColumn]:
    return [TargetColumn(field.name, field.name, form_of(field.type)) for field in schema]


def sent(array: pa.Array) -> list[bytes | None]:
    """The value of each row of one column; None: it is sent as a NULL."""
    batch = pa.record_batch({"c": array})
    return [row(*parameters(batch.slice(at, 1), columns(batch.schema), 1)) for at in range(len(array))]


def row(given: Parameters) -> bytes | None:
    assert given.nulls in (b"\0", b"\1") and (not given.values or given.nulls == b"\0")
    return None if given.nulls == b"\1" else bytes(given.values)


def kind(array: pa.Array) -> tuple[int, int]:
    schema = pa.schema([("c", array.type)])
    code, flags = parameter_types(schema, columns(schema))
    return code, flags


def value(text: bytes) -> bytes:
    """A string of less than 251 bytes."""
    return bytes([len(text)]) + text


@pytest.mark.parametrize(
    ("array", "code", "expected"),
    [
        (pa.array([1, None, -1], pa.int8()), (1, 0), [b"\x01", NULL, b"\xff"]),
        (pa.array([2**16 - 1], pa.uint16()), (2, 128), [b"\xff\xff"]),
        (pa.array([-2, None], pa.int32()), (3, 0), [b"\xfe\xff\xff\xff", NULL]),
        (pa.array([2**64 - 1], pa.uint64()), (8, 128), [b"\xff" * 8]),
        (pa.array([True, None, False]), (1, 0), [b"\1", NULL, b"\0"]),
        (pa.nulls(2), (1, 0), [NULL, NULL]),
        (pa.array([0.1, None, -0.0]), (5, 0), [struct.pack("<d", 0.1), NULL, struct.pack("<d", -0.0)]),
        (pa.array([0.5], pa.float32()), (5, 0), [struct.pack("<d", 0.5)]),
        (pa.array(["ü", None, ""]), (254, 0), [value("ü".encode()), NULL, value(b"")]),
        (pa.array([b"\xff\0", None]), (252, 0), [value(b"\xff\0"), NULL]),
        (pa.array([b"ab", None], pa.binary(2)), (252, 0), [value(b"ab"), NULL]),
        (pa.array([Decimal("-1.50"), None], pa.decimal128(5, 2)), (254, 0), [value(b"-1.50"), NULL]),
        (pa.array([[1], None], pa.list_(pa.int8())), (254, 0), [value(b"[1]"), NULL]),
        (pa.array(["x", None, "x"]).dictionary_encode(), (254, 0), [value(b"x"), NULL, value(b"x")]),
        (
            pa.array([date(1000, 1, 1), date(2024, 2, 29), None, date(9999, 12, 31)]),
            (10, 0),
            [b"\4\xe8\3\1\1", b"\4\xe8\7\2\x1d", NULL, b"\4\x0f\x27\x0c\x1f"],
        ),
        (
            pa.array([time(1, 2, 3, 4), None, time(23, 59, 59, 999_999)]),
            (11, 0),
            [b"\x0c\0\0\0\0\0\1\2\3\4\0\0\0", NULL, b"\x0c\0\0\0\0\0\x17\x3b\x3b" + struct.pack("<I", 999_999)],
        ),
        (
            pa.array([datetime(1969, 12, 31, 23, 59, 59, 999_999), None, datetime(1970, 1, 1)], pa.timestamp("us")),
            (12, 0),
            [
                b"\x0b\xb1\7\x0c\x1f\x17\x3b\x3b" + struct.pack("<I", 999_999),
                NULL,
                b"\x0b\xb2\7\1\1\0\0\0\0\0\0\0",
            ],
        ),
    ],
    ids=lambda given: str(given.type) if isinstance(given, pa.Array) else "",
)
def test_parameters(array: pa.Array, code: tuple[int, int], expected: list[bytes]) -> None:
    assert (kind(array), sent(array)) == (code, expected)


def test_moments_are_sent_in_utc_whatever_their_zone_and_unit() -> None:
    moment = datetime(2024, 7, 1, 12, tzinfo=UTC)
    found = {
        sent(pa.array([moment], pa.timestamp(unit, zone)))[0]
        for unit in ("s", "ms", "us", "ns")
        for zone in (None, "UTC", "Asia/Kolkata")
    }
    assert found == {b"\x0b\xe8\7\7\1\x0c\0\0\0\0\0\0"}


@pytest.mark.parametrize(
    ("length", "head"),
    [
        (250, b"\xfa"),
        (251, b"\xfc\xfb\0"),
        (65_535, b"\xfc\xff\xff"),
        (65_536, b"\xfd\0\0\1"),
        ((1 << 24) - 1, b"\xfd\xff\xff\xff"),
        (1 << 24, b"\xfe\0\0\0\1\0\0\0\0"),
    ],
)
def test_a_length_takes_as_many_bytes_as_it_needs(length: int, head: bytes) -> None:
    long = b"x" * length
    assert sent(pa.array([b"ab", long, None, b""])) == [value(b"ab"), head + long, NULL, value(b"")]


def everything() -> pa.Table:
    """Columns of every kind, with and without nulls, next to each other."""
    rows = 160
    some = [None if i % 7 == 3 else i for i in range(rows)]
    columns: dict[str, Any] = {
        "a": pa.array(range(rows), pa.int64()),
        "b": pa.array(range(rows), pa.int32()),
        "c": pa.array(some, pa.int16()),
        "d": [None if i is None else "ü" * (i % 200) for i in some],
        "e": ["x" * (i % 90) for i in range(rows)],
        "f": pa.array(range(rows), pa.timestamp("us")),
        "g": pa.array(some, pa.float64()),
        "h": [None if i is None else b"\0" * i for i in some],
        "i": pa.nulls(rows),
    }
    return pa.table(columns)


def test_the_values_of_a_row_follow_each_other_behind_its_nulls() -> None:
    [batch] = everything().to_batches()
    given = list(parameters(batch, columns(batch.schema), 1 << 20))
    cells = list(zip(*(sent(batch.column(name)) for name in batch.schema.names), strict=True))
    assert b"".join(bytes(each.values) for each in given) == b"".join(cell or b"" for row in cells for cell in row)
    before = 0
    for each in given:
        bits = [cell is None for row in cells[before : before + each.rows.num_rows] for cell in row]
        numbers = [sum(bit << i for i, bit in enumerate(bits[at : at + 8])) for at in range(0, len(bits), 8)]
        assert each.nulls == bytes(numbers)
        before += each.rows.num_rows
    assert before == batch.num_rows


def test_a_slice_is_sent_like_a_copy_of_it() -> None:
    [batch] = everything().to_batches()
    part = batch.slice(17, 100)
    copy = pa.RecordBatch.from_pylist(part.to_pylist(), schema=part.schema)
    found, expected = (list(parameters(each, columns(batch.schema), 1 << 20)) for each in (part, copy))
    assert [(bytes(each.nulls), bytes(each.values)) for each in found] == [
        (bytes(each.nulls), bytes(each.values)) for each in expected
    ]


@pytest.mark.parametrize("size", [1 << 20, 2000, 1])
def test_executions_keep_to_their_size_and_lose_no_row(size: int) -> None:
    [batch] = everything().to_batches()
    given = list(parameters(batch, columns(batch.schema), size))
    assert pa.Table.from_batches([each.rows for each in given]).equals(everything())
    assert all(len(each.values) <= size or each.rows.num_rows == 1 for each in given)


@pytest.mark.slow
@pytest.mark.parametrize("width", [1, 8, 10, 4096])
def test_there_are_few_sizes_of_statements_whatever_the_rows(width: int) -> None:
    found = set()
    for rows in (1, 2, 3, 4, 5, 7, 15, 16, 17, 1023, 2 * MAX_PARAMETERS // width + 1):
        batch = pa.record_batch([pa.array([0] * rows, pa.int8())] * width, names=[f"c{at}" for at in range(width)])
        found |= {each.rows.num_rows for each in parameters(batch, columns(batch.schema), 1 << 30)}
    assert max(found) * width <= MAX_PARAMETERS and len(found) <= 7
    assert max(found) > MAX_PARAMETERS // width // 2


def test_the_statement_has_a_place_for_each_value() -> None:
    sql = insert_statement("`s`.`t`", ("b`", "per % cent"), 2, " AS n")
    assert sql == "INSERT INTO `s`.`t` (`b```, `per % cent`) VALUES (?, ?), (?, ?) AS n"
