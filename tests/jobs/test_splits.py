"""Splits of a source are given to its readers: each row once, or once by each reader, whatever their number."""

from __future__ import annotations

from collections import Counter

import pytest

from airflow_ft.jobs.splits import Redistribution, Share, redistribute
from airflow_ft.protocol.errors import ConfigurationError
from tests.raising import raises

SPLITS = {name: range(10) for name in "edcba"}


def _taken(shares: list[Share], how: Redistribution) -> Counter[tuple[str, int]]:
    """How often each row of each split is read."""
    rows = ((share, name, row) for share in shares for name, split in share.splits.items() for row in split)
    return Counter((name, row) for share, name, row in rows if how is not Redistribution.UNION or share.takes(row))


@pytest.mark.parametrize("how", Redistribution)
@pytest.mark.parametrize("readers", [1, 2, 3, 7])
def test_each_row_is_read_as_often_as_is_promised(how: Redistribution, readers: int) -> None:
    shares = redistribute(SPLITS, readers, how)
    times = readers if how is Redistribution.BROADCAST else 1
    assert _taken(shares, how) == {(name, row): times for name, split in SPLITS.items() for row in split}
    assert shares == redistribute(dict(sorted(SPLITS.items())), readers, how)


def test_an_even_split_gives_each_split_to_exactly_one_reader() -> None:
    two, three = (redistribute(SPLITS, readers, Redistribution.EVEN_SPLIT) for readers in (2, 3))
    assert [sorted(share.splits) for share in two] == [["a", "c", "e"], ["b", "d"]]
    assert [sorted(share.splits) for share in three] == [["a", "d"], ["b", "e"], ["c"]]


def test_of_a_union_each_reader_takes_a_part() -> None:
    shares = redistribute({"a": range(100)}, 3, Redistribution.UNION)
    assert all(0 < sum(share.takes(row) for row in range(100)) < 100 for share in shares)


def test_no_splits_make_no_shares_and_zero_readers_are_refused() -> None:
    assert [redistribute({}, 2, how) for how in Redistribution] == [[], [], []]
    with raises(ConfigurationError, "argument_invalid", argument="readers", value="0"):
        redistribute(SPLITS, 0, Redistribution.UNION)
