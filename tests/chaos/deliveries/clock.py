"""A wall clock that jumps, for one process: a seam, since a process of its own kernel would be needed for more.

What the package's Python code reads is moved (`time.time`, `time.time_ns`, `datetime.now`); the monotonic clock stays,
as it does when a clock is set, and librdkafka goes on reading the true one.
"""

from __future__ import annotations

import datetime
import sys
import time
from typing import Any

_TRUE = datetime.datetime
_wall, _wall_ns = time.time, time.time_ns
_offset = 0.0


class _AnyDatetime(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _TRUE)


class _Moved(datetime.datetime, metaclass=_AnyDatetime):
    @classmethod
    def now(cls, tz: Any = None) -> Any:
        return _TRUE.now(tz) + datetime.timedelta(seconds=_offset)


def jump(seconds: float) -> None:
    """From now on the clock is so much ahead of the true one (behind it, when negative)."""
    global _offset
    _offset = seconds
    time.time = lambda: _wall() + _offset
    time.time_ns = lambda: _wall_ns() + int(_offset * 1_000_000_000)
    for name, module in list(sys.modules.items()):
        if name.startswith("airflow_ft") and getattr(module, "datetime", None) is _TRUE:
            setattr(module, "datetime", _Moved)  # noqa: B010
