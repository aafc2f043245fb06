"""Calling code that is meant for rows without any: what would look at rows, or write them, is refused meanwhile."""

from __future__ import annotations

import inspect
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from airflow_ft.spark.attribution import current

_LOCK = threading.Lock()
_refused: Counter[str] = Counter()
"""How often each stream refuses actions just now."""
_usual: dict[tuple[type[Any], str], Any] = {}
"""What the refusals have replaced; None: an inherited attribute."""
_ACTIONS = [
    "checkpoint",
    "collect",
    "count",
    "first",
    "foreach",
    "foreachPartition",
    "head",
    "isEmpty",
    "isLocal",
    "localCheckpoint",
    "rdd",
    "show",
    "summary",
    "tail",
    "take",
    "toArrow",
    "toJSON",
    "toLocalIterator",
    "toPandas",
    "describe",
    "approxQuantile",
    "corr",
    "cov",
    "crosstab",
    "freqItems",
    "write",
    "writeTo",
    "mergeInto",
]


class LooksAtRowsError(Exception):
    """An action was asked for: what comes of it without rows says nothing of what comes of it with some."""


@contextmanager
def no_actions(kind: type[Any]) -> Iterator[None]:
    """DataFrames of this class raise LooksAtRowsError when their rows are wanted, in every thread of this stream.

    Several streams may do this at once.
    """
    stream = current()
    with _LOCK:
        for name in _ACTIONS:
            if hasattr(kind, name) and (kind, name) not in _usual:
                _usual[kind, name] = vars(kind).get(name)
                setattr(kind, name, _refusal(kind, name))
        _refused[stream] += 1
    try:
        yield
    finally:
        with _LOCK:
            _refused[stream] -= 1
            if not +_refused:
                _refused.clear()
                _put_back()


def _refusal(kind: type[Any], name: str) -> property:
    usual = inspect.getattr_static(kind, name)

    def refuse(frame: Any) -> Any:
        if not _refused[current()]:
            return usual.__get__(frame, type(frame))
        raise LooksAtRowsError(f"it asks for {name} of rows that are not there yet")

    return property(refuse)


def _put_back() -> None:
    for (kind, name), before in _usual.items():
        if before is None:  # inherited
            delattr(kind, name)
        else:
            setattr(kind, name, before)
    _usual.clear()
