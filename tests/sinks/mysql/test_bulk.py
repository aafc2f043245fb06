from __future__ import annotations

import struct
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from airflow_ft.sinks.mysql.bulk import bulk_rows, bulk_statement, bulk_types
from airflow_ft.sinks.mysql.encoding import TargetColumn, form_of
from airflow_ft.sinks.mysql.wire import _offers_bulk

NULL = b"\1"


def columns(schema: pa.Schema) -> list[TargetColumn]:
    return [TargetColumn(field.name, field.name, form_of(field.type)) for field in schema]


def sent(array: pa.Array) -> list[bytes]:
    """The parameters of each row of one column."""
    batch = pa.record_batch({"c": array})
    return [bytes(data) for data, _ in bulk_rows(batch, columns(batch.schema), 1)]


def kind(array: pa.Array) -> tuple[int, int]:
    schema = pa.schema([("c", array.type)])
    code, flags = bulk_types(schema, columns(schema))
    return code, flags


def value(text: bytes) -> bytes:
    """A string of less than 251 bytes."""
    return bytes([0, len(text)]) + text


@pytest.mark.parametrize(
    ("array", "code", "expected"),
    [
        (pa.array([1, None, -1], pa.int8()), (1, 0), [b"\0\x01", NULL, b"\0\xff"]),
        (pa.array([2**16 - 1], pa.uint16()), (2, 128), [b"\0\xff\xff"]),
        (pa.array([-2, None], pa.int32()), (3, 0), [b"\0\xfe\xff\xff\xff", NULL]),
        (pa.array([2**64 - 1], pa.uint64()), (8, 128), [b"\0" + b"\xff" * 8]),
        (pa.array([True, None, False]), (1, 0), [b"\0\1", NULL, b"\0\0"]),
        (pa.nulls(2), (1, 0), [NULL, NULL]),
        (pa.array([0.1, None, -0.0]), (5, 0), [b"\0" + struct.pack("<d", 0.1), NULL, b"\0" + struct.pack("<d", -0.0)]),
        (pa.array([0.5], pa.float32()), (5, 0), [b"\0" + struct.pack("<d", 0.5)]),
        (pa.array(["ü", None, ""]), (254, 0), [value("ü".encode()), NULL, value(b"")]),
        (pa.array([b"\xff\0", None]), (252, 0), [value(b"\xff\0"), NULL]),
        (pa.array([b"ab", None], pa.binary(2)), (252, 0), [value(b"ab"), NULL]),
        (pa.array([Decimal("-1.50"), None], pa.decimal128(5, 2)), (254, 0), [value(b"-1.50"), NULL]),
        (pa.array([[1], None], pa.list_(pa.int8())), (254, 0), [value(b"[1]"), NULL]),
        (pa.array(["x", None, "x"]).dictionary_encode(), (254, 0), [value(b"x"), NULL, value(b"x")]),
        (
            pa.array([date(1000, 1, 1), date(2024, 2, 29), None, date(9999, 12, 31)]),
            (10, 0),
            [b"\0\4\xe8\3\1\1", b"\0\4\xe8\7\2\x1d", NULL, b"\0\4\x0f\x27\x0c\x1f"],
        ),
        (
            pa.array([time(1, 2, 3, 4), None, time(23, 59, 59, 999_999)]),
            (11, 0),
            [b"\0\x0c\0\0\0\0\0\1\2\3\4\0\0\0", NULL, b"\0\x0c\0\0\0\0\0\x17\x3b\x3b" + struct.pack("<I", 999_999)],
        ),
        (
            pa.array([datetime(1969, 12, 31, 23, 59, 59, 999_999), None, datetime(1970, 1, 1)], pa.timestamp("us")),
            (12, 0),
            [
                b"\0\x0b\xb1\7\x0c\x1f\x17\x3b\x3b" + struct.pack("<I", 999_999),
                NULL,
                b"\0\x0b\xb2\7\1\1\0\0\0\0\0\0\0",
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
        bytes(sent(pa.array([moment], pa.timestamp(unit, zone)))[0])
        for unit in ("s", "ms", "us", "ns")
        for zone in (None, "UTC", "Asia/Kolkata")
    }
    assert found == {b"\0\x0b\xe8\7\7\1\x0c\0\0\0\0\0\0"}


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
    assert sent(pa.array([b"ab", long, None, b""])) == [value(b"ab"), b"\0" + head + long, NULL, value(b"")]


def everything() -> pa.Table:
    """Columns of every kind, with and without nulls, next to each other."""
    rows = 300
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


def test_the_parameters_of_a_row_follow_each_other() -> None:
    [batch] = everything().to_batches()
    [(data, rows)] = bulk_rows(batch, columns(batch.schema), 1 << 20)
    assert rows.equals(batch)
    cells = [sent(batch.column(name)) for name in batch.schema.names]
    assert bytes(data) == b"".join(b"".join(row) for row in zip(*cells, strict=True))


def test_a_slice_is_sent_like_a_copy_of_it() -> None:
    [batch] = everything().to_batches()
    part = batch.slice(17, 100)
    copy = pa.RecordBatch.from_pylist(part.to_pylist(), schema=part.schema)
    [(data, _)], [(other, _)] = (list(bulk_rows(each, columns(batch.schema), 1 << 20)) for each in (part, copy))
    assert data == other


def test_packets_keep_to_their_size_and_lose_no_row() -> None:
    [batch] = everything().to_batches()
    [(whole, _)] = bulk_rows(batch, columns(batch.schema), 1 << 20)
    packets = list(bulk_rows(batch, columns(batch.schema), 2000))
    assert b"".join(data for data, _ in packets) == whole
    assert pa.Table.from_batches([rows for _, rows in packets]).equals(everything())
    assert len(packets) > 10 and all(len(data) <= 2000 or rows.num_rows == 1 for data, rows in packets)


def test_the_statement_has_a_place_for_each_column() -> None:
    target = [TargetColumn("a", "b`", form_of(pa.int8())), TargetColumn("c", "per % cent", form_of(pa.int8()))]
    assert bulk_statement("`s`.`t`", target) == "INSERT INTO `s`.`t` (`b```, `per % cent`) VALUES (?, ?)"


def greeting(version: bytes, low: int, extended: int) -> bytes:
    head = b"\x0a" + version + b"\0" + struct.pack("<I", 7) + b"saltsalt" + b"\0"
    return head + struct.pack("<HBHHB6sI", low, 33, 2, 0x15, 21, b"", extended) + b"restofsalt\0\0plugin\0"


@pytest.mark.parametrize(
    ("given", "offered"),
    [
        (greeting(b"5.5.5-10.11.18-MariaDB", 0xF7FE, 0x1D), True),
        (greeting(b"12.0.2-MariaDB", 0xF7FE, 0x04), True),
        (greeting(b"10.1.48-MariaDB", 0xF7FF, 0), False),
        (greeting(b"10.11.18-MariaDB-behind-a-proxy", 0xF7FE, 0x03), False),
        (greeting(b"9.7.4", 0xFFFF, 0x04), False),  # CLIENT_MYSQL: what stands there means nothing
        (b"\x0a9.7.4", False),
        (b"\x0a9.7.4\0short", False),
    ],
)
def test_bulk_execution_is_offered_by_mariadb_only(given: bytes, offered: bool) -> None:
    assert _offers_bulk(given) is offered
