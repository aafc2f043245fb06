"""Attempts begin a new pipeline at the same moment: what a look does not find, somebody may make before it is made."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import pytest

from airflow_ft.core.errors import FencedError, SinkUnavailableError
from airflow_ft.core.model import Outcome, Plan, Vote
from airflow_ft.testing.kills import calls_at

if TYPE_CHECKING:
    from airflow_ft.testing.world import World

_ROWS = 4
_ROUNDS = 3
_AT_ONCE = (4, 1, 5, 2, 3)
_FIRST, _LATE, _NEWEST = 1, 3, 6
_FURTHER = (0, 3)
"""Calls from the one before which an older attempt comes to the one before which the newest one does: none; or a look
for a head, which locks nothing where there is none, then what the older one has made is read, and changed.
"""
_MANY = 48
_PATIENCE = 2
"""So many times as long as an attempt takes alone others are waited for: one that stands still may hold their lock."""
_SHORT = 0.05
_LONG = 180.0


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
        """Attempt 3 stands still before any of its calls, while 1 begins, and before a later one, while 6 does."""
        patience = max(_SHORT, _PATIENCE * _seconds_alone(world))

        def are_overtaken(at: int) -> bool:
            return all(_is_overtaken(world, at, at + more, patience) for more in _FURTHER)

        for _ in calls_at(self.places, are_overtaken, _MANY):
            pass


def _seconds_alone(world: World) -> float:
    plan, before = _begun(world)
    attempt, began = _Attempt(world, plan, _NEWEST), time.monotonic()
    attempt.start()
    attempt.end()
    taken = time.monotonic() - began
    _newest_delivers(world, plan, [attempt], before)
    return taken


def _is_overtaken(world: World, first: int, second: int, patience: float) -> bool:
    """False: it does not make so many calls that it stands still before the first of these."""
    plan, before = _begun(world)
    stops = _Stops([first, second])
    late = _Attempt(world, plan, _LATE, stops=stops)
    others = [_Attempt(world, plan, number) for number in (_FIRST, _NEWEST)]
    late.start()
    stood = stops.wait(first, late)
    others[0].start()
    others[0].end(patience)
    if second != first:
        stops.go_on()
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
    world.target = world.target.anew()
    world.pipeline, world.predecessor = f"conformance-{uuid.uuid4().hex[:8]}", 0
    before = world.target.ids()
    world.number = 0
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
        assert world.target.ids() == before
    assert world.commit(plan, vote, newest.number).outcome is Outcome.COMMITTED
    first = 1 + max(before, default=0)
    assert world.target.ids() == [*before, *range(first, first + _ROWS)]
    world.close()


@dataclass
class _Stops:
    """Calls before which an attempt stands still."""

    calls: Collection[int]
    seen: int = 0
    standing: int = -1
    changed: threading.Condition = field(default_factory=threading.Condition)

    def reached(self) -> None:
        """The next call is about to be made."""
        with self.changed:
            mine, self.seen = self.seen, self.seen + 1
            if mine in self.calls:
                self.standing = mine
                self.changed.notify_all()
                self.changed.wait_for(lambda: self.standing != mine, _LONG)

    def wait(self, call: int, attempt: _Attempt) -> bool:
        """Returns when it stands still before this call, or has ended (False)."""
        with self.changed:
            while self.standing != call and attempt.is_at_work:
                self.changed.wait(0.01)
            return self.standing == call

    def go_on(self) -> None:
        """Up to the next stop."""
        with self.changed:
            self.standing = -1
            self.changed.notify_all()

    def open(self) -> None:
        """It does not stand still any more."""
        self.calls = ()
        self.go_on()


class _Attempt:
    """`prepare` in a thread."""

    def __init__(
        self,
        world: World,
        plan: Plan,
        number: int,
        gate: threading.Barrier | None = None,
        stops: _Stops | None = None,
    ) -> None:
        self.number = number
        self.vote: Vote | None = None
        self.error: Exception | None = None
        self._world, self._plan, self._gate, self._stops = world, plan, gate, stops
        self._thread = threading.Thread(target=self._prepare, daemon=True)

    @property
    def is_at_work(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
        self._thread.start()

    def end(self, seconds: float = _LONG) -> None:
        """Waits for its end; within a long time AssertionError when it does not come."""
        self._thread.join(seconds)
        assert seconds < _LONG or not self.is_at_work, f"attempt {self.number} does not end"

    def _prepare(self) -> None:
        if self._gate is not None:
            self._gate.wait(_LONG)
        try:
            if self._stops is None:
                self.vote = self._world.prepare(self._plan, self.number)
                return
            with self._world.target.telling(self._stops.reached, str(self._world.folder)) as connection:
                self.vote = self._world.prepare(self._plan, self.number, connection=connection)
        except Exception as error:
            self.error = error
