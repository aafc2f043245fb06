"""The judge of the stage `savepoints` sees what it is there to see."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.chaos.savepoints.run import KEYS, PARTITIONS, Row, Start, judge_piece

START = Start((10, 8), Counter())


def piece(to: int) -> list[Row]:
    """All numbers behind the start, with places that go on where those before it end."""
    before = Counter(n % KEYS for n in range(to) if START.holds(n))
    rows = []
    for n in range(to):
        if not START.holds(n):
            before[n % KEYS] += 1
            rows.append((n, n % KEYS, before[n % KEYS], 0.5))
    return rows


def test_the_judge_accepts_rows_that_continue_from_a_savepoint() -> None:
    assert START.offsets == (10, 8) and PARTITIONS == 2
    assert judge_piece(START, piece(60), "a piece") == []
    assert judge_piece(START, [], "nothing came since") == []


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda rows: rows[1:], "does not go on at"),
        (lambda rows: [row for row in rows if row[0] != 30], "does not go on at"),
        (lambda rows: [*rows, (*rows[5][:3], 0.7)], "1 are duplicated"),
        (lambda rows: [(0, 0, 9, 0.5), *rows], "does not go on at"),
        (lambda rows: [(n, k, place - (k == 3), r) for n, k, place, r in rows], "the places of key 3 do not go on"),
        (lambda rows: [(n, k, place + (k == 3), r) for n, k, place, r in rows], "the places of key 3 do not go on"),
    ],
    ids=["left out at the start", "left out", "duplicated", "from before the savepoint", "older state", "newer state"],
)
def test_what_is_wrong_in_a_piece_is_told(damage: object, words: str) -> None:
    assert callable(damage)
    assert words in " ".join(judge_piece(START, damage(piece(60)), "a piece"))
