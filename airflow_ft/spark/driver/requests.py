"""`Requests`: the requests of a task to its running driver."""

from __future__ import annotations

import logging
import time
from pathlib import Path

from airflow_ft.protocol.errors import StageError
from airflow_ft.spark.session.submit import DRAIN, END, KILL

log = logging.getLogger("airflow_ft.spark")


def require_folder(folder: Path) -> None:
    """Raise StageError if a driver has lost its private folder: no request could reach it."""
    if not folder.exists():
        raise StageError(
            f"another program has removed the driver's folder {folder}.",
            code="driver_ended",
            remedy="Do nothing: another driver starts. To prevent this, let no cleaner of $TMPDIR remove airflow-ft-*.",
            path=str(folder),
        )


class Requests:
    """Requests of the task to the driver: files in the attempt's private folder."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._end, self._kill = folder, folder / END, folder / KILL
        self._lost: StageError | None = None

    def is_to_end(self, within: float = 0.0) -> bool:
        """Wait up to these seconds, and return whether the stream is to end after its current checkpoint.

        Raises:
            StageError: the folder is gone, now or at an earlier look. This is a failure, and no request to end.
        """
        deadline = time.monotonic() + within
        while not self._end.exists():
            self._require_folder()
            if (left := deadline - time.monotonic()) <= 0:
                return False
            time.sleep(min(0.1, left))
        return True

    def _require_folder(self) -> None:
        if self._lost is None:
            try:
                require_folder(self._folder)
            except StageError as error:  # the report that goes into the folder is lost as well
                log.error("%s", error)
                self._lost = error
        if self._lost is not None:  # Spark may make the folder again
            raise self._lost

    def is_killed(self) -> bool:
        """Return whether it is to end at once, as a stream of a group whose process continues."""
        return self._kill.exists()

    def is_to_drain(self) -> bool:
        """Return whether it is to end with a checkpoint of what is open."""
        return self._end.exists() and self._end.read_text(encoding="utf-8") == DRAIN
