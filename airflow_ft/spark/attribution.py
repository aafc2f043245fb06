"""The stream for which a thread works, in processes that run several: the task and the driver of a group of streams.

A thread works for the stream of the thread that has started it. A call from the JVM comes in a thread of py4j, so its
function is `bound` to a stream. In other processes no thread has a stream: `current` returns "".
"""

from __future__ import annotations

import io
import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")

_NAME = "_airflow_ft_stream"
_MARK = "\x1e"
_REST_CHARACTERS = 64 * 1024


def current() -> str:
    """Return the pipeline of the stream for which this thread works; "": none."""
    return str(getattr(threading.current_thread(), _NAME, ""))


@contextmanager
def working_for(stream: str) -> Iterator[None]:
    """This thread works for a stream for the duration of the block."""
    thread, before = threading.current_thread(), current()
    setattr(thread, _NAME, stream)
    try:
        yield
    finally:
        setattr(thread, _NAME, before)


def bound(function: Callable[..., T]) -> Callable[..., T]:
    """Return the function for threads that the JVM calls in: it works for the present stream there."""
    if not (stream := current()):
        return function

    def call(*arguments: Any, **keywords: Any) -> T:
        with working_for(stream):
            return function(*arguments, **keywords)

    return call


@contextmanager
def inherited() -> Iterator[None]:
    """Threads that start in the block work for the stream of the thread that starts them."""
    start = threading.Thread.start

    def attributed(self: threading.Thread) -> None:
        setattr(self, _NAME, current())
        start(self)

    threading.Thread.start = attributed  # type: ignore[method-assign]
    try:
        yield
    finally:
        threading.Thread.start = start  # type: ignore[method-assign]


@contextmanager
def named_records() -> Iterator[None]:
    """Records of this package that a thread of a stream logs in the block begin with the stream's name."""
    make = logging.getLogRecordFactory()

    def named(*arguments: Any, **keywords: Any) -> logging.LogRecord:
        record = make(*arguments, **keywords)
        if (stream := current()) and (record.name or "").startswith("airflow_ft"):  # "": a copy of a record
            record.msg = f"[{stream}] {record.msg}"  # a name of a pipeline has no %
        return record

    logging.setLogRecordFactory(named)
    try:
        yield
    finally:
        logging.setLogRecordFactory(make)


def marked(stream: str, line: str) -> str:
    """Return a line of a driver's output that names its stream."""
    return f"{_MARK}{stream}{_MARK}{line}"


def unmarked(line: str) -> Iterator[tuple[str, str]]:
    """Yield (stream, text) of a line of the output; "" for text of no stream.

    The JVM writes into the same pipe, so a line may begin with its text.
    """
    before, _, rest = line.partition(_MARK)
    stream, mark, text = rest.partition(_MARK)
    if not mark:
        yield "", line
        return
    if before:
        yield "", before
    yield stream, text


class MarkedOutput(io.TextIOBase):
    """An output of text in which each line names the stream of the thread that has written it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._lock = descriptor, threading.Lock()
        self._rests: dict[str, str] = {}

    def fileno(self) -> int:
        return self._descriptor

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        stream = current()
        with self._lock:
            *lines, rest = (self._rests.get(stream, "") + text).split("\n")
            if len(rest) > _REST_CHARACTERS:
                lines, rest = [*lines, rest], ""
            self._rests[stream] = rest
            self._write(stream, lines)
        return len(text)

    def say(self, stream: str, line: str) -> None:
        """Write a line of its own for a stream, below a line that the stream has not finished.

        A short line is written at once, so that no text of the JVM comes into it (`PIPE_BUF`, pipe(7)).
        """
        with self._lock:
            if rest := self._rests.pop(stream, ""):
                self._write(stream, [rest])
            self._write(stream, [line])

    def _write(self, stream: str, lines: Sequence[str]) -> None:
        whole = "".join(f"{marked(stream, line) if stream else line}\n" for line in lines)
        data = whole.encode(errors="backslashreplace")
        while data:
            data = data[os.write(self._descriptor, data) :]
