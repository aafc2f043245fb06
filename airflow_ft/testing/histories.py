"""Longer histories: numbers with several digits, an aborted number that comes again, steps that fence, what is left."""

from __future__ import annotations

import gc
import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_ft.protocol.errors import FencedError, HaltError, StateConflictError
from airflow_ft.protocol.model import Promise
from airflow_ft.protocol.orphans import OrphanKind
from airflow_ft.protocol.votes import Outcome
from airflow_ft.testing.world import OURS, ROWS, THEIRS, WHY

if TYPE_CHECKING:
    from airflow_ft.testing.world import World

_NUMBERS = (9, 10, 11, 100)
"""As texts they have another order."""
_ROUNDS = 4
_DESCRIPTORS = Path("/proc/self/fd")


class HistoriesConformance:
    """The cases."""

    def test_numbers_and_epochs_are_compared_as_numbers(self, world: World) -> None:
        world.attempts = 8
        expected: list[int] = []
        for number in _NUMBERS:
            plan = world.plan_of(number, world.segment(number, world.table(number * ROWS)))
            world.prepare(plan, epoch=number)
            vote = world.prepare(plan, epoch=number)
            for epoch, attempt in ((number - 1, 99), (number, world.attempts - 1)):
                with pytest.raises(FencedError):
                    world.participant(plan).prepare(plan, world.fence(epoch, attempt))
            world.commit(plan, vote, epoch=number)
            expected += world.ids_of(number)
            world.shows(expected, f"number {number} is delivered by epoch {number}")
            head = world.participant(plan).head(world.pipeline)
            assert head is not None and (head.epoch, head.number) == (number, number), f"the head is {head}"
            proof = world.participant(plan).proof(plan)
            assert proof is not None and proof.epoch == number, (
                f"epoch {number} has delivered, and the proof is {proof}"
            )
            world.predecessor = number
        last = _NUMBERS[-1]
        participant = world.participant(plan)
        participant.forget(world.fence(last, world.attempts), _NUMBERS[0])
        kept = participant.proof(plan)
        assert kept is not None and kept.outcome is Outcome.COMMITTED, f"to forget 9 has forgotten {last}"
        world.predecessor = _NUMBERS[-2]
        older = world.plan_of(last + 1, world.segment(last + 1, world.table((last + 1) * ROWS)))
        with pytest.raises(HaltError):
            world.commit(older, world.prepare(older, epoch=last), epoch=last)
        world.shows(expected, "a plan expects 11 to be the last number, and 100 is")

    def test_an_aborted_number_stays_aborted(self, world: World) -> None:
        """It is prepared once more, and committed late: before the next number is delivered, and after that."""
        if world.participant_plan().promise is not Promise.ATOMIC:
            pytest.skip("it is not asked to commit what is not decided: its promise is not ATOMIC")
        world.deliver(world.plan())
        plan = world.plan()
        participant = world.participant(plan)
        world.prepare(plan)
        assert participant.abort(plan, world.fence(1, world.attempt()), WHY).outcome is Outcome.ABORTED
        head = participant.head(world.pipeline)
        assert head is not None and head.number == 1, f"number 2 is aborted, and the head says {head}"
        assert world.commit(plan, world.prepare(plan)).outcome is Outcome.ABORTED, "it was prepared after its abort"
        world.shows(world.ids_of(1), "number 2 is aborted")
        following = world.plan()
        world.deliver(following)
        world.shows(world.ids_of(1, 3), "number 2 is aborted, and number 3 is delivered")
        with suppress(HaltError):  # it may only know that it was settled long ago
            late = world.commit(plan, world.prepare(plan))
            assert late.outcome is Outcome.ABORTED, "number 3 was delivered after its abort"
        world.shows(world.ids_of(1, 3), "the aborted number 2 is committed late")

    def test_a_floor_is_never_lowered(self, world: World) -> None:
        if world.participant_plan().promise is not Promise.ATOMIC:
            pytest.skip("it is not asked to commit what is not decided: its promise is not ATOMIC")
        world.deliver(world.plan())
        plan = world.plan()
        vote = world.prepare(plan)
        participant = world.participant(plan)
        participant.abort(plan, world.fence(1, world.attempt()), WHY)
        for floor in (2, 1):
            participant.forget(world.fence(1, 1), floor)
        with suppress(HaltError):
            assert world.commit(plan, vote).outcome is Outcome.ABORTED
        world.shows(world.ids_of(1), "number 2 was aborted and forgotten, and comes late")

    @pytest.mark.parametrize("step", ["commit", "abort"])
    def test_each_step_fences_older_owners(self, world: World, step: str) -> None:
        """A newer owner finishes a number that it has not prepared itself."""
        if step == "commit" and world.participant_plan().promise is Promise.TWO_PHASE:
            pytest.skip("its commit ends what an older owner has prepared; the next prepare fences that one")
        plan = world.plan()
        vote = world.prepare(plan)
        if step == "commit":
            world.commit(plan, vote, epoch=2)
            world.predecessor = 1
        else:
            world.abort(plan, 2)
        following = world.plan()
        with pytest.raises(FencedError):
            world.prepare(following)
        before = world.ids_of(1) if step == "commit" else []
        world.shows(before, "an older owner has prepared the next number")
        world.commit(following, world.prepare(following, epoch=2), epoch=2)
        world.shows([*before, *world.ids_of(2)])

    def test_marks_of_a_former_owner_stand_in_the_way(self, world: World) -> None:
        """It has aborted a number above the one with which it is taken over."""
        if world.participant_plan().promise is not Promise.ATOMIC:
            pytest.skip("its tombstones decide nothing: its promise is not ATOMIC")
        world.deliver(world.plan())
        plan = world.plan()
        world.prepare(plan)
        participant = world.participant(plan)
        participant.abort(plan, world.fence(1, world.attempt()), WHY)
        found = [(each.number, each.kind, each.installation) for each in participant.orphans(world.pipeline, THEIRS)]
        assert found == [(2, OrphanKind.ABORTED, OURS)], f"its orphans are {found}"
        assert not participant.orphans(world.pipeline, OURS), "its own marks are no orphans"
        participant.end_orphans(world.fence(5, 1, THEIRS), None)
        late = world.plan()
        with pytest.raises(FencedError):
            world.prepare(late)
        with pytest.raises(StateConflictError):
            participant.adopt(world.fence(5, 2, THEIRS), 1)
        participant.adopt(world.fence(5, 3, THEIRS), 2)
        world.predecessor = 2
        plan = world.plan_of(3, world.segment(3, world.table(3 * ROWS)), installation=THEIRS)
        world.commit(plan, world.prepare(plan, epoch=5), epoch=5)
        world.shows(world.ids_of(1, 3), "number 2 was aborted by the former owner")

    def test_a_closed_participant_holds_nothing(self, world: World) -> None:
        """Keep as many connections, files and threads after each round, and the variables and folder of the process."""
        if not _DESCRIPTORS.is_dir():
            pytest.skip("this system does not list the open files of a process")
        process = dict(os.environ), Path.cwd()
        held = []
        for _ in range(2 * _ROUNDS):
            plan = world.plan()
            world.deliver(plan)
            participant = world.participant(plan)
            assert participant.head(world.pipeline) is not None and participant.proof(plan) is not None
            with pytest.raises(FencedError):
                participant.prepare(plan, world.fence(0, 1))
            world.close()
            gc.collect()
            held.append((len(list(_DESCRIPTORS.iterdir())), threading.active_count()))
        for what, then, now in zip(("open files and connections", "threads"), held[_ROUNDS - 1], held[-1], strict=True):
            assert now < then + _ROUNDS, f"{what} of this process grow with each delivery: {held}"
        assert (dict(os.environ), Path.cwd()) == process, "it changes variables or the folder of its process"
