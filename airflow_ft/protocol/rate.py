"""Rate of a growing count and its remaining time, for people."""

from __future__ import annotations

from collections import deque

WINDOW_SECONDS = 60.0


class Rate:
    """Rate of a count over the last minute."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def rate(self, now: float, count: int) -> float | None:
        """A second; `now`: seconds of a monotonic clock. None before there are two moments, or when it has shrunk."""
        if self._seen and count < self._seen[-1][1]:
            self._seen.clear()
        self._seen.append((now, count))
        while len(self._seen) > 2 and now - self._seen[1][0] >= WINDOW_SECONDS:
            self._seen.popleft()
        since, before = self._seen[0]
        return (count - before) / (now - since) if now > since else None


def rate_texts(rate: float | None, seconds_left: float | None) -> list[str]:
    """`["200 a second", "31 s left"]`, as far as it is known; nothing where nothing moves."""
    if not rate:
        return []
    found = [f"{rate:,.0f} a second" if rate >= 10 else f"{rate:.2g} a second"]
    return [*found, f"{time_left(seconds_left)} left"] if seconds_left else found


def time_left(seconds: float) -> str:
    """`31 s`, `4 min 10 s`, `2 h 5 min`."""
    whole = max(1, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
