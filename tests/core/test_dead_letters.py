"""How many dead letters a checkpoint may have."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_ft.core.dead_letters import DeadLetters
from airflow_ft.core.errors import ConfigurationError, DeadLettersError, TerminalError


def test_a_name_alone_allows_any_number() -> None:
    letters = DeadLetters.of("rejected")
    assert (
        letters == DeadLetters(sink="rejected") and DeadLetters.of(None) is None and DeadLetters.of(letters) is letters
    )
    assert letters is not None
    letters.check("orders", 1, 10, 10)


@pytest.mark.parametrize(
    ("limits", "most", "rows"),
    [
        ({"max_rows": 3}, 3, 10),
        ({"max_rows": 0}, 0, 10),
        ({"max_share": 0.1}, 100, 1000),
        ({"max_share": 0.1}, 1, 3),  # of a few rows one is no sign of anything
        ({"max_share": 0}, 0, 1000),
        ({"max_share": 1.0}, 1000, 1000),
        ({"max_share": 0.5, "max_rows": 3}, 3, 1000),
        ({"max_share": 0.001, "max_rows": 30}, 1, 1000),
    ],
)
def test_as_many_as_are_allowed_pass_and_one_more_fails(limits: dict[str, Any], most: int, rows: int) -> None:
    letters = DeadLetters(sink="rejected", **limits)
    letters.check("orders", 7, most, rows)
    if most < rows:
        with pytest.raises(DeadLettersError, match=rf"{most + 1:,} of {rows:,} rows are dead letters") as caught:
            letters.check("orders", 7, most + 1, rows)
        assert isinstance(caught.value, TerminalError)
        assert (caught.value.sink, caught.value.checkpoint) == ("rejected", 7)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"max_rows": -1}, "max_rows is -1"),
        ({"max_rows": True}, "max_rows is True"),
        ({"max_share": 1.5}, "max_share is 1.5"),
        ({"max_share": "1%"}, "max_share is '1%'"),
        ({"sink": "No Name"}, "No Name"),
    ],
)
def test_what_cannot_work_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        DeadLetters(**{"sink": "rejected", **given})
    with pytest.raises(ConfigurationError, match="dead_letters is 7"):
        DeadLetters.of(7)
