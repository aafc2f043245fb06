"""Fault points: before and after every call of a process to the store, to a participant and to a server.

A point's name is the name of the call: `store.decide`, `mysql-xa.commit`, `mysql-xa: XA COMMIT`,
`kafka-held: producer.write`, `wal.write_segment`.
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.through import Through

_TABLES = {"airflow_ft_ledger": "ledger", "airflow_ft_head": "head"}


@dataclass(frozen=True)
class Point:
    """The `nth` time that a call of this name is made; `when`: "before" or "after"."""

    when: str
    name: str
    nth: int = 1

    def __str__(self) -> str:
        return f"{self.when} {self.name}" + (f" ({self.nth})" if self.nth > 1 else "")

    @property
    def is_inside(self) -> bool:
        """Within a participant's call, at one of its statements or requests."""
        return ": " in self.name


class Points:
    """Counts the calls of a process, and acts once, at the point that was asked for. Safe among threads."""

    past = frozenset({"close", "now", "renew_lease"})  # local, or called by a thread beside the steps

    def __init__(self, wanted: Point | None, strike: Callable[[Point], None]) -> None:
        self._wanted, self._strike = wanted, strike
        self._counts: Counter[tuple[str, str]] = Counter()
        self._lock = threading.Lock()
        self.trace: list[Point] = []

    def around(self, name: str, call: Callable[[], Any]) -> Any:
        """Calls, with a point before and after it. A call that raises has no point after it."""
        self._pass("before", name)
        result = call()
        self._pass("after", name)
        return result

    def _pass(self, when: str, name: str) -> None:
        with self._lock:
            self._counts[when, name] += 1
            here = Point(when, name, self._counts[when, name])
            self.trace.append(here)
            struck = here == self._wanted
        if struck:
            self._strike(here)

    def through(self, target: Any, label: str) -> Any:
        """`target`, with points around its methods."""
        return Through(target, self, label)

    def instrument(self, cls: type, method: str, name: Callable[..., str]) -> None:
        """Puts points around a method of a class, for the rest of this process. `name` gets the call's arguments."""
        original = getattr(cls, method)

        def call(instance: Any, *args: Any, **kwargs: Any) -> Any:
            return self.around(name(instance, *args), lambda: original(instance, *args, **kwargs))

        setattr(cls, method, call)


def statement_name(sql: str) -> str:
    """The first two words of a statement, and which of the sink's own tables it is about."""
    words = " ".join(re.findall(r"[A-Za-z_]+", sql)[:2]).upper()
    return words + next((f" {name}" for table, name in _TABLES.items() if table in sql), "")
