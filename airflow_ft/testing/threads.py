"""Steps of a participant in threads, which wait before calls of their clients."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

PATIENCE = 6
"""Others are waited for this many times as long as they take alone, then not any more: a thread that waits may hold
their lock. On a busy machine they take several times as long as alone."""
SHORT = 0.05
"""Seconds that others are waited for at least."""
LONG = 180.0
"""Seconds after which a thread is taken for stuck."""


def fastest(prepared: Callable[[], Callable[[], object]]) -> float:
    """Return the seconds of the fastest of three calls: the first one pays for imports, and others for the machine.

    `prepared` makes each call's scene, which is not measured, and returns the call.
    """
    seconds = []
    for _ in range(3):
        work = prepared()
        began = time.monotonic()
        work()
        seconds.append(time.monotonic() - began)
    return min(seconds)


def patience_for(alone: float) -> float:
    """Return how long to wait for threads that take `alone` seconds by themselves."""
    return max(SHORT, PATIENCE * alone)


class Background:
    """Runs `work` in a thread, and keeps its exception as `error`."""

    def __init__(self, name: str, work: Callable[[], None]) -> None:
        self.name = name
        self.error: Exception | None = None
        self._work = work
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def is_at_work(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
        self._thread.start()

    def end(self, seconds: float = LONG) -> None:
        """Wait for its end. AssertionError if it does not come within LONG."""
        self._thread.join(seconds)
        assert seconds < LONG or not self.is_at_work, f"{self.name} does not end"

    def _run(self) -> None:
        try:
            self._work()
        except Exception as error:
            self.error = error


@dataclass
class Stops:
    """Calls before which a thread waits."""

    calls: Collection[int]
    seen: int = 0
    stopped_at: int = -1
    changed: threading.Condition = field(default_factory=threading.Condition)

    def reached(self) -> None:
        """The thread is about to make its next call."""
        with self.changed:
            mine, self.seen = self.seen, self.seen + 1
            if mine in self.calls:
                self.stopped_at = mine
                self.changed.notify_all()
                self.changed.wait_for(lambda: self.stopped_at != mine, LONG)

    def wait(self, call: int, who: Background) -> bool:
        """Return True when the thread waits before this call, False when it has ended."""
        with self.changed:
            while self.stopped_at != call and who.is_at_work:
                self.changed.wait(0.01)
            return self.stopped_at == call

    def resume(self) -> None:
        """Let the thread run to its next stop."""
        with self.changed:
            self.stopped_at = -1
            self.changed.notify_all()

    def open(self) -> None:
        """Let the thread run until it ends."""
        self.calls = ()
        self.resume()
