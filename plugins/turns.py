"""So many requests at once of a kind, of all that the API server answers.

Each holds one of the server's threads, which Airflow's own API needs, too: that of its tasks above all. So what does
not answer (a database, a file system) holds no more of them.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from fastapi import HTTPException

WAIT_SECONDS = 2.0


class Turns:
    """`busy` is what whoever gets none within `WAIT_SECONDS` is told of the others, with a remedy."""

    def __init__(self, at_once: int, busy: str) -> None:
        self._free, self._busy = threading.BoundedSemaphore(at_once), f"{at_once} other requests {busy}"

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """For the block; 503 when there are so many others, and none of them ends."""
        if not self._free.acquire(timeout=WAIT_SECONDS):
            raise HTTPException(503, self._busy)
        try:
            yield
        finally:
            self._free.release()
