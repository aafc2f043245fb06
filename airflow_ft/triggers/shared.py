"""One open decision log for all triggers of a triggerer that need it. It is read once a second for all of them.

A look costs a query only when the pipeline has changed since the trigger's look before. The log is opened for the first
trigger, and closed behind the last one. An error is given to every trigger that asks within the same second, and the
next one opens the log again, so a log that is away costs one try a second. Each log has threads of its own: one that
hangs holds up no trigger of another log, nor of another provider.

Once a minute the setting is looked up again, since a connection may name another log by now.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TypeVar

from airflow_ft.protocol.background import beside
from airflow_ft.protocol.errors import AirflowFtError, StoreUnavailableError

if TYPE_CHECKING:
    from airflow_ft.store.decision_log import DecisionLog

T = TypeVar("T")

MOST_SECONDS = 1.0
"""Between two looks at the versions of all pipelines."""
ANYWAY_SECONDS = 60.0
"""After this long a trigger looks even if nothing seems to have changed, and a log's setting is looked up again."""
THREADS = 4
"""For each log; as many connections stay open."""
Token = tuple[str | None, ...]


class Reader:
    """The open log of one setting, for any number of threads."""

    def __init__(self, setting: str | None) -> None:
        self.users = 0
        self._setting = setting
        self._lock = threading.Lock()
        self._store: DecisionLog | None = None
        self._marks: Mapping[str, str] = {}
        self._read_at: float | None = None
        self._error: Exception | None = None
        self._address: int | None = None
        self._resolved_at = 0.0
        self.threads = ThreadPoolExecutor(THREADS, thread_name_prefix="airflow-ft-log")

    def token(self, pipelines: Sequence[str], most_seconds: float) -> Token:
        """Return the versions of pipelines, at most that old; None for unknown ones. Raises why it cannot."""
        # While another thread asks, its last answer is enough: threads wait for the first answer only.
        if self._is_older_than(most_seconds) and self._lock.acquire(blocking=self._read_at is None):
            try:
                if self._is_older_than(most_seconds):
                    self._refresh()
            finally:
                self._lock.release()
        if (error := self._error) is not None:
            raise error.with_traceback(None)  # which would grow with each trigger that raises it
        return tuple(self._marks.get(name) for name in pipelines)

    def store(self) -> DecisionLog:
        """Return the open log. Raises why it cannot be opened."""
        self.token((), MOST_SECONDS)
        if (store := self._store) is None:
            raise StoreUnavailableError(
                "the trigger has closed the decision log.", remedy="Do nothing. The trigger opens it again."
            )
        return store

    def close(self) -> None:
        """Close the log, without waiting for that: an event loop may call."""
        self.threads.shutdown(wait=False)
        self._let_go()

    def _let_go(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            with suppress(RuntimeError):  # the interpreter shuts down
                beside(store.close, "close-log")

    def _is_older_than(self, seconds: float) -> bool:
        return self._read_at is None or time.monotonic() - self._read_at >= seconds

    def _refresh(self) -> None:
        try:
            if self._store is not None and self._has_moved():
                self._let_go()
            if self._store is None:
                self._store = self._opened()
            self._marks, self._error = self._store.marks(), None
        except Exception as error:
            self._error = error
            self._let_go()
        self._read_at = time.monotonic()

    def _opened(self) -> DecisionLog:
        """A log that was there before is not made again: its disk may be away."""
        from airflow_ft.pipeline import decision_log as hooks
        from airflow_ft.pipeline.connections import task_connections

        address = hash(hooks.store_url(self._setting))
        known, self._resolved_at = self._address == address, time.monotonic()
        found = hooks.find_configured_store(self._setting, task_connections) if known else None
        if known and found is None:
            raise StoreUnavailableError(
                "the decision log is gone.",
                code="store_unavailable",
                remedy="Check whether its disk is mounted. The trigger tries again.",
            )
        opened = found or hooks.open_configured_store(self._setting)
        self._address = address
        return opened

    def _has_moved(self) -> bool:
        from airflow_ft.pipeline.decision_log import store_url

        if time.monotonic() - self._resolved_at < ANYWAY_SECONDS:
            return False
        self._resolved_at = time.monotonic()
        try:
            return hash(store_url(self._setting)) != self._address
        except AirflowFtError:  # the open log is good enough
            return False


_readers: dict[str, Reader] = {}
_lock = threading.Lock()


def _after_fork_in_child() -> None:
    """In a forked child: its triggers begin with readers of their own."""
    global _lock
    _readers.clear()
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork_in_child)


@contextmanager
def reading(setting: str | None) -> Iterator[Reader]:
    """Hold the shared reader of a setting, as in `pipeline.decision_log.store_url`, for the duration of the block."""
    key = setting or ""
    with _lock:
        if (reader := _readers.get(key)) is None:
            reader = _readers[key] = Reader(setting)
        reader.users += 1
    try:
        yield reader
    finally:
        with _lock:
            reader.users -= 1
            if not reader.users and _readers.get(key) is reader:
                del _readers[key]
                reader.close()


class Watch:
    """The versions of its pipelines that a trigger has seen: it asks again when one has changed."""

    def __init__(self, pipelines: Sequence[str], *, always: bool = False) -> None:
        """`always`: the answer depends on more than these pipelines, so each look asks."""
        self._pipelines, self._always = tuple(pipelines), always
        self._seen: Token | None = None
        self._asked_at = 0.0

    def look(self, setting: str | None, interval: float, ask: Callable[[DecisionLog], T]) -> T | None:
        """Return what `ask` says of the open log; None, without asking, when nothing has changed since."""
        with reading(setting) as reader:
            # Read before `ask`: what is written in between is another token at the next look.
            token = reader.token(self._pipelines, min(MOST_SECONDS, interval))
            now = time.monotonic()
            if not self._always and token == self._seen and now - self._asked_at < ANYWAY_SECONDS:
                return None
            answer = ask(reader.store())
            self._seen, self._asked_at = token, now
            return answer
