"""What is done to Arrow columns byte by byte: the same as value by value."""

from __future__ import annotations

import random
from datetime import date

import pyarrow as pa
import pytest

from airflow_ft.sinks.arrow import binaries, hexadecimal, python_values, replaced, texts

PAIRS = [("\\", "\\\\"), ("'", "\\'"), ("\n", "\\n"), ("\0", "")]


def expected(text: str | None) -> str | None:
    if text is not None:
        for found, put in PAIRS:
            text = text.replace(found, put)
    return text


@pytest.mark.parametrize("letters", ["a\\'\n\0🎉ü", "\\'", "aü", "\x01 ", "\0"])
def test_characters_are_replaced_wherever_they_are(letters: str) -> None:
    chance = random.Random(3)
    words = [
        None if chance.random() < 0.2 else "".join(chance.choices(letters, k=chance.randrange(9))) for _ in range(500)
    ]
    for given in (words, [text or "" for text in words], [], [None], [""]):
        column = pa.array(given, pa.large_string())
        for part in (column, column.slice(3), column.slice(5, 100), column.slice(9, 0)):
            found = replaced(part, PAIRS)
            found.validate(full=True)
            assert found.to_pylist() == [expected(text) for text in part.to_pylist()]


def test_what_a_null_hides_moves_nothing() -> None:
    data = [pa.py_buffer(b"\5"), pa.py_buffer(bytes([0] * 8 + [1] + [0] * 7 + [3] + [0] * 7 + [4] + [0] * 7))]
    column = pa.Array.from_buffers(pa.large_string(), 3, [*data, pa.py_buffer(b"a\n\nb")])
    assert column.to_pylist() == ["a", None, "b"]
    assert replaced(column, PAIRS).to_pylist() == ["a", None, "b"]


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(2)], ids=str)
def test_bytes_as_digits(kind: pa.DataType) -> None:
    column = pa.array([b"\0\xff", None, b"ab", b"\x10\x01"], kind)
    for part in (column, column.slice(1), column.slice(2), column.slice(1, 1), column.slice(4)):
        assert hexadecimal(part).to_pylist() == [None if value is None else value.hex() for value in part.to_pylist()]


FAR, NEAR = pa.array([2_932_897, 0, None], pa.int32()).view(pa.date32()), date(1970, 1, 1)


@pytest.mark.parametrize(
    ("column", "values"),
    [
        (FAR, [2_932_897, NEAR, None]),
        (pa.ListArray.from_arrays([0, 1, 3], FAR), [[2_932_897], [NEAR, None]]),
        (pa.StructArray.from_arrays([FAR], ["d"]), [{"d": 2_932_897}, {"d": NEAR}, {"d": None}]),
        (pa.MapArray.from_arrays([0, 1], pa.array(["k"]), FAR.slice(0, 1)), [[("k", 2_932_897)]]),
        (pa.array([2**60], pa.int64()).view(pa.timestamp("us", "UTC")), [2**60]),
    ],
    ids=["date", "list", "struct", "map", "timestamp"],
)
def test_far_dates_become_numbers(column: pa.Array, values: list[object]) -> None:
    assert python_values(column) == values


def test_bytes_become_a_column() -> None:
    for given in ([], [b""], [None], [b"a", None, b"", b"\xff\0"]):
        column = binaries(given)
        column.validate(full=True)
        assert column.equals(pa.array(given, pa.large_binary()))


def test_texts_become_a_column() -> None:
    for given in ([], [""], ["a", "", "ü 🎉", "\0"]):
        column = texts(given)
        column.validate(full=True)
        assert column.equals(pa.array(given, pa.large_string()))
