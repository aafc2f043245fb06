from __future__ import annotations

import json

import pytest

from airflow_ft.protocol.numbers import MOST_LISTED, Numbers, numbers_text
from airflow_ft.spark.request import StageResult


def test_the_numbers_of_an_ordinary_run_are_listed() -> None:
    found = Numbers.of([3, 4, 7])
    assert found == Numbers().plus(3).plus(4, 7)
    assert found.to_json() == {"numbers": [3, 4, 7], "count": 3, "first": 3, "last": 7}
    assert Numbers().to_json() == {"numbers": [], "count": 0, "first": 0, "last": 0}
    assert str(found) == "3, 4, 7"


@pytest.mark.slow
def test_a_hundred_thousand_numbers_are_counted() -> None:
    found = Numbers()
    for number in range(5, 100_005):
        found = found.plus(number)
    assert len(found.newest) == MOST_LISTED
    assert found.to_json() == {"numbers": None, "count": 100_000, "first": 5, "last": 100_004}
    assert str(found) == "100,000 from 5 to 100004"
    assert found == Numbers.of(range(5, 100_005))


@pytest.mark.parametrize(
    ("numbers", "text"),
    [([], ""), ([4], "4"), ([4, 5], "4, 5"), ([1, 2, 3, 5, 6, 7, 9], "1 to 3, 5 to 7, 9"), ([1, 3, 5], "1, 3, 5")],
)
def test_ranges_are_told_as_such(numbers: list[int], text: str) -> None:
    assert numbers_text(numbers) == text


def test_what_a_stage_published_is_told_by_its_process() -> None:
    result = StageResult((4, 5), {"orders": 3}, None, before=7, first=1, output_mode="update")
    assert StageResult.from_json(json.loads(json.dumps(result.to_json()))) == result
    assert result.published == Numbers((4, 5), 9, 1)
    assert StageResult((4, 5), {}, None).published == Numbers.of([4, 5])
