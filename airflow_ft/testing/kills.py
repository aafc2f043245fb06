"""A process is killed (SIGKILL) at each call that it makes, and another one settles."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import pytest

from airflow_ft.protocol.model import Plan, Promise
from airflow_ft.protocol.votes import Outcome, Vote
from airflow_ft.testing.relay import Fate

if TYPE_CHECKING:
    from airflow_ft.testing.world import World

_FEW = 4
_MANY = 1_000


def calls_at(places: tuple[int, int], happens: Callable[[int], bool], most: float = math.inf) -> Iterator[int]:
    """Yield the calls at which something happened: the first one and every further one, as `places` of the kit.

    If there are too few calls, the first one is halved. Skips when there is none. From `most` on, the calls that are
    tried are further and further apart: a step may make thousands.
    """
    (at, further), tried = places, False
    further |= 1  # what happens depends on `at % 2` and `at % 4`: an even distance would try one case only
    while True:
        if happens(at):
            yield at
            tried, at = True, at + (further if at < most else max(further, at // 4 | 1))
        elif tried or at == 0:
            break
        else:  # there are fewer calls
            at //= 2
    if not tried:
        pytest.skip("none of its calls is seen: neither a server's, nor of SQLite, nor changes of files")


class KillsConformance:
    """The case.

    Calls of a server's client are killed while the client waits for the server. At even places the server has not
    received the request, at odd ones it has done it. Other calls are killed before each (`airflow_ft.testing.calls`).
    """

    places: ClassVar[tuple[int, int]] = (0, 1)
    """Which calls are tried: the first, and how many further the next one is. (0, 1): all. 24 counts as 25."""

    @pytest.mark.parametrize("step", ["prepare", "commit", "abort"])
    def test_a_step_killed_at_any_call_is_settled_by_another_process(self, world: World, step: str) -> None:
        first = world.plan()
        world.deliver(first)
        there = world.ids_of(first.number)
        world.commit_point = step != "prepare"  # where another participant decides, it tries its rows, too
        is_killed = partial(self._is_killed, world, step, there)
        for killed, at in enumerate(calls_at(self.places, is_killed), 1):
            assert killed < _MANY
            if killed == 1 and self.places[1] > 1:  # also the other fate: a short step has no further place
                is_killed(at ^ 1)

    def _is_killed(self, world: World, step: str, there: list[int], at: int) -> bool:
        """Kill one number of two segments at this call, check and settle it. False: it makes fewer calls."""
        world.number += 2
        table, number = world.table(world.number * 1_000, _FEW), world.number
        parts = table.slice(0, _FEW // 2), table.slice(_FEW // 2)
        plan = world.plan_of(number, world.segment(number - 1, parts[0]), world.segment(number, parts[1]))
        vote = None if step == "prepare" else world.prepare(plan)
        killed = _is_killed_at(world, plan, vote, step, at)
        before, after = list(there), [*there, *table["id"].to_pylist()]
        seen, where = world.target.ids(), f"{step} was killed at call {at}"
        if step != "commit":
            assert seen == before, f"{where}, and the visible rows have changed: {seen}, before {before}"
        elif world.target.at_once:
            assert seen in (before, after), f"{where}, and left a part of its rows visible: {seen}"
        else:
            once = set(before) <= set(seen) <= set(after) and len(set(seen)) == len(seen)
            assert once, f"{where}, and left other rows than some of its own, each once: {seen}"
        came = _settle(world, plan, vote, step, at)
        world.shows(after if came else before, where)
        if came:
            there[:] = after
            world.predecessor = plan.number
        world.close()
        return killed


def _is_killed_at(world: World, plan: Plan, vote: Vote | None, step: str, at: int) -> bool:
    """In a process of its own; whether it was killed."""
    with world.target.losing(Fate.HOLD_REPLY if at % 2 else Fate.HOLD_REQUEST, at // 2) as way:
        if way is None:
            outcome = world.process(plan, vote, step=step, stop="kill at a call", at=at).wait()
            assert outcome == "" or outcome.startswith("done"), outcome
            return outcome == ""
        connection, is_held = way
        process = world.process(plan, vote, step=step, connection=connection)
        try:
            process.wait_until(is_held)
            if not is_held():
                outcome = process.wait()
                assert outcome.startswith("done"), outcome
        finally:
            process.kill()
        assert is_held() or at > 0, "it has asked the server for something"
        return is_held()


def _settle(world: World, plan: Plan, vote: Vote | None, step: str, at: int) -> bool:
    """By what may follow: an abort of what is not decided, else a commit. Whether the rows came."""
    decides = world.participant_plan().promise is Promise.ATOMIC
    if step == "abort" or (at % 4 > 1 and (step == "prepare" or decides)):
        aborted = world.abort(plan)
        assert aborted.outcome is Outcome.ABORTED or (step == "commit" and decides)
        if step == "abort" and decides:
            assert world.commit(plan, vote).outcome is Outcome.ABORTED
        return aborted.outcome is Outcome.COMMITTED
    assert world.commit(plan, vote or world.prepare(plan)).outcome is Outcome.COMMITTED
    return True
