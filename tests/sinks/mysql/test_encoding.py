from __future__ import annotations

from datetime import UTC, date, datetime, time
from decimal import Decimal

import pyarrow as pa
import pytest

from airflow_ft.sinks.mysql.encoding import TargetColumn, delete_statements, form_of, load_lines, load_statement, slices


def columns(batch: pa.RecordBatch) -> list[TargetColumn]:
    return [TargetColumn(field.name, field.name, form_of(field.type)) for field in batch.schema]


def lines(array: pa.Array) -> list[str]:
    batch = pa.record_batch({"c": array})
    return bytes(load_lines(batch, columns(batch))).decode().split("\n")[:-1]


def literals(array: pa.Array) -> list[str]:
    batch = pa.record_batch({"c": array})
    statements = [sql.decode() for sql, _ in delete_statements("t", batch, columns(batch), "TRUE", 1 << 20, rows=1)]
    return [sql.removeprefix("DELETE FROM t WHERE ((`c` = ").removesuffix(")) AND TRUE") for sql in statements]


def test_fields_of_load_data() -> None:
    assert lines(pa.array(["a\tb", "c\nd", "\\", "\\N", "", None, "\0", "\r"])) == [
        "a\\tb", "c\\nd", "\\\\", "\\\\N", "", "\\N", "\\0", "\r",
    ]  # fmt: skip
    assert lines(pa.array([b"", b"\0\xff", None])) == ["", "00ff", "\\N"]
    assert lines(pa.array([True, False, None])) == ["1", "0", "\\N"]
    assert lines(pa.array([0.1, 5e-324, 1e22], pa.float64())) == ["0.1", "5e-324", "1e+22"]
    assert lines(pa.array([0.1], pa.float32())) == ["0.10000000149011612"]
    assert lines(pa.array([2**64 - 1], pa.uint64())) == ["18446744073709551615"]
    assert lines(pa.array([Decimal("1.50")], pa.decimal128(5, 2))) == ["1.50"]
    assert lines(pa.array([date(1000, 1, 1)])) == ["1000-01-01"]
    assert lines(pa.array([time(1, 2, 3, 4)])) == ["01:02:03.000004"]
    moment = datetime(2024, 7, 1, 12, tzinfo=UTC)
    for zone in (None, "UTC", "Asia/Kolkata"):
        assert lines(pa.array([moment], pa.timestamp("ms", zone))) == ["2024-07-01 12:00:00.000000"]


@pytest.mark.parametrize(("found", "put"), [("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"), ("\0", "\\0")])
def test_each_special_character_is_escaped_even_without_others(found: str, put: str) -> None:
    column = pa.array(["plain", None, "ä", f"{found}x{found}東京", "", f"y{found}"])
    expected = ["plain", "\\N", "ä", f"{put}x{put}東京", "", f"y{put}"]
    assert lines(column) == expected
    assert lines(column.slice(1)) == expected[1:]
    assert lines(column.slice(0, 3)) == expected[:3]


def test_rows_of_several_fields_and_without_any_value() -> None:
    batch = pa.record_batch({"a": pa.array([None, "1"]), "b": pa.array([None, None], pa.string()), "c": [None, "\t"]})
    assert bytes(load_lines(batch, columns(batch))) == b"\\N\t\\N\t\\N\n1\t\\N\t\\t\n"


def test_literals_of_keys() -> None:
    assert literals(pa.array(["it's", "\\", "%s\t", "\0"])) == ["'it\\'s'", "'\\\\'", "'%s\t'", "'\\0'"]
    assert literals(pa.array([b"", b"\xff"])) == ["x''", "x'ff'"]
    assert literals(pa.array([Decimal("1.50")], pa.decimal128(5, 2))) == ["1.50"]
    assert literals(pa.array([date(1000, 1, 1)])) == ["'1000-01-01'"]
    assert literals(pa.array([1])) == ["1"]


def test_binary_and_bit_columns_are_converted_by_the_server() -> None:
    target = [TargetColumn("b", "b`", form_of(pa.binary())), TargetColumn("f", "f", form_of(pa.int8(), bits=True))]
    statement = load_statement("t", target)
    assert statement.endswith(
        "(@airflow_ft_0, @airflow_ft_1) SET `b``` = UNHEX(@airflow_ft_0), `f` = CAST(@airflow_ft_1 AS UNSIGNED)"
    )


def test_a_slice_is_encoded_like_a_copy_of_it() -> None:
    nested = pa.struct([("a", pa.list_(pa.int8()))])
    for array in (
        pa.array(["a", None, "b\t", "c"]),
        pa.array([b"a", None, b"b", b""]),
        pa.array([1, None, 3, 4]),
        pa.array(["x", "y", None, "x"]).dictionary_encode(),
        pa.array([[1], None, [2, None], []], pa.list_(pa.int8())),
        pa.array([{"a": [1]}, None, {"a": None}, {"a": []}], nested),
        pa.array([[("k", 1)], None, [], [("l", None)]], pa.map_(pa.string(), pa.int8())),
    ):
        assert lines(array.slice(1, 3)) == lines(pa.array(array.slice(1, 3).to_pylist(), array.type)), array.type


def test_slices_cover_a_batch() -> None:
    batch = pa.record_batch({"c": pa.array(["x" * 1000] * 100)})
    pieces = list(slices(batch, 10_000))
    assert pa.Table.from_batches(pieces).column("c").to_pylist() == ["x" * 1000] * 100
    assert 8 <= len(pieces) <= 14
    assert list(slices(batch.slice(0, 0), 10)) == []


def test_deletes_stay_within_the_size_of_a_packet() -> None:
    batch = pa.record_batch({"k": ["x" * 100] * 250})
    found = list(delete_statements("t", batch, columns(batch), "TRUE", 1_000))
    assert sum(rows for _, rows in found) == 250 and len(found) > 30
    assert max(len(sql) for sql, _ in found) <= 1_000
    assert [rows for _, rows in delete_statements("t", batch, columns(batch), "TRUE", 10)] == [1] * 250
