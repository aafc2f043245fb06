"""How many dead letters a checkpoint may have."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_ft.protocol.dead_letters import DeadLetters
from airflow_ft.protocol.errors import ConfigurationError, DeadLettersError, TerminalError
from tests.raising import raises


def test_a_name_alone_allows_any_number() -> None:
    dead_letters = DeadLetters.of("rejected")
    assert (
        dead_letters == DeadLetters(sink="rejected")
        and DeadLetters.of(None) is None
        and DeadLetters.of(dead_letters) is dead_letters
    )
    assert dead_letters is not None
    dead_letters.check("orders", 1, 10, 10)


@pytest.mark.parametrize(
    ("limits", "most", "rows"),
    [
        ({"max_rows": 3}, 3, 10),
        ({"max_rows": 0}, 0, 10),
        ({"max_share": 0.1}, 100, 1000),
        ({"max_share": 0.1}, 1, 3),  # of a few rows one is no sign of anything
        ({"max_share": 0}, 0, 1000),
        ({"max_share": 0.999}, 999, 1000),
        ({"max_share": 0.5, "max_rows": 3}, 3, 1000),
        ({"max_share": 0.001, "max_rows": 30}, 1, 1000),
    ],
)
def test_as_many_as_are_allowed_pass_and_one_more_fails(limits: dict[str, Any], most: int, rows: int) -> None:
    dead_letters = DeadLetters(sink="rejected", **limits)
    dead_letters.check("orders", 7, most, rows)
    if most < rows:
        where = {"sink": "rejected", "checkpoint": 7}
        with raises(DeadLettersError, "too_many_dead_letters", dead=most + 1, rows=rows, **where) as caught:
            dead_letters.check("orders", 7, most + 1, rows)
        assert isinstance(caught.error, TerminalError)


@pytest.mark.parametrize(
    ("argument", "value"),
    [("max_rows", -1), ("max_rows", True), ("max_share", 1), ("max_share", 1.5), ("max_share", "1%")],
)
def test_what_cannot_work_is_refused(argument: str, value: Any) -> None:
    with raises(ConfigurationError, "argument_invalid", of="DeadLetters", argument=argument, value=repr(value)):
        DeadLetters(sink="rejected", **{argument: value})


def test_it_is_a_sinks_name_or_the_whole() -> None:
    with raises(ConfigurationError, "name_invalid", name="'No Name'"):
        DeadLetters(sink="No Name")
    with raises(ConfigurationError, "argument_invalid", argument="dead_letters", value="7"):
        DeadLetters.of(7)
