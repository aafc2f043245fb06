"""Calls that may never return."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def beside(call: Callable[[], T], name: str) -> Future[T]:
    """The call's result to come, from a thread of this name that a process which ends does not wait for.

    RuntimeError while the interpreter shuts down: a thread never begins then, and who starts it would wait for ever.
    """
    if sys.is_finalizing():
        raise RuntimeError("the interpreter is shutting down.")
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(call())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return done
