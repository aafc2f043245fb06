"""Calls are passed on, each with somebody around it who may end the process there, or change the world."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class Around(Protocol):
    """Who stands around calls."""

    past: frozenset[str]
    """Names of calls that are let past."""

    def around(self, name: str, call: Callable[[], Any]) -> Any:
        """Makes the call of that name."""


class Through:
    """Passes every method call of `target` through `around`, under the name `label.method`."""

    def __init__(self, target: Any, around: Around, label: str) -> None:
        self._target, self._around, self._label = target, around, label

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """That of the target, by whose class its capabilities are asked."""
        return type(self._target)

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._target, name)
        if not callable(attribute) or name in self._around.past:
            return attribute

        def call(*args: Any, **kwargs: Any) -> Any:
            return self._around.around(f"{self._label}.{name}", lambda: attribute(*args, **kwargs))

        return call
