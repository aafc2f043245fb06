"""Orphans: what a lost decision log left in a sink at unfinished numbers. `airflow ft adopt` reports them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class OrphanKind(StrEnum):
    """Kind of orphan in a sink."""

    COMMITTED = "committed"  # a branch whose rows are visible, of a number that was not delivered as a whole
    ABORTED = "aborted"  # a tombstone: nothing is visible
    PREPARED = "prepared"  # durable and invisible; it keeps its locks until it is ended


class PreparedEnding(StrEnum):
    """End of rows that were left prepared, chosen by a person."""

    COMMIT = "commit"
    ROLLBACK = "rollback"


@dataclass(frozen=True, slots=True)
class Orphan:
    """One branch of a former owner, or with `branch` "" a whole number.

    `number` is 0 when it cannot be known. `of` is how many branches the number has (0: not known). `text` is for
    people. `commit` and `roll_back` are statements that end prepared rows ("": the sink has none).
    """

    number: int
    branch: str
    kind: OrphanKind
    installation: str
    text: str
    of: int = 0
    commit: str = ""
    roll_back: str = ""


def partly_there(orphans: Iterable[Orphan], ending: PreparedEnding | None) -> list[int]:
    """Numbers of which some rows are visible and others would be lacking for good, if `ending` came of the rest."""
    found = list(orphans)
    numbers = sorted({r.number for r in found if r.kind is OrphanKind.COMMITTED})
    partial = []
    for number in numbers:
        mine = [r for r in found if r.number == number and r.branch]
        will_be_there = {
            r.branch
            for r in mine
            if r.kind is OrphanKind.COMMITTED or (r.kind is OrphanKind.PREPARED and ending is PreparedEnding.COMMIT)
        }
        if len(will_be_there) != max(r.of for r in mine):
            partial.append(number)
    return partial
