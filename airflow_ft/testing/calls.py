"""Calls to files and to SQLite, so that a process can be killed, or a thread can wait, before each.

Clients that change files without Python, and servers without a proxy, report through `Target.calls`.
"""

from __future__ import annotations

import errno
import os
import signal
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Self

_CHANGES = {"os.rename", "os.link", "os.remove", "os.mkdir", "os.rmdir", "os.truncate"}
_WRITING = os.O_WRONLY | os.O_RDWR

_listeners: dict[int, tuple[str, Callable[[], None]]] = {}
"""By thread: below which folder it changes files, and what is called."""
_installed: set[str] = set()


def kill_before(at: int, below: str, more: str = "") -> None:
    """Kill this process before its call `at`, counted from 0. Calls are changes of files below a folder, except those
    of the log in it; statements of SQLite; and those that `more`, a "module:function", reports.
    """
    seen = 0

    def reached(*_: Any) -> None:
        nonlocal seen
        if seen == at:
            os.kill(os.getpid(), signal.SIGKILL)
        seen += 1

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if _is_change(event, arguments, below):
            reached()

    sys.addaudithook(hook)
    sqlite3.connect = _tracing(reached)
    if more:
        _install(more, reached)


@contextmanager
def listening(reached: Callable[[], None], below: str, more: str = "") -> Iterator[None]:
    """Has `reached` called before each such call of this thread, which may wait there."""
    if more and more not in _installed:
        _installed.add(more)
        _install(more, _report)
    with _listened(reached, below, _tracing(_report)):
        yield


@contextmanager
def failing(at: int, below: str) -> Iterator[Callable[[], bool]]:
    """Have call `at` of this thread raise, counted from 0; yields whether it has. Calls are those of `listening`.

    A change of a file raises OSError (ENOSPC), a statement of SQLite sqlite3.OperationalError. Neither has an effect.
    """
    seen, failed = 0, False
    thread = threading.get_ident()

    def strikes() -> bool:
        nonlocal seen, failed
        mine, seen = seen, seen + 1
        failed = failed or mine == at
        return mine == at

    def raise_there() -> None:
        if strikes():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def asked() -> None:
        if threading.get_ident() == thread and strikes():
            raise sqlite3.OperationalError("disk I/O error")

    with _listened(raise_there, below, partial(sqlite3.connect, factory=_failing_connection(asked))):
        yield lambda: failed


@contextmanager
def _listened(reached: Callable[[], None], below: str, connect: Callable[..., Any]) -> Iterator[None]:
    """Have `reached` called before each change of a file by this thread, and put `connect` in for that of SQLite."""
    usual, thread = sqlite3.connect, threading.get_ident()
    if "" not in _installed:  # a hook stays for ever
        _installed.add("")
        sys.addaudithook(_hook)
    _listeners[thread] = (below, reached)
    sqlite3.connect = connect
    try:
        yield
    finally:
        sqlite3.connect = usual
        del _listeners[thread]


def _failing_connection(asked: Callable[[], None]) -> type[sqlite3.Connection]:
    """A class of connections that call `asked` before each statement, also of their cursors."""

    class Asking(sqlite3.Cursor):
        def execute(self, *of: Any) -> Self:
            asked()
            return super().execute(*of)

        def executemany(self, *of: Any) -> Self:
            asked()
            return super().executemany(*of)

        def executescript(self, *of: Any) -> sqlite3.Cursor:
            asked()
            return super().executescript(*of)

    class Failing(sqlite3.Connection):
        def cursor(self, factory: Any = Asking) -> Any:
            return super().cursor(factory)

        def execute(self, *of: Any) -> sqlite3.Cursor:
            asked()
            return super().execute(*of)

        def executemany(self, *of: Any) -> sqlite3.Cursor:
            asked()
            return super().executemany(*of)

        def executescript(self, *of: Any) -> sqlite3.Cursor:
            asked()
            return super().executescript(*of)

        def commit(self) -> None:
            asked()
            super().commit()

    return Failing


def _report(*_: Any) -> None:
    """Call the listener of this thread. Its own calls are not reported: it may read the target."""
    thread = threading.get_ident()
    if (listener := _listeners.pop(thread, None)) is not None:
        try:
            listener[1]()
        finally:
            _listeners[thread] = listener


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    listener = _listeners.get(threading.get_ident()) if _listeners else None
    if listener is not None and _is_change(event, arguments, listener[0]):
        _report()


def _is_change(event: str, arguments: tuple[Any, ...], below: str) -> bool:
    if event not in _CHANGES and not (event == "open" and (arguments[2] or 0) & _WRITING):
        return False
    log = str(Path(below) / "wal")
    places = [os.fsdecode(each) for each in arguments if isinstance(each, str | bytes | os.PathLike)]
    return any(place.startswith(below) and not place.startswith(log) for place in places)


def _tracing(reached: Callable[..., None]) -> Callable[..., Any]:
    """Return a `sqlite3.connect` whose connections report each statement."""
    connect = sqlite3.connect

    def traced(*of: Any, **more: Any) -> Any:
        db = connect(*of, **more)
        db.set_trace_callback(reached)
        return db

    return traced


def _install(more: str, reached: Callable[[], None]) -> None:
    module, _, name = more.partition(":")
    install: Callable[[Callable[[], None]], None] = getattr(import_module(module), name)
    install(reached)
