"""The position of rows that a program of the author has computed: which rows they are, in the author's own terms.

Rows of an equal position are the same rows, so they are delivered once. The decision log keeps each position with its
checkpoint (`to_json`), forever.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from enum import StrEnum
from typing import Any, Self

from airflow_ft.protocol.arguments import check_plain, check_zone, shown, wrong
from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.protocol.model import Checkpoint, canonical_json
from airflow_ft.protocol.numbers import count_text
from airflow_ft.protocol.reasons import AbortReason

SOURCE = "external"
"""Among the positions of a checkpoint: the name of the source."""
MOST_BYTES = 1 << 20
"""Length of a position as JSON: a list of some 10,000 files."""
_MOST_BITS = 8192
"""Length of a whole number. Python refuses to write numbers that are not much longer as text."""
_BOUNDS = {"start", "end"}
_REMEDY = (
    'Give text, a whole number, a list of texts, an interval {"start": ..., "end": ...}, or another dictionary of plain'
    " data."
)


class PositionKind(StrEnum):
    """The order of a pipeline's positions."""

    NAME = "name"
    """By nothing: only equality counts."""
    NUMBER = "number"
    """A whole number that grows."""
    INTERVAL = "interval"
    """{"start", "end"}, each from the end of an earlier one or later. Bounds are times, dates or whole numbers."""


@dataclass(frozen=True, slots=True)
class Position:
    """A position, in the one form that equal positions have: plain JSON."""

    kind: PositionKind
    value: Any

    @classmethod
    def of(cls, given: object) -> Self:
        """Return the position that an author gives.

        A list of texts is taken as a set. The bounds of an interval may be datetimes, dates, ISO text or whole numbers.

        Raises:
            ConfigurationError: it is no position.
        """
        kind, value = _normal(given)
        try:
            size = len(canonical_json(value).encode())
        except UnicodeEncodeError:
            raise wrong("position", shown(given), "Give text that UTF-8 can hold.", why=", which is not text") from None
        if size > MOST_BYTES:
            raise wrong(
                "position",
                shown(given),
                "Give something shorter that names the same rows, such as a checksum of the list.",
                code="position_too_large",
                why=f", which has more than {MOST_BYTES:,} bytes as JSON",
            )
        return cls(kind, value)

    @classmethod
    def stored(cls, checkpoint: Checkpoint | None) -> Self | None:
        """Return the position of a checkpoint; None: its rows came from a job of Spark, or there is no checkpoint."""
        found = checkpoint.positions.get(SOURCE) if checkpoint else None
        if not isinstance(found, Mapping) or set(found) != {"kind", "position"}:
            return None
        return cls(PositionKind(found["kind"]), found["position"])

    def to_json(self) -> dict[str, Any]:
        """Return the positions of its checkpoint."""
        return {SOURCE: {"kind": self.kind.value, "position": self.value}}

    @property
    def as_of(self) -> datetime | None:
        """Return the end of an interval of times, as of which everything is there; None: any other position."""
        if self.kind is not PositionKind.INTERVAL:
            return None
        end = _comparable(self.value["end"])
        return end if isinstance(end, datetime) else None

    def require_after(self, last: Position, pipeline: str) -> None:
        """Raise ConfigurationError if the position cannot follow `last`, the newest published one."""
        if self.kind is not last.kind or _sort(self) != _sort(last):
            raise ConfigurationError(
                f"position {self} is of another kind than the last one, {last}.",
                code="position_kind_changed",
                remedy="Give positions of the kind that the pipeline began with, or give the pipeline another name.",
                pipeline=pipeline,
                position=self.value,
                last=last.value,
            )
        if self._is_older_than(last):
            raise ConfigurationError(
                f"position {self} is older than the last one, {last}. Some of its rows may be delivered already.",
                code="position_older",
                remedy="Give a position after the last one. To deliver in any order, name the rows by text instead.",
                pipeline=pipeline,
                position=self.value,
                last=last.value,
            )

    def skips(self, tried: Position, last: Position | None) -> bool:
        """Return whether it would leave out `tried`, which was not published, and could still follow `last`.

        Positions without an order leave out none: each can be given later.
        """
        if self.kind is PositionKind.NAME or self.kind is not tried.kind or _sort(self) != _sort(tried):
            return False
        return bool(tried._bounds()[0] < self._bounds()[0]) and (last is None or not tried._is_older_than(last))

    def before(self, later: Position) -> Position:
        """Return the part of an interval before `later` begins; without one, the whole position."""
        if self.kind is PositionKind.INTERVAL and self._bounds()[0] < later._bounds()[0] < self._bounds()[1]:
            return replace(self, value={"end": later.value["start"], "start": self.value["start"]})
        return self

    def _is_older_than(self, last: Position) -> bool:
        begins, ended = self._bounds()[0], last._bounds()[1]
        if self.kind is PositionKind.NAME:
            return False
        return bool(begins <= ended if self.kind is PositionKind.NUMBER else begins < ended)

    def is_gap_after(self, last: Position) -> bool:
        """Return whether an interval begins later than `last` ends."""
        return self.kind is PositionKind.INTERVAL and bool(self._bounds()[0] > last._bounds()[1])

    def _bounds(self) -> tuple[Any, Any]:
        if self.kind is PositionKind.INTERVAL:
            return _comparable(self.value["start"]), _comparable(self.value["end"])
        return self.value, self.value

    def __str__(self) -> str:
        if self.kind is PositionKind.INTERVAL:
            return f"{self.value['start']} to {self.value['end']}"
        text = self.value if isinstance(self.value, str) else canonical_json(self.value)
        text = text if len(text) <= 80 else f"{text[:80]}..."
        return text if self.kind is PositionKind.NUMBER else repr(text)  # '3' is a text, and of another kind


def is_kept(rewound: Checkpoint) -> bool:
    """Return whether published rows are delivered as they are, after the position whose refusal has rewound them.

    Otherwise their author gives the position again: a sink has refused these rows, or a person has discarded them. If
    a plan had several positions, its refusal names none, and each is tried alone.
    """
    several = rewound.plan is not None and len(rewound.plan.segments) > 1
    return rewound.reason is AbortReason.PREDECESSOR_ABORTED or (rewound.reason is AbortReason.DECLINED and several)


@dataclass(frozen=True, slots=True)
class LeftPositions:
    """Published positions that a rewind has left undelivered.

    Attributes:
        first: the first of them, as its last publication. It is published before all others.
        count: the number of positions.
    """

    first: Checkpoint
    count: int

    @property
    def what(self) -> str:
        """Return which rows wait, for people."""
        position = Position.stored(self.first)
        if is_kept(self.first):
            of = count_text(self.count, "published position")
            return f"the rows of {of} are kept and not delivered, from position {position} on."
        more = count_text(self.count - 1, "later position waits", "later positions wait")
        then = f", and {more} for it" if self.count > 1 else ""
        return f"position {position} was rewound and must be given again{then}."

    @property
    def remedy(self) -> str:
        """Return how to deliver them."""
        if is_kept(self.first):
            return "Deliver any position: this publishes the kept rows first. If an error names a position, give it."
        position = Position.stored(self.first)
        remedy = f"Give position {position} again, with rows that its sinks take. In a DAG, clear its run."
        if self.count > 1:
            remedy += (
                " Kept rows of later positions are then published again. To discard them, run `airflow ft rewind"
                f" {self.first.pipeline}`."
            )
        return remedy


def check_bounds(given: object) -> None:
    """Raise ConfigurationError for an interval with one bound, such as {"start", "stop"}. Bounds may be Jinja."""
    if not isinstance(given, Mapping) or len(there := _BOUNDS & given.keys()) != 1:
        return
    [bound] = there
    [other] = _BOUNDS - there
    raise wrong("position", shown(given), f"Give {other}, too.", why=f", which has {bound} and no {other}")


def _normal(given: object) -> tuple[PositionKind, Any]:
    if isinstance(given, int) and not isinstance(given, bool):
        _refuse_vague(given)
        return PositionKind.NUMBER, given
    if isinstance(given, str):
        check_plain("position", given)
        _refuse_vague(given)
        return PositionKind.NAME, given
    if isinstance(given, Mapping) and set(given) == _BOUNDS:
        return PositionKind.INTERVAL, _interval(given)
    check_bounds(given)
    if isinstance(given, list | tuple | Mapping) and given:
        _refuse_vague(given)
        check_plain("position", given)
        if isinstance(given, list | tuple) and all(isinstance(each, str) for each in given):
            return PositionKind.NAME, sorted(set(given))
        return PositionKind.NAME, json.loads(canonical_json(given))
    raise wrong("position", shown(given), _REMEDY)


def _refuse_vague(value: object) -> None:
    """Raise ConfigurationError for what may name other rows as well.

    That is no value, as a template renders what is missing; a fraction (two that look equal may differ); and a key that
    JSON would make text. A number that is too long is refused, too.
    """
    if isinstance(value, int) and value.bit_length() > _MOST_BITS:
        raise wrong(
            "position",
            "a whole number",
            "Give a shorter number, or text.",
            code="position_too_large",
            why=f" of more than {_MOST_BITS:,} bits",
        )
    if value is None or (isinstance(value, str) and value.strip() in ("", "None")):
        raise wrong("position", shown(value), _REMEDY, why=", which names no rows")
    if isinstance(value, float):
        raise wrong("position", shown(value), "Write fractions as text.", why=", a fraction")
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise wrong("position", shown(key), "Write keys as text.", why=", a key that is not text")
    items = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    for each in items:
        _refuse_vague(each)


def _interval(given: Mapping[str, Any]) -> dict[str, Any]:
    found = {name: _bound(name, given[name]) for name in sorted(_BOUNDS)}
    start, end = _comparable(found["start"]), _comparable(found["end"])
    if type(start) is not type(end):
        raise wrong(
            "position",
            f"{found['start']} to {found['end']}",
            "Give two times with their zones, two dates, or two whole numbers.",
            why=", an interval with two kinds of bounds",
        )
    if start >= end:
        raise wrong(
            "position",
            f"{found['start']} to {found['end']}",
            "Give the earlier bound as start. For the interval of an Airflow run use CronDataIntervalTimetable: with"
            " plain cron text as schedule, its start is its end.",
            why=", an interval that does not end after its start",
        )
    return found


def _bound(name: str, value: object) -> int | str:
    """A bound as it is kept: a whole number, a date as ISO text, or a time as ISO text in UTC."""
    remedy = f"Give a time with its zone, a date, or a whole number as {name}."
    if isinstance(value, int) and not isinstance(value, bool):
        _refuse_vague(value)
        return value
    if isinstance(value, str):
        try:
            value = _comparable(value)
        except ValueError:
            raise wrong(f"position[{name!r}]", shown(value), remedy) from None
    if isinstance(value, datetime):
        check_zone(f"position[{name!r}]", value)
        try:
            return value.astimezone(UTC).isoformat()
        except OverflowError:
            raise wrong(f"position[{name!r}]", shown(value), remedy) from None
    if isinstance(value, date):
        return value.isoformat()
    raise wrong(f"position[{name!r}]", shown(value), remedy)


def _comparable(bound: int | str) -> Any:
    if isinstance(bound, int):
        return bound
    return date.fromisoformat(bound) if len(bound) == 10 else datetime.fromisoformat(bound)


def _sort(position: Position) -> type | None:
    """The type of an interval's bounds, which can only be compared with their like."""
    return type(position._bounds()[0]) if position.kind is PositionKind.INTERVAL else None
