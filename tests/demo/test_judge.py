"""The judge's comparisons: it must see each kind of deviation, and nothing where there is none."""

import json
import subprocess
import sys
from collections import Counter
from datetime import datetime

import pytest

from tools.demo import data, judge, readers

FLIGHT = (
    2013,
    1,
    1,
    517,
    515,
    2,
    830,
    819,
    11,
    "UA",
    1545,
    "N14228",
    "EWR",
    "IAH",
    227,
    1400,
    5,
    15,
    datetime(2013, 1, 1, 10),
)
CANCELLED = (*FLIGHT[:3], None, 515, None, None, 819, None, "UA", 1545, None, "EWR", "IAH", None, *FLIGHT[15:])


def test_equal_multisets_are_exact_in_any_order() -> None:
    found = judge.compare([FLIGHT, CANCELLED, FLIGHT], [FLIGHT, FLIGHT, CANCELLED])
    assert found.exact
    assert (found.expected, found.found) == (3, 3)


def test_a_missing_row_does_not_cancel_out_a_duplicated_one() -> None:
    found = judge.compare([FLIGHT, CANCELLED], [FLIGHT, FLIGHT])
    assert not found.exact
    assert (found.expected, found.found, found.duplicates, found.missing, found.foreign) == (2, 2, 1, 1, 0)


def test_a_changed_value_is_one_missing_and_one_foreign_row() -> None:
    changed = (*FLIGHT[:5], 3, *FLIGHT[6:])
    found = judge.compare([FLIGHT], [changed])
    assert (found.duplicates, found.missing, found.foreign) == (0, 1, 1)
    assert str(changed) in found.examples[1]


def test_null_is_not_zero() -> None:
    zero = (*CANCELLED[:5], 0, *CANCELLED[6:])
    assert not judge.compare([CANCELLED], [zero]).exact


def test_an_equal_number_of_another_type_is_a_problem() -> None:
    as_float = (float(FLIGHT[0]), *FLIGHT[1:])
    assert judge.compare([FLIGHT], [as_float]).exact  # why the types are looked at
    assert judge.type_problems("table", data.COLUMNS, [FLIGHT], [as_float]) == ["table: column year holds float"]
    assert judge.type_problems("table", data.COLUMNS, [FLIGHT], [FLIGHT]) == []


@pytest.mark.parametrize(
    ("numbers", "lacking", "surplus"),
    [([1, 2, 2], 1, 1), ([1, 2], 1, 0), ([1, 2, 3, 3], 0, 1), ([0, 1, 2], 1, 1), ([2, 3, 4], 1, 1)],
)
def test_a_gap_or_repetition_in_a_carriers_count_is_a_problem(numbers: list[int], lacking: int, surplus: int) -> None:
    problems = judge.counting_problems([("UA", n) for n in numbers], {"UA": 3})
    assert problems == [
        f"running count of carrier UA: {lacking} numbers of 1..3 are lacking, {surplus} are repeated or beyond"
    ]
    assert judge.counting_problems([("UA", 3), ("UA", 1), ("UA", 2)], {"UA": 3}) == []


def test_a_carrier_that_nobody_expected_is_a_problem() -> None:
    assert judge.counting_problems([("XX", 1)], {})


def test_a_record_is_read_back_with_its_types() -> None:
    fields = dict(zip((*data.COLUMNS, *judge.EXTRA), (*CANCELLED, 7, 0.5), strict=True))
    text = json.dumps({**fields, "time_hour": "2013-01-01T10:00:00.000000Z"}).encode()
    assert judge.parse_record(text) == (*CANCELLED, 7, 0.5)


def test_a_hash_is_read_back_with_its_types() -> None:
    row = (*CANCELLED, 7, 0.1)
    texts = {name: str(value) for name, value in zip(readers.NAMES, row, strict=True) if value is not None}
    assert readers.row_of_texts({**texts, "time_hour": "2013-01-01T10:00:00.000000Z", "_version": "3"}) == row


def test_a_record_with_other_fields_is_refused() -> None:
    with pytest.raises(ValueError):
        judge.parse_record(b'{"year": 2013}')


@pytest.mark.slow
def test_the_flights_are_those_of_the_package() -> None:
    rows = data.rows(data.flights(1000))
    assert len(rows) == 1000
    assert rows[0] == FLIGHT
    assert Counter(type(row[data.COLUMNS.index("dep_time")]) for row in rows).keys() == {int, type(None)}
    assert not any(data.is_late(row) for row in rows if row[data.COLUMNS.index("arr_delay")] in (None, 59))
    assert all(data.is_late(row) for row in rows if row[data.COLUMNS.index("arr_delay")] == 60)


def test_the_judge_imports_nothing_of_what_it_judges() -> None:
    program = "import sys, tools.demo.judge; print([name for name in sys.modules if name.startswith('airflow')])"
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert finished.stdout.strip() == "[]"
