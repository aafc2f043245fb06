"""How far a pipeline is behind, in figures and words."""

from __future__ import annotations

import pytest

from airflow_ft.protocol.lag import Lag, Unit
from airflow_ft.protocol.rate import Rate, time_left


def test_a_rate_is_that_of_the_last_minute() -> None:
    pace = Rate()
    assert pace.rate(0, 100) is None
    assert pace.rate(10, 300) == 20
    assert pace.rate(60, 300) == pytest.approx(200 / 60)
    assert pace.rate(70, 300) == 0, "what was read more than a minute ago does not count"
    assert pace.rate(80, 400) == pytest.approx(100 / 70)


def test_a_count_that_has_shrunk_begins_anew() -> None:
    pace = Rate()
    pace.rate(0, 100)
    assert pace.rate(1, 5) is None and pace.rate(2, 7) == 2


def test_the_time_left_ignores_records_that_arrived_later() -> None:
    assert Lag("orders", Unit.RECORDS, 900, 100).seconds_left == 9
    assert Lag("orders", Unit.RECORDS, 900, 100, done=200, expected=1000).seconds_left == 8, "100 came since"
    assert Lag("orders", Unit.RECORDS, 0).seconds_left == 0
    assert (
        Lag("orders", Unit.RECORDS, 5).seconds_left is None and Lag("orders", Unit.RECORDS, 5, 0.0).seconds_left is None
    )


def test_words() -> None:
    assert str(Lag("a", Unit.RECORDS, 1200)) == "source a: 1,200 records behind"
    assert (
        str(Lag("a", Unit.RECORDS, 8_000, 100.0, 2_000, 10_000))
        == "source a: 8,000 records behind, 2,000 of 10,000 read, 100 a second, 1 min 20 s left"
    )
    assert str(Lag("b", Unit.FILES, 1, 0.25)) == "source b: 1 file behind, 0.25 a second, 4 s left"
    assert [time_left(each) for each in (0.2, 59.4, 61, 7500)] == ["1 s", "59 s", "1 min 1 s", "2 h 5 min"]
