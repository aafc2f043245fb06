"""Compact lists of checkpoint numbers: a stream has a hundred thousand of them in one run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self

MOST_LISTED = 1000
"""Longest list of single numbers."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """Ascending numbers: how many, the first and the last, and each of the newest `MOST_LISTED`."""

    newest: tuple[int, ...] = ()
    count: int = 0
    first: int = 0

    @classmethod
    def of(cls, numbers: Iterable[int]) -> Self:
        """Return the numbers of an ascending iterable."""
        found = tuple(numbers)
        return cls(found[-MOST_LISTED:], len(found), found[0] if found else 0)

    def plus(self, *numbers: int) -> Numbers:
        """With further numbers, which come after these."""
        if not numbers:
            return self
        newest = (*self.newest, *numbers)[-MOST_LISTED:]
        return Numbers(newest, self.count + len(numbers), self.first or numbers[0])

    @property
    def last(self) -> int:
        """The newest; 0: there is none."""
        return self.newest[-1] if self.newest else 0

    def __contains__(self, number: int) -> bool:
        """Return whether a number is one of these. Numbers that are not kept one by one match by range."""
        return number in self.newest or (bool(self.newest) and self.first <= number < self.newest[0])

    def to_json(self) -> dict[str, Any]:
        """Return plain data for other tasks. `numbers` is None when there are too many, so a part cannot pass for the
        whole.
        """
        listed = list(self.newest) if self.count == len(self.newest) else None
        return {"numbers": listed, "count": self.count, "first": self.first, "last": self.last}

    def __str__(self) -> str:
        if self.count == len(self.newest):
            return numbers_text(self.newest)
        return f"{self.count:,} from {self.first} to {self.last}"


def count_text(count: int, singular: str, plural: str = "") -> str:
    """Return a count with its noun: `1 row`, `2,345 rows`. `plural` is by default `singular` with an s."""
    return f"{count:,} {singular if count == 1 else plural or f'{singular}s'}"


def numbers_text(numbers: Iterable[int]) -> str:
    """`3, 5 to 7`, of ascending numbers."""
    found = list(numbers)
    begins = [0, *(at for at, (one, other) in enumerate(pairwise(found), 1) if other != one + 1)]
    ranges = [found[begin:end] for begin, end in zip(begins, [*begins[1:], len(found)], strict=True)]
    return ", ".join(
        ", ".join(map(str, each)) if len(each) < 3 else f"{each[0]} to {each[-1]}" for each in ranges if each
    )
