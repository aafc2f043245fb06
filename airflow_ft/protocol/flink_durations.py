"""Durations as Flink writes them, such as "10 min"."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta

_UNITS: Mapping[timedelta, tuple[str, ...]] = {
    timedelta(days=1): ("d", "day", "days"),
    timedelta(hours=1): ("h", "hour", "hours"),
    timedelta(minutes=1): ("min", "m", "minute", "minutes"),
    timedelta(seconds=1): ("s", "sec", "secs", "second", "seconds"),
    timedelta(milliseconds=1): ("ms", "milli", "millis", "millisecond", "milliseconds", ""),
    timedelta(microseconds=1): ("\u00b5s", "\u03bcs", "micro", "micros", "microsecond", "microseconds"),
}
"""All that Flink's TimeUtils reads, but nanoseconds; the first name is shown. Of the micro sign there are two."""
_NANOS = ("ns", "nano", "nanos", "nanosecond", "nanoseconds")
_LENGTHS = {name: unit for unit, names in _UNITS.items() for name in names}
_DURATION = re.compile(r"\s*([0-9]+)\s*([a-z\u00b5\u03bc]*)\s*")


def duration(value: object) -> timedelta:
    """Read a duration as Flink writes it: "10 min", or milliseconds. ValueError for anything else."""
    if isinstance(value, timedelta) and value >= timedelta(0):
        return value
    match = _DURATION.fullmatch(str(value).lower())
    if match is None:
        raise ValueError
    number, unit = int(match[1]), match[2]
    if unit in _NANOS:
        return timedelta(microseconds=-(-number // 1000))  # the least that a timedelta holds: none becomes 0
    if unit not in _LENGTHS:
        raise ValueError
    return number * _LENGTHS[unit]


def in_flinks_units(value: timedelta) -> str:
    """Return a duration as Flink writes it: in the largest unit of which it is a whole number, such as "90 s"."""
    unit = next(unit for unit in _UNITS if not value % unit) if value else timedelta(milliseconds=1)
    return f"{value // unit} {_UNITS[unit][0]}"
