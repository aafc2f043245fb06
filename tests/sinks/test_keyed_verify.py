"""What is kept for the comparison of a key-value store."""

from __future__ import annotations

import tracemalloc
from contextlib import closing

from airflow_ft.sinks.base.keyed_verify import Change, LastChanges


def test_the_changes_of_a_checkpoint_are_not_kept_in_memory() -> None:
    with closing(LastChanges()) as last:
        tracemalloc.start()
        try:
            last.add((1, Change(f"orders:{key}", b"x" * 20, f"orders:{key}")) for key in range(100_000))
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert last.changes == 100_000 and peak < 5_000_000


def test_large_values_are_compared_few_at_a_time() -> None:
    sizes = {"a": 1, "b": 31_999_999, "c": 1, "d": 50_000_000, **{f"e{number:04}": 0 for number in range(1_001)}}
    with closing(LastChanges()) as last:
        last.add((1, Change(key, b"", "", size)) for key, size in sizes.items())
        batches = [[change.key for _, change in batch] for batch in last.batches()]
    assert batches[:3] == [["a", "b"], ["c"], ["d"]]
    assert [len(batch) for batch in batches[3:]] == [1_000, 1]


def test_of_a_key_the_last_change_of_the_highest_number_counts() -> None:
    with closing(LastChanges()) as last:
        last.add([(2, Change("a", b"1", "")), (2, Change("a", b"2", "")), (2, Change("b", None, ""))])
        last.add([(1, Change("a", b"0", "")), (1, Change("b", b"0", "")), (1, Change("c", b"3", ""))])
        assert (last.changes, last.digest("a"), last.digest("b"), last.digest("c")) == (6, b"2", None, b"3")
