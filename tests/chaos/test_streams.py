"""The judge of the stage `streams` sees what it is there to see."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from tests.chaos.streams.at_most_once import Window, judge_losses
from tests.chaos.streams.world import Row, judge_rows, runs_the_job

SENT, KEYS = 60, 7
EPOCHS = [1, 1, 2, 4]


def exact() -> list[Row]:
    places: Counter[int] = Counter()
    rows = []
    for n in range(SENT):
        places[n % KEYS] += 1
        rows.append((n, n % KEYS, places[n % KEYS], n / 7))
    return rows


def test_the_judge_accepts_each_row_once_in_both_sinks() -> None:
    assert judge_rows(exact(), list(reversed(exact())), EPOCHS, SENT) == []


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda rows: rows[1:], "1 lost, 0 duplicated, 0 foreign"),
        (lambda rows: [*rows, rows[5]], "0 lost, 1 duplicated, 0 foreign"),
        (lambda rows: [*rows, (SENT, 0, 1, 0.5)], "0 lost, 0 duplicated, 1 foreign"),
        (lambda rows: [(n, k, place + (n == 40), r) for n, k, place, r in rows], "places of 1 keys are not 1 to N"),
        (lambda rows: [(n, k, place, r + (n == 40)) for n, k, place, r in rows], "1 rows differ between the two sinks"),
    ],
    ids=["lost", "duplicated", "foreign", "state", "computed twice"],
)
def test_what_is_wrong_in_a_sink_is_told(damage: Callable[[list[Row]], list[Row]], words: str) -> None:
    assert words in " ".join(judge_rows(damage(exact()), exact(), EPOCHS, SENT))
    assert words in " ".join(judge_rows(exact(), damage(exact()), EPOCHS, SENT))


@pytest.mark.parametrize("epochs", [[1, 2, 1, 2], []], ids=["a second copy", "nobody"])
def test_an_older_writer_after_a_newer_one_is_told(epochs: list[int]) -> None:
    [problem] = judge_rows(exact(), exact(), epochs, SENT)
    assert f"an older one after a newer one: {epochs}" in problem


@pytest.mark.parametrize(
    ("command", "is_it"),
    [
        ("/usr/bin/python3 /tmp/stage/main.py", True),
        ("/usr/lib/jvm/bin/java -cp jars/* org.apache.spark.deploy.SparkSubmit /tmp/stage/main.py", False),
        ("/usr/bin/python3 -m pyspark.daemon pyspark.worker", False),
        ("", False),
    ],
)
def test_the_python_of_a_driver_is_told_from_its_jvm(command: str, is_it: bool) -> None:
    assert runs_the_job(command.split()) is is_it


def lossy(*lost: int) -> list[Row]:
    """Of a stream that began at 4."""
    return [row for row in exact() if row[0] >= 4 and row[0] not in lost]


WINDOW = Window((5, 6), 20)  # from 10 and 13 on


def test_the_judge_accepts_losses_before_the_start_and_at_faults() -> None:
    rows = lossy(10, 12, 13, 15, 19)
    assert judge_losses(rows, list(reversed(rows)), EPOCHS, SENT, [WINDOW]) == []


@pytest.mark.parametrize(
    ("rows", "records", "words"),
    [
        (lossy(11), lossy(11), "1 are lost where no fault was, [11]"),  # published before it
        (lossy(20), lossy(20), "1 are lost where no fault was, [20]"),  # sent behind it
        ([*lossy(), exact()[30]], [*lossy(), exact()[30]], "1 are duplicated"),
        ([*lossy(), (SENT, 0, 1, 0.5)], lossy(), "1 are foreign"),
        (lossy(), lossy(12), "1 rows differ between the two sinks"),
        (lossy(12), lossy(), "1 rows differ between the two sinks"),
    ],
    ids=["published", "late", "duplicated", "foreign", "not in Kafka", "not in MariaDB"],
)
def test_what_is_lost_elsewhere_or_comes_twice_is_told(rows: list[Row], records: list[Row], words: str) -> None:
    assert words in " ".join(judge_losses(rows, records, EPOCHS, SENT, [WINDOW]))
