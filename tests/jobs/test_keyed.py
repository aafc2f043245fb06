"""Reducing and aggregating state, over a value state in memory; over Spark's own: integration/test_stage_keyed.py."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pendulum
import pytest

from airflow_ft.jobs.keyed import AggregatingState, ReducingState
from airflow_ft.protocol.errors import ConfigurationError
from tests.raising import raises
from tests.test_imports import HIDE_SPARK, heavy, modules_after


class Handle:
    """Of one key; it is its value state, too, and counts what Spark would be asked."""

    def __init__(self) -> None:
        self.value: Any = None
        self.declared: tuple[Any, ...] = ()
        self.reads = self.writes = 0

    def getValueState(self, *declared: Any) -> Any:
        self.declared = declared
        return self

    def get(self) -> Any:
        self.reads += 1
        return self.value

    def update(self, value: Any) -> None:
        self.writes += 1
        self.value = value

    def clear(self) -> None:
        self.value = None


def _longest(handle: Any, **more: Any) -> ReducingState:
    return ReducingState(
        handle, "longest", "word string", lambda one, other: max(one, other, key=lambda w: len(w[0])), **more
    )


def _mean(handle: Any, add: Any = lambda kept, n: (kept[0] + n, kept[1] + 1)) -> AggregatingState:
    return AggregatingState(
        handle, "mean", "total bigint, n bigint", lambda: (0, 0), add, lambda kept: kept[0] / kept[1]
    )


def test_values_are_folded_with_what_is_there() -> None:
    state = _longest(handle := Handle())
    assert state.get() is None
    assert [state.add((word,)) for word in ("ab", "abcd", "a")] == [("ab",), ("abcd",), ("abcd",)]
    assert state.add_all((word,) for word in ("x" * 5, "x" * 7)) == ("x" * 7,) == state.get() == handle.value
    state.clear()
    assert state.get() is None


def test_what_is_added_kept_and_read_may_be_of_three_kinds() -> None:
    state = _mean(handle := Handle())
    assert state.get() is None
    assert (state.add(2), state.add_all([3, 7]), state.get(), handle.value) == (2.0, 4.0, 4.0, (12, 3))
    state.clear()
    assert state.add(5) == 5.0


@pytest.mark.parametrize("make", [_longest, _mean])
def test_adding_many_values_takes_one_read_and_one_write(make: Any) -> None:
    state = make(handle := Handle())
    state.add_all([("a",), ("b",)] if make is _longest else [1, 2])
    assert (handle.reads, handle.writes) == (1, 1)
    before = handle.value
    state.add_all([])
    assert (handle.writes, handle.value) == (1, before)


def test_the_time_to_live_is_handed_on_in_milliseconds() -> None:
    for ttl in (timedelta(seconds=90), pendulum.duration(seconds=90)):
        _longest(handle := Handle(), ttl=ttl)
        assert handle.declared == ("longest", "word string", 90_000)
    _longest(handle)
    assert handle.declared == ("longest", "word string", None)
    with raises(ConfigurationError, "argument_invalid", state="longest", argument="ttl", value="0:00:00"):
        _longest(handle, ttl=timedelta(0))


def test_what_is_no_tuple_is_named_before_spark_meets_it() -> None:
    handle: Any = Handle()
    with raises(ConfigurationError, "result_invalid", function="add", state="mean", value="int") as caught:
        _mean(handle, add=lambda kept, n: kept[0] + n).add(1)
    assert caught.error and "total bigint, n bigint" in caught.error.remedy
    with raises(ConfigurationError, "result_invalid", function="reduce", state="longest", value="str"):
        _longest(handle).add("word")  # type: ignore[arg-type]
    assert handle.writes == 0


def test_it_is_imported_without_spark(tmp_path: Path) -> None:
    assert not heavy(modules_after(f"{HIDE_SPARK}\nimport airflow_ft.jobs.keyed", tmp_path))
