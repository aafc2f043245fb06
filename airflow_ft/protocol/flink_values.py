"""Values as Flink writes them: durations such as "10 min", numbers, modes. ValueError: it is none."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from math import isfinite

from airflow_ft.protocol.kinds import Choice
from airflow_ft.protocol.model import CheckpointingMode

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
_LARGEST = 2**31 - 1
_WHOLE = re.compile(r"[+-]?[0-9]+")
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


def interval(value: object) -> timedelta:
    """Read a duration that may be negative."""
    if isinstance(value, timedelta):
        return value
    text = str(value).strip()
    return -duration(text[1:]) if text.startswith("-") else duration(text)


def mode(value: object) -> CheckpointingMode:
    """Read a mode of checkpoints. Flink has no word for AT_MOST_ONCE."""
    found: CheckpointingMode = Choice(CheckpointingMode).from_json(value)
    if found is CheckpointingMode.AT_MOST_ONCE:
        raise ValueError
    return found


def whole(value: object) -> int:
    """Read a whole number."""
    if not _WHOLE.fullmatch(text := str(value).strip()):  # 3.7, True and 1_000 are none
        raise ValueError
    return int(text)


def attempts(value: object) -> int | None:
    """Read a number of attempts. None: no bound, which is the largest int for Flink."""
    return None if value == "infinite" or (most := whole(value)) >= _LARGEST else most


def number(value: object) -> float:
    """Read a finite number."""
    found = float(text := str(value))
    if not isfinite(found) or "_" in text:
        raise ValueError
    return found


def flag(value: object) -> bool:
    """Read true or false, in any case."""
    known = {"true": True, "false": False}
    if isinstance(value, bool):
        return value
    try:
        return known[str(value).strip().lower()]
    except KeyError:
        raise ValueError from None
