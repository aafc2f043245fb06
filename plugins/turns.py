"""Limit the number of simultaneous requests of a kind in the API server.

Each holds one of the server's threads, which Airflow's own API needs too, especially for tasks. So a system that does
not answer (a database, a file system) can block only a limited number.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from .refused import RefusedError

WAIT_SECONDS = 2.0


class Turns:
    """Bound how many requests run at once.

    Args:
        at_once: how many.
        busy: what the others do, for the error of a request that gets no turn within `WAIT_SECONDS`.
        remedy: what to do then.
    """

    def __init__(self, at_once: int, busy: str, *, remedy: str) -> None:
        self._free, self._remedy = threading.BoundedSemaphore(at_once), remedy
        self._busy = f"{at_once} other requests {busy}"

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Take a place for the block; 503 when all are taken and none becomes free."""
        if not self._free.acquire(timeout=WAIT_SECONDS):
            raise RefusedError(503, self._busy, code="server_busy", remedy=self._remedy)
        try:
            yield
        finally:
            self._free.release()
