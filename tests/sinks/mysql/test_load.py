"""What is made ahead of rows that are sent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing

import pytest

from airflow_ft.core.ports import WalFile
from airflow_ft.sinks.mysql.load import _Ahead

SLICES = [(2, "ab"), (1, "c"), (3, "def")]


def a_file(rows: int) -> WalFile:
    return WalFile(path="f", rows=rows, bytes=0, sha256="")


def made(*more: Exception) -> Iterator[tuple[int, Sequence[str]]]:
    yield from SLICES
    for error in more:
        raise error


def test_each_file_has_its_own_slices() -> None:
    with closing(_Ahead(made())) as ahead:
        assert ahead.ready(30)
        assert list(ahead.of(a_file(3))) == ["a", "b", "c"]
        assert not ahead.at_end()
        assert list(ahead.of(a_file(3))) == ["d", "e", "f"]
        assert ahead.at_end()


def test_a_file_that_ends_early_ends() -> None:
    with closing(_Ahead(made())) as ahead:
        assert len(list(ahead.of(a_file(7)))) == 6
        assert ahead.at_end()


def test_what_shows_only_behind_the_last_rows_is_raised() -> None:
    with closing(_Ahead(made(ValueError("more rows than it should have")))) as ahead:
        assert len(list(ahead.of(a_file(6)))) == 6
        with pytest.raises(ValueError, match="more rows"):
            ahead.at_end()
