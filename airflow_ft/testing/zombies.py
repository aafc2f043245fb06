"""A process sleeps between any two calls, and wakes up when its successor has delivered later numbers."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import pytest

from airflow_ft.protocol.errors import FencedError, SinkUnavailableError, TransientError
from airflow_ft.protocol.model import Plan, Promise
from airflow_ft.protocol.votes import Outcome, Vote
from airflow_ft.testing.kills import calls_at
from airflow_ft.testing.threads import Background, Stops, fastest, patience_for

if TYPE_CHECKING:
    from airflow_ft.protocol.connections import ConnectionInfo
    from airflow_ft.testing.world import World

_ROWS = 4
_MANY = 64
_OLD, _NEW = 1, 2
"""The epochs of the sleeper and of its successor."""


class ZombiesConformance:
    """The cases."""

    places: ClassVar[tuple[int, int]]

    @pytest.mark.parametrize("step", ["prepare", "trial", "commit", "abort"])
    def test_it_meets_later_numbers_when_it_wakes_up(self, world: World, step: str) -> None:
        """The successor finishes the number and delivers the next one. The sleeper changes nothing after that.

        `trial`: it prepares where another participant decides, so rows may be tried.
        """
        if step == "trial" and world.participant_plan().promise is not Promise.ATOMIC:
            pytest.skip("it never decides, so its prepare is such a trial")
        world.commit_point, step = step != "trial", "prepare" if step == "trial" else step
        alone = fastest(lambda: _Scene(world, step).succeed)
        for _ in calls_at(self.places, partial(_meets_later_numbers, world, step, patience_for(alone)), _MANY):
            pass

    @pytest.mark.parametrize("step", ["prepare", "commit", "abort"])
    def test_an_error_at_any_call_is_reported(self, world: World, step: str) -> None:
        """A call of the client raises. A step that returns without an error has done its work."""
        for _ in calls_at(self.places, partial(_fails, world, step), _MANY):
            pass


@dataclass
class _Scene:
    """A new pipeline whose number 1 is delivered, and number 2 is prepared (unless `step` is to prepare it)."""

    world: World
    step: str
    vote: Vote | None = None
    there: list[int] = field(default_factory=list)
    first: int = 0

    def __post_init__(self) -> None:
        self.world.close()
        self.world.begin()
        self.there = self.world.target.ids()
        self.first = 1 + max(self.there, default=0)
        self.world.deliver(self.plan_of(1))
        self.there += self.ids_of(1)
        self.plan = self.plan_of(2)
        if self.step != "prepare":
            self.vote = self.world.prepare(self.plan)

    def ids_of(self, number: int) -> list[int]:
        return [self.first + number * _ROWS + row for row in range(_ROWS)]

    def plan_of(self, number: int) -> Plan:
        return self.world.plan_of(number, self.world.segment(number, self.world.table(self.ids_of(number)[0], _ROWS)))

    def run_step(self, connection: ConnectionInfo | None = None) -> Vote | Outcome:
        """The step, by the old owner."""
        world = self.world
        fence, participant = world.fence(_OLD, world.attempt()), world.participant(self.plan, connection)
        return world.step(self.step, self.plan, fence, self.vote, participant)

    def settle(self, epoch: int, vote: Vote | None = None) -> None:
        """Finish number 2 as the decision log has decided: abort or commit it."""
        world, plan = self.world, self.plan
        if self.step == "abort":
            assert world.abort(plan, epoch).outcome is Outcome.ABORTED
            return
        vote = vote or self.vote or world.prepare(plan, epoch=epoch)
        assert world.commit(plan, vote, epoch=epoch).outcome is Outcome.COMMITTED
        world.predecessor = 2

    def succeed(self) -> None:
        """Settle number 2 and deliver number 3, by the new owner."""
        self.settle(_NEW)
        later = self.plan_of(3)
        vote = self.world.prepare(later, epoch=_NEW)
        assert self.world.commit(later, vote, epoch=_NEW).outcome is Outcome.COMMITTED

    def expected(self) -> list[int]:
        """Return the rows that a reader sees when number 2 is settled."""
        return self.there if self.step == "abort" else [*self.there, *self.ids_of(2)]


def _meets_later_numbers(world: World, step: str, patience: float, at: int) -> bool:
    """Return False when the step ends before it makes this call."""
    scene, stops = _Scene(world, step), Stops([at])

    def sleep() -> None:
        with world.target.watching(stops.reached, str(world.folder)) as connection:
            scene.run_step(connection)

    where = f"{step} slept before call {at}"
    sleeper, successor = Background("the sleeper", sleep), Background("the successor", scene.succeed)
    sleeper.start()
    slept = stops.wait(at, sleeper)
    successor.start()
    successor.end(patience)
    stops.open()
    sleeper.end()
    successor.end()
    for error in (sleeper.error, successor.error):
        if error is not None and not isinstance(error, FencedError | SinkUnavailableError):
            raise error
    assert not isinstance(successor.error, FencedError), where
    if successor.error is not None:  # it waited for the sleeper, and said so
        scene.succeed()
    seen = [*scene.expected(), *scene.ids_of(3)]
    world.shows(seen, where)
    head = world.participant(scene.plan).head(world.pipeline)
    assert head is not None and (head.epoch, head.number) == (_NEW, 3), f"{where}, and the head is {head} afterwards"
    with pytest.raises(FencedError):
        world.participant(scene.plan).prepare(scene.plan, world.fence(_OLD, world.attempt()))
    world.shows(seen, where)
    return slept


def _fails(world: World, step: str, at: int) -> bool:
    """Return False when the step ends before it makes this call."""
    scene = _Scene(world, step)
    done: Vote | Outcome | None = None
    with world.target.failing(at, str(world.folder)) as way:
        if way is None:
            pytest.skip("no call of its client can be made to fail")
        connection, has_failed = way
        with suppress(TransientError):
            done = scene.run_step(connection)
        failed = has_failed()
    where = f"{step} failed at call {at}, and returned {done}"
    seen = world.target.ids()
    if step != "commit":
        assert seen == scene.there, f"{where}; the visible rows have changed: {seen}, before {scene.there}"
    elif done is None:
        assert seen in (scene.there, scene.expected()), f"{where}; a part of its rows is visible: {seen}"
    else:
        assert (done, seen) == (Outcome.COMMITTED, scene.expected()), f"{where}; the visible rows are {seen}"
    if done is Outcome.ABORTED and world.participant_plan().promise is Promise.ATOMIC:
        assert world.commit(scene.plan, scene.vote).outcome is Outcome.ABORTED, where
    scene.settle(_OLD, done if isinstance(done, Vote) else None)
    world.shows(scene.expected(), where)
    return failed
