"""Rows that are made ready in one thread while another one sends those before them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing
from typing import Any, Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")
_END: Any = object()


def made_of(items: Iterator[T], make: Callable[[T], R], workers: int = 2) -> Generator[tuple[T, R]]:
    """Yield each item with the result of `make`, in order; `workers` threads compute results ahead.

    The caller's thread draws the items. An exception of `make` is raised where its item is due.
    """
    made: deque[tuple[T, Future[R]]] = deque()
    pool = ThreadPoolExecutor(workers, thread_name_prefix="airflow-ft-made")
    try:
        for item in items:
            made.append((item, pool.submit(make, item)))
            if len(made) > workers:
                first, future = made.popleft()
                yield first, future.result()
        while made:
            first, future = made.popleft()
            yield first, future.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


class Ahead(Generic[T]):
    """The same items, in order; up to `depth` of them are made in a thread before they are asked for.

    To be closed. What making an item raises is raised where that item is asked for.
    """

    def __init__(self, items: Iterator[T], depth: int = 1) -> None:
        self._items = items
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="airflow-ft-ahead")
        self._made: deque[Future[T]] = deque(self._begin() for _ in range(depth))

    def _begin(self) -> Future[T]:
        return self._pool.submit(next, self._items, _END)

    def ready(self, seconds: float) -> bool:
        """Waits up to `seconds` for the next item; whether it, or the end, is there."""
        return bool(wait([self._made[0]], seconds).done)

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        item = self._made[0].result()
        if item is _END:
            raise StopIteration
        self._made.popleft()
        self._made.append(self._begin())
        return item

    def close(self) -> None:
        """Wait for the item in progress, and start no other."""
        self._pool.shutdown(wait=True, cancel_futures=True)


def kept_awake(items: Iterator[T], ask: Callable[[], object], each: float, most: float) -> Generator[T]:
    """Yield the items, which a thread makes ahead. Close the generator after use.

    Calls `ask` in the caller's thread about every `each` seconds, so that the server does not end the caller's session
    while it sends nothing for the items, slow or many. If one item takes longer than `most` seconds, the log may hang:
    then it no longer asks, so that the server ends the session and frees its locks.
    """
    with closing(Ahead(items)) as made:
        asked = time.monotonic()
        while True:
            until, is_made = time.monotonic() + most, False
            while not is_made and time.monotonic() < until:
                is_made = made.ready(max(0.0, asked + each - time.monotonic()))
                if time.monotonic() >= asked + each:
                    ask()
                    asked = time.monotonic()
            try:
                item = next(made)
            except StopIteration:
                return
            yield item
