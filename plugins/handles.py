"""Handles on operator state that outlive a request, and the limits of what requests read from files.

A handle keeps its files open, so the next look at the same checkpoint costs a lookup. One request at a time uses it.
It is closed when another checkpoint is requested, when others need its place, and after an idle time. An open file of a
snapshot keeps its disk space, even after Spark has removed it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from airflow_ft.protocol.errors import ConfigurationError

from .turns import Turns

if TYPE_CHECKING:
    from airflow_ft.state.handle import State
    from airflow_ft.state.positions import Position

AT_ONCE = 4
turn = Turns(AT_ONCE, "are reading files of pipelines.", remedy="Try again, or use `airflow ft`.")
"""Wherever files are read."""
KEPT = 4
IDLE_SECONDS = 60.0
# 1,000,000 keys on the HDFS-backed map are 5.5 MB of files, and some 45 times that in memory.
BYTES, ENTRIES = 4 << 20, 200
STORES = 4
"""Open ones of a handle, as many as a join has in a partition. Each has all its files open."""

log = logging.getLogger(__name__)


class Handles:
    """Pool of handles that no request uses now, by pipeline and position; see the module."""

    def __init__(self, kept: int = KEPT, idle: float = IDLE_SECONDS, clock: Callable[[], float] = time.monotonic):
        self._most, self._idle, self._clock = kept, idle, clock
        self._lock = threading.Lock()
        self._kept: list[tuple[float, Position, State]] = []  # by the time of their last use
        self._timer: threading.Timer | None = None

    @contextmanager
    def lent(self, pipeline: str, position: Position) -> Iterator[State]:
        """The state at a position, for this thread alone."""
        handle = self._taken(pipeline, position) or _opened(pipeline, position)
        try:
            yield handle
        except ConfigurationError:  # a bad question; the handle is as it was
            self._keep(position, handle)
            raise
        except BaseException:
            handle.close()
            raise
        self._keep(position, handle)

    def close_idle(self) -> int:
        """Close idle handles; returns how many are left."""
        with self._lock:
            self._drop(lambda since, _: self._clock() - since >= self._idle)
            self._timer = None
            if self._kept:
                self._watch()
            return len(self._kept)

    def _taken(self, pipeline: str, position: Position) -> State | None:
        with self._lock:
            for index, (_, where, handle) in enumerate(self._kept):
                if handle.pipeline == pipeline and where == position:
                    del self._kept[index]
                    return handle
        return None

    def _keep(self, position: Position, handle: State) -> None:
        with self._lock:
            # One for each pipeline: of two requests at once, or of two checkpoints, the later one stays.
            self._drop(lambda _, other: other.pipeline == handle.pipeline)
            self._kept.append((self._clock(), position, handle))
            while len(self._kept) > self._most:
                _close(self._kept.pop(0)[2])
            self._watch()

    def _drop(self, is_old: Callable[[float, State], bool]) -> None:
        old = [each for each in self._kept if is_old(each[0], each[2])]
        self._kept = [each for each in self._kept if each not in old]
        for _, _, handle in old:
            _close(handle)

    def _watch(self) -> None:
        if self._timer is None:
            self._timer = threading.Timer(self._idle, self.close_idle)
            self._timer.daemon = True
            self._timer.start()


def _close(handle: State) -> None:
    """Close a handle. Only logs errors, so that the others and later calls still close theirs."""
    try:
        handle.close()
    except Exception as error:
        log.warning("could not close the state of %s: %s", handle.pipeline, error)


def _opened(pipeline: str, position: Position) -> State:
    from airflow_ft.state.bounds import Bounds
    from airflow_ft.state.handle import State

    return State(pipeline, lambda _: position, bounds=Bounds(BYTES, ENTRIES + 1, STORES))
