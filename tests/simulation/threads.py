"""Threads of a process and what they wait for each other with, in place of `threading`: greenlets that take turns.

One is at work at a time, and gives way at a call or where it waits. So what stands between two of these is atomic,
which it is not in Python. A lock is kept all the same: it may be held over a call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import SimpleNamespace
from typing import Any, Self

from tests.simulation.kernel import Death, Kernel, Process

_LOOK = 0.05
LETTERS = {"overlap": "o", "watch": "w", "publisher": "p", "spark": "q", "stopper": "s"}


class ModelThreading:
    """The names of `threading` that the product uses, for whatever world is at work."""

    def __init__(self, kernel: Callable[[], Kernel]) -> None:
        self.kernel = kernel

    def namespace(self) -> SimpleNamespace:
        """In place of the module."""
        return SimpleNamespace(Thread=self.thread, Event=self.event, Lock=self.lock, Condition=self.condition)

    def thread(
        self,
        target: Callable[..., object],
        name: str = "",
        daemon: bool = True,
        args: Iterable[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> ModelThread:
        return ModelThread(self.kernel, lambda: target(*args, **(kwargs or {})), name)

    def event(self) -> ModelEvent:
        return ModelEvent(self.kernel)

    def lock(self) -> ModelLock:
        return ModelLock(self.kernel)

    def condition(self) -> ModelCondition:
        return ModelCondition(self.kernel)


class ModelThread:
    """See `threading.Thread`. A process that has died starts none."""

    def __init__(self, kernel: Callable[[], Kernel], body: Callable[[], object], name: str) -> None:
        self._kernel, self._body, self._name = kernel, body, name
        self._process: Process | None = None

    def start(self) -> None:
        kernel = self._kernel()
        current = kernel.current
        assert current is not None
        if current.dead:
            raise Death
        letter = LETTERS[self._name.split("-")[0]]
        kernel.names[current.leader.name, letter] += 1
        number = kernel.names[current.leader.name, letter]
        name = f"{current.leader.name}{letter}{number if number > 1 else ''}"
        self._process = kernel.start(name, self._body, thread_of=current)

    def is_alive(self) -> bool:
        return self._process is not None and not self._process.ended

    def join(self, timeout: float | None = None) -> None:
        while self.is_alive() and (timeout is None or timeout > 0):
            self._kernel().wait(_LOOK)
            timeout = None if timeout is None else timeout - _LOOK


class ModelEvent:
    """See `threading.Event`."""

    def __init__(self, kernel: Callable[[], Kernel]) -> None:
        self._kernel, self._set = kernel, False

    def set(self) -> None:
        self._set = True

    def clear(self) -> None:
        self._set = False

    def is_set(self) -> bool:
        return self._set

    def wait(self, timeout: float | None = None) -> bool:
        if not self._set:
            self._kernel().wait(_LOOK if timeout is None else timeout)
        while timeout is None and not self._set:
            self._kernel().wait(_LOOK)
        return self._set


class ModelLock:
    """See `threading.Lock`."""

    def __init__(self, kernel: Callable[[], Kernel]) -> None:
        self._kernel, self._held = kernel, False

    def acquire(self, blocking: bool = True) -> bool:
        while self._held:
            if not blocking:
                return False
            self._kernel().wait(_LOOK)
        self._held = True
        return True

    def release(self) -> None:
        self._held = False

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class ModelCondition(ModelLock):
    """See `threading.Condition`: whoever waits looks again at each of its turns."""

    def wait(self, timeout: float | None = None) -> None:
        self.release()
        self._kernel().wait(_LOOK if timeout is None else timeout)
        self.acquire()

    def wait_for(self, predicate: Callable[[], bool], timeout: float) -> bool:
        if not predicate():
            self.wait(timeout)
        return predicate()

    def notify_all(self) -> None:
        pass
