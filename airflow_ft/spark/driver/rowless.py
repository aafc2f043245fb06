"""Calling code that is meant for rows without any: what would look at rows, or write them, is refused meanwhile."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from airflow_ft.spark.attribution import current

_ONE = threading.Lock()  # two streams at once would put back each other's refusals
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
    """DataFrames of this class raise LooksAtRowsError when their rows are wanted, in every thread of this stream."""
    stream = current()

    def refusal(name: str) -> property:
        usual = inspect.getattr_static(kind, name)

        def refuse(frame: Any) -> Any:
            if current() != stream:
                return usual.__get__(frame, type(frame))
            raise LooksAtRowsError(f"it asks for {name} of rows that are not there yet")

        return property(refuse)

    with _ONE:
        own = {name: vars(kind).get(name) for name in _ACTIONS if hasattr(kind, name)}
        for name in own:
            setattr(kind, name, refusal(name))
        try:
            yield
        finally:
            for name, before in own.items():
                if before is None:  # inherited
                    delattr(kind, name)
                else:
                    setattr(kind, name, before)
