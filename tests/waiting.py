"""Waiting for what another process, thread or server does."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def wait_for(condition: Callable[[], Any], seconds: float, what: str, pause: float = 0.1) -> Any:
    """The first true value of `condition`; AssertionError naming `what` after the deadline."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {seconds:.0f} s")
        time.sleep(pause)
    return value
