"""The judge of the stage `streams` sees what it is there to see."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from tests.chaos.streams.world import Row, judge_rows

SENT, KEYS = 60, 7
EPOCHS = [1, 1, 2, 4]


def exact() -> list[Row]:
    places: Counter[int] = Counter()
    rows = []
    for n in range(SENT):
        places[n % KEYS] += 1
        rows.append((n, n % KEYS, places[n % KEYS], n / 7))
    return rows


def test_each_row_once_in_both_by_one_writer_after_another_is_right() -> None:
    assert judge_rows(exact(), list(reversed(exact())), EPOCHS, SENT) == []


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda rows: rows[1:], "1 lost, 0 doubled, 0 foreign"),
        (lambda rows: [*rows, rows[5]], "0 lost, 1 doubled, 0 foreign"),
        (lambda rows: [*rows, (SENT, 0, 1, 0.5)], "0 lost, 0 doubled, 1 foreign"),
        (lambda rows: [(n, k, place + (n == 40), r) for n, k, place, r in rows], "places of 1 keys are not 1 to N"),
        (lambda rows: [(n, k, place, r + (n == 40)) for n, k, place, r in rows], "1 rows differ between the two sinks"),
    ],
    ids=["lost", "doubled", "foreign", "state", "computed twice"],
)
def test_what_is_wrong_in_a_sink_is_told(damage: Callable[[list[Row]], list[Row]], words: str) -> None:
    assert words in " ".join(judge_rows(damage(exact()), exact(), EPOCHS, SENT))
    assert words in " ".join(judge_rows(exact(), damage(exact()), EPOCHS, SENT))


@pytest.mark.parametrize("epochs", [[1, 2, 1, 2], []], ids=["a second copy", "nobody"])
def test_an_older_writer_after_a_newer_one_is_told(epochs: list[int]) -> None:
    [problem] = judge_rows(exact(), exact(), epochs, SENT)
    assert f"an older one after a newer one: {epochs}" in problem
