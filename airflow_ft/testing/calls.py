"""What a process does to files and to SQLite, call by call, so that it can be killed before each.

Clients that change files without telling Python, and servers that no proxy stands before, tell by `Target.calls`.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

_CHANGES = {"os.rename", "os.link", "os.remove", "os.mkdir", "os.rmdir", "os.truncate"}
_WRITING = os.O_WRONLY | os.O_RDWR


def kill_before(at: int, below: str, more: str = "") -> None:
    """Kills this process before its call `at`, counted from 0: changes of files below a folder, but those of the log
    in it; statements of SQLite; and what `more`, a "module:function", tells of.
    """
    seen = 0
    log = str(Path(below) / "wal")

    def reached(*_: Any) -> None:
        nonlocal seen
        if seen == at:
            os.kill(os.getpid(), signal.SIGKILL)
        seen += 1

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in _CHANGES or (event == "open" and (arguments[2] or 0) & _WRITING):
            places = [os.fsdecode(each) for each in arguments if isinstance(each, str | bytes | os.PathLike)]
            if any(place.startswith(below) and not place.startswith(log) for place in places):
                reached()

    def connect(*of: Any, _connect: Callable[..., Any] = sqlite3.connect, **more: Any) -> Any:
        db = _connect(*of, **more)
        db.set_trace_callback(reached)
        return db

    sys.addaudithook(hook)
    sqlite3.connect = connect
    if more:
        module, _, name = more.partition(":")
        install: Callable[[Callable[[], None]], None] = getattr(import_module(module), name)
        install(reached)
