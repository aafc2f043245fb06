"""Kinds of settings, and their plain form: durations, counts, numbers, flags, choices.

The settings of a class are the fields of its frozen dataclass that have a kind in their metadata, listed nowhere else.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from enum import StrEnum
from typing import Any

from airflow_ft.protocol.argument_names import closest
from airflow_ft.protocol.arguments import shown, standard_time, wrong
from airflow_ft.protocol.errors import ConfigurationError

LONGEST = timedelta(days=36_525)
"""The decision log keeps microseconds, and sums of them. A hundred years are far from its largest number."""


@dataclass(frozen=True, slots=True)
class Duration:
    """A timedelta of at most `LONGEST`; seconds as plain data. `never`: None means no limit."""

    least: timedelta
    never: bool = False

    @property
    def remedy(self) -> str:
        least = f" of at least {self.least.total_seconds():g} s and at most 100 years"
        never = ", or None for never" if self.never else ""
        return f"Give a timedelta{least}{never}, such as timedelta(seconds=30)."

    def is_good(self, value: object) -> bool:
        return (value is None and self.never) or (isinstance(value, timedelta) and self.least <= value <= LONGEST)

    def to_json(self, value: Any) -> Any:
        return None if value is None else value.total_seconds()

    def from_json(self, value: Any) -> Any:
        if self.never and (value is None or value == "never"):
            return None
        return timedelta(seconds=float(value))

    plain = "a number of seconds"


@dataclass(frozen=True, slots=True)
class Count:
    """A whole number. `endless`: None means no limit; as text "infinite", the word of Flink's documentation."""

    least: int
    endless: bool = False

    @property
    def remedy(self) -> str:
        return f"Give a whole number of at least {self.least}" + (", or None for no limit." if self.endless else ".")

    def is_good(self, value: object) -> bool:
        return (value is None and self.endless) or (type(value) is int and value >= self.least)

    def to_json(self, value: Any) -> Any:
        return value

    def from_json(self, value: Any) -> Any:
        if self.endless and value == "infinite":
            return None
        return int(value) if isinstance(value, str) else value

    plain = "a whole number"


@dataclass(frozen=True, slots=True)
class Number:
    """A finite number from `least` to `most`; with `above`, `least` itself is none of them."""

    least: float
    most: float = sys.float_info.max
    above: bool = False

    @property
    def remedy(self) -> str:
        least = f"above {self.least:g}" if self.above else f"from {self.least:g}"
        return f"Give a number {least}" + (f" to {self.most:g}." if self.most < sys.float_info.max else ".")

    def is_good(self, value: object) -> bool:
        if not isinstance(value, int | float) or isinstance(value, bool):
            return False
        return self.least <= value <= self.most and not (self.above and value == self.least)

    def to_json(self, value: Any) -> Any:
        return value

    def from_json(self, value: Any) -> Any:
        return float(value) if isinstance(value, str) else value

    plain = "a number"


@dataclass(frozen=True, slots=True)
class Flag:
    """True or False."""

    remedy = "Give True or False."

    def is_good(self, value: object) -> bool:
        return isinstance(value, bool)

    def to_json(self, value: Any) -> Any:
        return value

    def from_json(self, value: Any) -> Any:
        known = {"true": True, "false": False}
        return known.get(value.strip().lower(), value) if isinstance(value, str) else value

    plain = "True or False"


@dataclass(frozen=True, slots=True)
class Choice:
    """A member of an enum; as plain data its text, which is read in any case."""

    among: type[StrEnum]

    @property
    def remedy(self) -> str:
        return f"Give {self.among.__name__}.{self.plain}."

    def is_good(self, value: object) -> bool:
        return isinstance(value, self.among)

    def to_json(self, value: Any) -> Any:
        return value.value

    def from_json(self, value: Any) -> Any:
        return self.among(str(value).strip().upper())

    @property
    def plain(self) -> str:
        *others, last = self.among
        return f"{', '.join(others)} or {last}" if others else last


Kind = Duration | Count | Number | Flag | Choice


def kinds_of(owner: type) -> dict[str, Kind]:
    """The settings of a dataclass, by name."""
    return {each.name: each.metadata["kind"] for each in fields(owner) if "kind" in each.metadata}


def accept_settings(owner: Any) -> None:
    """Check each setting of a dataclass's instance, and store durations of pendulum as the standard library's."""
    for name, kind in kinds_of(type(owner)).items():
        value = standard_time(getattr(owner, name))
        object.__setattr__(owner, name, value)  # it is frozen
        if not kind.is_good(value):
            raise wrong(name, shown(value), kind.remedy, of=type(owner).__name__)


def read_settings(owner: type, data: Mapping[str, Any], argument: str) -> dict[str, Any]:
    """Settings out of plain data, in which numbers may be text, as Jinja makes it; whether they fit is not judged.

    ConfigurationError names those that `owner` does not have, and those that cannot be read, as part of `argument`.
    """
    kinds = kinds_of(owner)
    if unknown := sorted(str(name) for name in set(data) - set(kinds)):
        close = closest(unknown[0], list(kinds))
        meant = f"Did you mean {close[0]}?" if close else f"Remove {', '.join(unknown)}."
        raise ConfigurationError(
            f"{argument} has no setting {', '.join(unknown)}.",
            code="argument_unknown",
            remedy=f"{meant} {argument} has {', '.join(kinds) or 'no settings'}.",
            argument=unknown[0],
            of=argument,
        )
    known = {}
    for name, value in data.items():
        try:
            known[name] = kinds[name].from_json(value)
        except (TypeError, ValueError, OverflowError):
            raise wrong(name, shown(value), f"Give {kinds[name].plain} as {name}.", of=argument) from None
    return known
