"""Memory that was freed goes back to the machine.

Glibc keeps it for the heap that it was taken from, and has one for each of many threads: what a stream has freed adds
up for days, though it holds no more than in its first hour (docs/chaos.md).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache


@cache
def _trim() -> Callable[[int], int] | None:
    try:
        found: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError, TypeError):  # another libc, which has no such function
        return None
    return found


def give_back() -> None:
    """Of all heaps of this process; takes some milliseconds. Nothing happens where the C library is not glibc."""
    trim = _trim()
    if trim is not None:
        trim(0)
