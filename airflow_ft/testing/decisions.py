"""A decision is final: aborted numbers never come, committed ones stay, and pruned markers bring nothing back."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from airflow_ft.protocol.errors import FencedError, HaltError
from airflow_ft.protocol.model import Plan, Promise
from airflow_ft.protocol.participant import Expiring
from airflow_ft.protocol.votes import Outcome
from airflow_ft.testing.world import ROWS, SINK, WHY

if TYPE_CHECKING:
    from airflow_ft.testing.world import World

_COMMITTED, _ABORTED = Outcome.COMMITTED, Outcome.ABORTED


class DecisionsConformance:
    """The cases."""

    # --- a decision is final -------------------------------------------------------------------------------------

    def test_an_aborted_number_never_comes(self, world: World) -> None:
        plan = world.plan()
        vote = world.prepare(plan)
        aborted = world.abort(plan)
        assert (aborted.outcome, aborted.digest) == (_ABORTED, plan.digest)
        if world.participant_plan().promise is Promise.ATOMIC:  # others are not asked to commit what is not decided
            late = world.commit(plan, vote)
            assert late.outcome is _ABORTED and late.detail == WHY
            found = world.participant(plan).proof(plan)
            assert found is not None and found.outcome is _ABORTED
        world.shows([])
        again = world.participant(plan).abort(plan, world.fence(1, world.attempt()), {"message": "again"})
        assert again.outcome is _ABORTED
        if world.participant_plan().promise is Promise.ATOMIC:
            assert again.detail == WHY, "the abort marker stays as it is"
        following = world.plan_of(2, world.segment(2, world.table(2 * ROWS)))
        world.deliver(following)
        world.shows(world.ids_of(2))

    def test_a_number_that_was_aborted_and_forgotten_never_comes(self, world: World) -> None:
        """The abort marker is gone, so the floor has to replace it."""
        if world.participant_plan().promise is not Promise.ATOMIC:
            pytest.skip("it is not asked to commit what is not decided: its promise is not ATOMIC")
        plan = world.plan()
        vote = world.prepare(plan)
        participant = world.participant(plan)
        participant.abort(plan, world.fence(1, world.attempt()), WHY)
        participant.forget(world.fence(1, 1), plan.number)
        try:
            late = world.commit(plan, vote)
        except HaltError:  # it was settled and pruned long ago
            pass
        else:
            assert late.outcome is _ABORTED
        world.shows([])

    def test_a_committed_number_is_not_aborted(self, world: World) -> None:
        if world.participant_plan().promise is Promise.TWO_PHASE:
            pytest.skip("of a TWO_PHASE participant the decision log never asks it")
        plan = world.plan()
        world.deliver(plan)
        found = world.abort(plan)
        assert (found.outcome, dict(found.counts)) == (_COMMITTED, {SINK: ROWS})
        world.shows(world.ids_of(1))

    # --- what it remembers ---------------------------------------------------------------------------------------

    def test_it_remembers_what_was_delivered_last(self, world: World) -> None:
        plan = world.plan()
        participant = world.participant(plan)
        assert participant.head(world.pipeline) is None and participant.proof(plan) is None
        world.deliver(plan)
        assert not isinstance(participant, Expiring) or participant.remembers(world.pipeline)
        for one in (participant, world.participant(plan)):
            head = one.head(world.pipeline)
            assert head is not None and head.number == 1 and one.head("another") is None
        carried = world.plan()
        own = world.segment(3, world.table(3 * ROWS))
        world.deliver(world.plan_of(3, *carried.segments, own))
        assert participant.proof(carried) is None, "number 3 has carried its rows, and it has no marker of its own"

    def test_forgotten_markers_do_not_bring_rows_back(self, world: World) -> None:
        plans: list[Plan] = []
        while len(plans) < 3:
            plans.append(world.plan())
            world.deliver(plans[-1])
        participant = world.participant(plans[-1])
        for _ in range(2):
            participant.forget(world.fence(1, 1), 2)  # of the active epoch, whose attempts continue
            if isinstance(participant, Expiring):
                participant.renew(world.fence(1, 1))
        participant.forget(world.fence(1, 1), 0)
        kept = participant.proof(plans[2])
        assert kept is not None and kept.outcome is _COMMITTED
        try:
            late = world.commit(plans[1], world.prepare(plans[1]))
        except HaltError:  # it was settled and pruned long ago
            pass
        else:
            assert late.outcome is _COMMITTED, "what it has delivered since proves it"
        world.shows(world.ids_of(1, 2, 3))
        world.deliver(world.plan())
        world.shows(world.ids_of(1, 2, 3, 4))

    def test_an_older_epoch_forgets_nothing(self, world: World) -> None:
        plan = world.plan()
        vote = world.prepare(plan, 1, epoch=2)
        world.commit(plan, vote, 2, epoch=2)
        participant = world.participant(plan)
        with suppress(FencedError):  # or it has no markers to forget
            participant.forget(world.fence(1, 9), 1)
        if isinstance(participant, Expiring):
            with suppress(FencedError):  # or it is too young to be renewed
                participant.renew(world.fence(1, 9))
        assert world.participant(plan).proof(plan) is not None
