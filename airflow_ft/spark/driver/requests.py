"""`Requests`: the requests of a task to its running driver."""

from __future__ import annotations

import logging
import time
from pathlib import Path

from airflow_ft.spark.session.submit import DRAIN, END, KILL

log = logging.getLogger("airflow_ft.spark")


class Requests:
    """Requests of the task to the driver: files in the attempt's private folder."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._end, self._kill = folder, folder / END, folder / KILL
        self._is_lost = False

    def is_to_end(self, within: float = 0.0) -> bool:
        """Wait up to these seconds, and return whether the stream is to end after its current checkpoint.

        Without its folder no request could reach the driver, so it ends. Its task then starts another one.
        """
        deadline = time.monotonic() + within
        while not self._end.exists():
            if not self._folder.exists():
                if not self._is_lost:
                    log.error("the driver ends: another program has removed its folder %s", self._folder)
                self._is_lost = True
                return True
            if (left := deadline - time.monotonic()) <= 0:
                return False
            time.sleep(min(0.1, left))
        return True

    def is_killed(self) -> bool:
        """Return whether it is to end at once, as a stream of a group whose process continues."""
        return self._kill.exists()

    def is_to_drain(self) -> bool:
        """Return whether it is to end with a checkpoint of what is open."""
        return self._end.exists() and self._end.read_text(encoding="utf-8") == DRAIN
