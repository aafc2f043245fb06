"""Items that are made in a thread before they are asked for."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from airflow_ft.sinks.ahead import Ahead, kept_awake, made_of
from tests.raising import raises


def counting(begun: list[int], stop: int, error: Exception | None = None) -> Iterator[int]:
    for number in range(stop):
        begun.append(number)
        yield number
    if error is not None:
        raise error


def settled(ahead: Ahead[int]) -> None:
    """Waits until all that is to be made without being asked for has been made."""
    assert all(future.result(30) is not None for future in ahead._made)


@pytest.mark.parametrize("depth", [1, 4])
def test_items_are_made_ahead_and_come_in_order(depth: int) -> None:
    begun: list[int] = []
    with closing(Ahead(counting(begun, 10), depth)) as ahead:
        settled(ahead)
        assert len(begun) == depth
        assert next(ahead) == 0
        settled(ahead)
        assert len(begun) == depth + 1
        assert list(ahead) == list(range(1, 10))
        assert next(ahead, None) is None


def test_the_caller_can_wait_for_the_next_one_for_a_while() -> None:
    allowed = threading.Event()

    def made() -> Iterator[int]:
        allowed.wait(30)
        yield 1

    with closing(Ahead(made())) as ahead:
        assert not ahead.ready(0.01)
        allowed.set()
        assert ahead.ready(30)
        assert next(ahead) == 1
        assert ahead.ready(30)  # the end


def test_a_failure_comes_behind_what_was_made_before_it() -> None:
    error = ValueError("the fourth")
    with closing(Ahead(counting([], 3, error), depth=8)) as ahead:
        assert [next(ahead) for _ in range(3)] == [0, 1, 2]
        with raises(ValueError) as raised:
            next(ahead)
    assert raised.value is error


def test_nothing_is_made_behind_the_end() -> None:
    begun: list[int] = []
    ahead = Ahead(counting(begun, 100))
    next(ahead)
    ahead.close()
    assert len(begun) <= 2


def test_results_of_several_threads_come_in_the_order_of_items() -> None:
    both = threading.Barrier(2, timeout=10)  # one thread alone would never pass it

    def make(item: int) -> int:
        if item < 2:
            both.wait()
        return item * item

    assert list(made_of(iter(range(7)), make)) == [(item, item * item) for item in range(7)]
    assert list(made_of(iter(()), make)) == []


def test_an_error_is_raised_at_its_item_and_ends_the_work() -> None:
    begun: list[int] = []

    def make(item: int) -> int:
        begun.append(item)
        if item == 2:
            raise ValueError("2")
        return item

    taken = []
    with raises(ValueError) as raised:
        for item, _ in made_of(iter(range(1000)), make):
            taken.append(item)
    assert raised.value and raised.value.args == ("2",)
    assert taken == [0, 1] and max(begun) < 7


@pytest.mark.parametrize("slow", [False, True])
def test_a_session_is_kept_awake_while_items_are_made(slow: bool) -> None:
    asked: list[int] = []
    enough = threading.Event()

    def ask() -> None:
        asked.append(1)
        if len(asked) == 3:
            enough.set()

    def made() -> Iterator[int]:
        until = time.monotonic() + 30
        if slow:
            enough.wait(30)
        while not enough.is_set() and time.monotonic() < until:
            yield 1
        yield 2

    with closing(kept_awake(made(), ask, each=0.01, most=30)) as items:
        assert [*items][-1] == 2
    assert enough.is_set()


def test_the_session_of_a_log_that_hangs_is_given_up() -> None:
    asked: list[int] = []
    many = threading.Event()

    def ask() -> None:
        asked.append(1)
        if len(asked) == 1_000:
            many.set()

    def made() -> Iterator[bool]:
        yield many.wait(0.3)

    with closing(kept_awake(made(), ask, each=0.0001, most=0.01)) as items:
        assert list(items) == [False]
