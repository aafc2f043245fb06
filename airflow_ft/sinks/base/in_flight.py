"""Several requests to a server that are under way at a time."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import Self


class InFlight(ABC):
    """A context that ends when all requests are answered. At most `most` are under way; each has a place until then."""

    def __init__(self, most: int) -> None:
        self._most, self._places = most, threading.Semaphore(most)

    def _begin(self, request: Callable[[], object]) -> None:
        """Begin a request as soon as a place is free. Call `_done` once when its answer is there."""
        self._places.acquire()
        try:
            request()
        except BaseException:  # it has not begun
            self._done()
            raise

    def _done(self) -> None:
        """Release the place of a request."""
        self._places.release()

    def _wait(self) -> None:
        """Wait for the answers to all requests."""
        for _ in range(self._most):
            self._places.acquire()
        self._places.release(self._most)

    @abstractmethod
    def _end(self, *, in_error: bool) -> None:
        """Called when all answers are there. Unless the block ended `in_error`, raises the error of a request."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if kind is None or issubclass(kind, Exception):  # else this process is being ended
            self._wait()
            self._end(in_error=kind is not None)
