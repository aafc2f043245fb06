"""What was made of the rows of several files, divided among these files again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing

import pytest

from airflow_ft.protocol.write_ahead_log import WalFile
from airflow_ft.sinks.ahead import Ahead
from airflow_ft.sinks.mysql.load import _of

SLICES = [(2, "ab"), (1, "c"), (3, "def")]


def a_file(rows: int) -> WalFile:
    return WalFile(path="f", rows=rows, bytes=0, sha256="")


def made(*more: Exception) -> Iterator[tuple[int, Sequence[str]]]:
    yield from SLICES
    for error in more:
        raise error


def test_each_file_has_its_own_slices() -> None:
    with closing(Ahead(made())) as ahead:
        assert list(_of(a_file(3), ahead)) == ["a", "b", "c"]
        assert list(_of(a_file(3), ahead)) == ["d", "e", "f"]
        assert next(ahead, None) is None


def test_a_file_that_ends_early_ends() -> None:
    with closing(Ahead(made())) as ahead:
        assert len(list(_of(a_file(7), ahead))) == 6


def test_what_shows_only_behind_the_last_rows_is_raised() -> None:
    error = ValueError("more rows than it should have")
    with closing(Ahead(made(error))) as ahead:
        assert len(list(_of(a_file(6), ahead))) == 6
        with pytest.raises(ValueError) as raised:
            next(ahead)
    assert raised.value is error
