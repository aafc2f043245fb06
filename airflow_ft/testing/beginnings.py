"""Attempts begin a new pipeline at the same moment: another one may create what a look did not find."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection
from typing import TYPE_CHECKING, ClassVar

import pytest

from airflow_ft.protocol.errors import FencedError, SinkUnavailableError
from airflow_ft.protocol.model import Plan
from airflow_ft.protocol.votes import Outcome, Vote
from airflow_ft.testing.kills import calls_at
from airflow_ft.testing.threads import LONG, Background, Stops, patience_for

if TYPE_CHECKING:
    from airflow_ft.testing.world import World

_ROWS = 4
_ROUNDS = 3
_AT_ONCE = (4, 1, 5, 2, 3)
_FIRST, _LATE, _NEWEST = 1, 3, 6
_FURTHER = (0, 3)
"""Calls between the places where an older attempt and the newest one come in: none, or three of them.

The three are a look for a head, which locks nothing if there is none, then a read of the older one's work, and a
change.
"""
_MEASURED = 3
"""Times that an attempt is measured. The first one includes imports, and others vary with the machine."""
_MANY = 48


class BeginningsConformance:
    """The cases. The newest attempt is able to deliver, and from then on no older one is."""

    places: ClassVar[tuple[int, int]]

    def test_of_several_that_begin_at_once_the_newest_delivers(self, world: World) -> None:
        for _ in range(_ROUNDS):
            plan, before = _begun(world)
            gate = threading.Barrier(len(_AT_ONCE))
            attempts = {number: _Attempt(world, plan, number, gate=gate) for number in _AT_ONCE}
            for attempt in attempts.values():
                attempt.start()
            for attempt in attempts.values():
                attempt.end()
            _newest_delivers(world, plan, attempts.values(), before)

    def test_one_that_looks_before_others_begin_lowers_none_of_them(self, world: World) -> None:
        """Suspend attempt 3 before any of its calls while 1 begins, and before a later one while 6 does."""
        patience = patience_for(min(_seconds_alone(world) for _ in range(_MEASURED)))

        def are_overtaken(at: int) -> bool:
            return all(_is_overtaken(world, at, at + more, patience) for more in _FURTHER)

        for _ in calls_at(self.places, are_overtaken, _MANY):
            pass


def _seconds_alone(world: World) -> float:
    """Return the seconds that the newest attempt of a new pipeline takes. Deliver its rows, so they lock nothing."""
    plan, before = _begun(world)
    attempt, began = _Attempt(world, plan, _NEWEST), time.monotonic()
    attempt.start()
    attempt.end()
    taken = time.monotonic() - began
    _newest_delivers(world, plan, [attempt], before)
    return taken


def _is_overtaken(world: World, first: int, second: int, patience: float) -> bool:
    """Return False if it makes fewer calls than the first of these."""
    plan, before = _begun(world)
    stops = Stops([first, second])
    late = _Attempt(world, plan, _LATE, stops=stops)
    others = [_Attempt(world, plan, number) for number in (_FIRST, _NEWEST)]
    late.start()
    stood = stops.wait(first, late)
    others[0].start()
    others[0].end(patience)
    if second != first:
        stops.resume()
        stops.wait(second, late)
    others[1].start()
    others[1].end(patience)
    stops.open()
    for attempt in (late, *others):
        attempt.end()
    _newest_delivers(world, plan, [late, *others], before)
    return stood


def _begun(world: World) -> tuple[Plan, list[int]]:
    """The first plan of a new pipeline, and what is there before."""
    world.begin()
    before = world.target.ids()
    return world.plan(world.table(1 + max(before, default=0), _ROWS)), before


def _newest_delivers(world: World, plan: Plan, attempts: Collection[_Attempt], before: list[int]) -> None:
    newest = max(attempts, key=lambda attempt: attempt.number)
    for attempt in attempts:
        allowed = SinkUnavailableError if attempt is newest else (SinkUnavailableError, FencedError)
        if attempt.error is not None and not isinstance(attempt.error, allowed):
            raise attempt.error
    vote = newest.vote or world.prepare(plan, newest.number)
    for older in (attempt for attempt in attempts if attempt is not newest):
        fence = world.fence(1, older.number)
        with pytest.raises(FencedError):
            world.participant(plan).prepare(plan, fence)
        if older.vote is not None:
            with pytest.raises(FencedError):
                world.participant(plan).commit(plan, fence, older.vote)
        world.shows(before)
    assert world.commit(plan, vote, newest.number).outcome is Outcome.COMMITTED
    first = 1 + max(before, default=0)
    world.shows([*before, *range(first, first + _ROWS)])
    world.close()


class _Attempt(Background):
    """`prepare` in a thread."""

    def __init__(
        self,
        world: World,
        plan: Plan,
        number: int,
        gate: threading.Barrier | None = None,
        stops: Stops | None = None,
    ) -> None:
        super().__init__(f"attempt {number}", self._prepare)
        self.number = number
        self.vote: Vote | None = None
        self._world, self._plan, self._gate, self._stops = world, plan, gate, stops

    def _prepare(self) -> None:
        if self._gate is not None:
            self._gate.wait(LONG)
        if self._stops is None:
            self.vote = self._world.prepare(self._plan, self.number)
            return
        with self._world.target.watching(self._stops.reached, str(self._world.folder)) as connection:
            self.vote = self._world.prepare(self._plan, self.number, connection=connection)
