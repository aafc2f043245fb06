"""A reader that looks all the time, also while processes and servers die."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Self

from tests.chaos.deliveries.hot_keys import Order

PAUSE = 0.005  # seconds between two looks, at least
IDLE = 2.0  # times as long as a look takes: what it watches needs the processor more


class Watch:
    """Looks in a thread of its own, from entering to leaving; `problems` are what was wrong with what it saw."""

    def __init__(self, look: Callable[[], Mapping[Hashable, object]], order: Order) -> None:
        self._look, self._order = look, order
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.problems: list[str] = []
        self.looks = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        self._thread.join()
        if error is None:
            self.see()

    def see(self) -> None:
        """One look."""
        self.problems += self._order.problems(self._look())
        self.looks += 1

    def _run(self) -> None:
        pause = PAUSE
        while not self._end.wait(pause) and not self.problems:
            began = time.monotonic()
            with suppress(Exception):  # the server is away; the last look shows all else
                self.see()
            pause = max(PAUSE, IDLE * (time.monotonic() - began))
