"""What is done to Arrow columns byte by byte: the same as value by value."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from airflow_ft.sinks.arrow import hexadecimal, replaced

PAIRS = [("\\", "\\\\"), ("'", "\\'"), ("\n", "\\n"), ("\0", "")]


def expected(text: str | None) -> str | None:
    if text is not None:
        for found, put in PAIRS:
            text = text.replace(found, put)
    return text


@pytest.mark.parametrize("letters", ["a\\'\n\0🎉ü", "\\'", "aü", "\x01 ", "\0"])
def test_characters_are_replaced_wherever_they_are(letters: str) -> None:
    chance = random.Random(3)
    texts = [
        None if chance.random() < 0.2 else "".join(chance.choices(letters, k=chance.randrange(9))) for _ in range(500)
    ]
    for given in (texts, [text or "" for text in texts], [], [None], [""]):
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
