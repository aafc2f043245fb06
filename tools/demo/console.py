"""What the demonstration says while it works: one line an event, with the seconds since it began."""

from __future__ import annotations

import sys
import threading
import time


class Console:
    """Writes lines from several threads; `seconds` counts from its construction, by a monotonic clock."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._lock = threading.Lock()

    @property
    def seconds(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._began

    def say(self, text: str) -> None:
        """One event; further lines of the text are indented."""
        first, *rest = text.splitlines() or [""]
        self.plain("\n".join([f"{self.seconds:7.1f} s  {first}", *(f"{'':11}{line}" for line in rest)]))

    def plain(self, text: str) -> None:
        """Text as it is."""
        with self._lock:
            sys.stdout.write(text + "\n")
            sys.stdout.flush()
