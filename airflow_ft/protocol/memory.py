"""Return freed memory to the operating system.

Glibc keeps freed memory in the heap it came from, and each thread may have its own heap. In a stream this adds up for
days, although the live memory does not grow (docs/chaos.md).
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
    """Trim all heaps of this process, in some milliseconds. Does nothing unless the C library is glibc."""
    trim = _trim()
    if trim is not None:
        trim(0)
