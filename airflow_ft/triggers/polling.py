"""Asking a blocking question again and again from a trigger, without blocking the other triggers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

from asgiref.sync import sync_to_async

from airflow_ft.protocol.errors import TransientError

T = TypeVar("T")


class Logger(Protocol):
    """A logger of `logging` or of structlog."""

    def info(self, msg: str, /, *args: Any) -> Any: ...

    def warning(self, msg: str, /, *args: Any) -> Any: ...


async def poll(
    question: Callable[[], T | None], interval: float, log: Logger, threads: ThreadPoolExecutor | None = None
) -> T:
    """The first answer that is true; asks every `interval` seconds, each time in a thread.

    `threads`: those of the decision log that is asked (`airflow_ft.triggers.shared`), so that one that hangs takes none
    of those that other triggers need; None: the event loop's.

    A TransientError (the decision log restarts, for example) is logged once until an answer comes, and asked again:
    waiting is all that a trigger does. Whatever else is raised fails the trigger, and so its task.
    """
    warned = False
    while True:
        try:
            # Not thread-sensitive: one slow question must not hold up those of other triggers.
            answer = await sync_to_async(question, thread_sensitive=False, executor=threads)()
            if warned:
                log.info("the decision log answers again")
            if answer:
                return answer
            warned = False
        except TransientError as error:
            if not warned:
                log.warning("the decision log did not answer; the trigger tries again: %s", error)
            warned = True
        await asyncio.sleep(interval)
