"""Positions of rows that other programs compute."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.protocol.position import MOST_BYTES, Position
from tests.raising import raises

T = datetime(2026, 11, 24, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (["b", "a", "a"], ["a", "b"]),
        ({"b": 1, "a": [1, 2]}, {"a": (1, 2), "b": 1}),
        (
            {"start": T, "end": "2026-11-25T12:00:00Z"},
            {"start": T.astimezone(timezone(timedelta(hours=2))), "end": "2026-11-25 12:00:00+00:00"},
        ),
        ({"start": date(2026, 11, 24), "end": date(2026, 11, 25)}, {"start": "2026-11-24", "end": "2026-11-25"}),
    ],
)
def test_one_position_has_one_form(one: Any, other: Any) -> None:
    assert Position.of(one).to_json() == Position.of(other).to_json()
    checkpoint: Any = SimpleNamespace(positions=Position.of(one).to_json())
    assert Position.stored(checkpoint) == Position.of(one)


@pytest.mark.parametrize(("one", "other"), [(7, "7"), ("a", ["a"]), (["a"], ["b"])])
def test_others_differ(one: Any, other: Any) -> None:
    assert Position.of(one) != Position.of(other)


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ("", "argument_invalid"),
        ("None", "argument_invalid"),
        (None, "argument_invalid"),
        ([], "argument_invalid"),
        ({}, "argument_invalid"),
        (True, "argument_invalid"),
        (1.5, "argument_invalid"),
        ({"at": 1.5}, "argument_invalid"),
        ({"at": object()}, "argument_invalid"),
        ({"start": 1, "end": "2026-11-24"}, "argument_invalid"),
        ({"start": 2, "end": 1}, "argument_invalid"),
        ({"start": T, "end": T}, "argument_invalid"),
        ({"start": "0001-01-01T00:00:00+01:00", "end": T}, "argument_invalid"),
        ({"snapshot": None}, "argument_invalid"),
        ({"snapshot": "None"}, "argument_invalid"),
        ([""], "argument_invalid"),
        ({1: "a", "b": "c"}, "argument_invalid"),
        ("\udc80", "argument_invalid"),
        ({"start": "monday", "end": "tuesday"}, "argument_invalid"),
        ({"start": T.replace(tzinfo=None), "end": T}, "time_zone_missing"),
        ({"start": "2026-11-24T12:00:00", "end": T}, "time_zone_missing"),
        ("x" * MOST_BYTES, "position_too_large"),
        (10**3000, "position_too_large"),
        ({"start": 1, "end": 10**3000}, "position_too_large"),
        ({"snapshot": [10**3000]}, "position_too_large"),
    ],
)
def test_what_is_no_position_is_refused(given: Any, code: str) -> None:
    with raises(ConfigurationError, code):
        Position.of(given)


def test_an_interval_may_leave_a_gap_and_not_go_back() -> None:
    last, next_one = Position.of({"start": 0, "end": 5}), Position.of({"start": 5, "end": 6})
    later = Position.of({"start": 7, "end": 8})
    for position, is_gap in ((next_one, False), (later, True)):
        position.require_after(last, "orders")
        assert position.is_gap_after(last) is is_gap
    with raises(ConfigurationError, "position_older"):
        last.require_after(next_one, "orders")
    assert later.as_of is None
    assert Position.of({"start": T - timedelta(hours=1), "end": T}).as_of == T
    assert Position.of({"start": "2026-11-24", "end": "2026-11-25"}).as_of is None


def test_a_text_is_shown_in_quotes_and_a_number_without() -> None:
    assert (str(Position.of(3)), str(Position.of("3"))) == ("3", "'3'")
    assert len(str(Position.of(10**200))) < 100
