"""An older process, another decision log, and a decision log or server from a backup are refused."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from airflow_ft.protocol.errors import FencedError, ForeignOwnerError, HaltError, StateConflictError
from airflow_ft.protocol.votes import Outcome
from airflow_ft.testing.world import ROWS, THEIRS

if TYPE_CHECKING:
    from airflow_ft.protocol.model import Plan
    from airflow_ft.testing.world import World


class FencingConformance:
    """The cases."""

    # --- who may write -------------------------------------------------------------------------------------------

    @pytest.mark.parametrize(("epoch", "attempt"), [(1, 9), (2, 1)], ids=["a later attempt", "a later epoch"])
    def test_an_older_owner_is_fenced(self, world: World, epoch: int, attempt: int) -> None:
        plan = world.plan()
        vote = world.prepare(plan, 2)
        newer = world.participant(plan)
        newest = world.prepare(plan, attempt, epoch)
        old = world.fence(1, 3) if epoch == 1 else world.fence(1, 99)
        for action in ("prepare", "commit", "abort"):
            with pytest.raises(FencedError) as caught:
                world.step(action, plan, old, vote, world.participant(plan))
            assert caught.value.remedy, f"{action}: it says what to do"
            world.shows([])
        newer.commit(plan, world.fence(epoch, attempt), newest)
        world.shows(world.ids_of(1))

    def test_another_decision_log_is_refused(self, world: World) -> None:
        first = world.plan()
        world.deliver(first)
        theirs = replace(world.plan(), installation=THEIRS)
        participant = world.participant(theirs)
        with pytest.raises(ForeignOwnerError, match="adopt"):
            participant.prepare(theirs, world.fence(9, 9, THEIRS))
        head = participant.head(world.pipeline)
        assert head is not None and head.installation == first.installation
        world.shows(world.ids_of(1))

    def test_a_decision_log_from_a_backup_is_refused(self, world: World) -> None:
        """It plans a number once more, with other rows; or behind a number that is older than the newest."""
        world.deliver(world.plan())
        world.deliver(world.plan())
        other = world.plan_of(2, world.segment(2, world.table(9 * ROWS)))
        older = replace_predecessor(world.plan_of(3, world.segment(3, world.table(9 * ROWS))), 1)
        for plan in (replace_predecessor(other, 1), older):
            with pytest.raises(HaltError):
                world.commit(plan, world.prepare(plan))
            world.shows(world.ids_of(1, 2))

    def test_a_server_from_a_backup_is_refused(self, world: World) -> None:
        """It has delivered less than the decision log knows."""
        world.deliver(world.plan())
        plan = replace_predecessor(world.plan_of(7, world.segment(7, world.table(9 * ROWS))), 6)
        with pytest.raises(HaltError):
            world.commit(plan, world.prepare(plan))
        world.shows(world.ids_of(1))

    def test_a_vote_notices_a_lost_delivery(self, world: World) -> None:
        """Before another sink shows rows. Numbers without a proof may still be undelivered, and are not demanded."""
        world.deliver(world.plan())
        plan = replace_predecessor(world.plan_of(7, world.segment(7, world.table(9 * ROWS))), 6)
        for proven in (0, 1):
            world.prepare(plan, delivered=proven)
        with pytest.raises(HaltError) as caught:
            world.prepare(plan, delivered=5)
        assert caught.value.remedy, "it says what to do"
        world.shows(world.ids_of(1))
        assert world.abort(plan).outcome is Outcome.ABORTED

    # --- another decision log takes over --------------------------------------------------------------------------

    def test_who_adopts_goes_on_and_the_former_owner_is_shut_out(self, world: World) -> None:
        first = world.plan()
        world.deliver(first)
        participant = world.participant(first)
        assert participant.orphans(world.pipeline, THEIRS) in ((), [])
        for _ in range(2):  # a process that dies in between adopts again
            participant.end_orphans(world.fence(5, 1, THEIRS), None)
        head = participant.head(world.pipeline)
        assert head is not None and head.installation != THEIRS, "it names its former owner until it is taken over"
        for attempt in (2, 3):
            participant.adopt(world.fence(5, attempt, THEIRS), 1)
        late = world.plan()
        with pytest.raises((ForeignOwnerError, FencedError)):
            world.commit(late, world.prepare(late))
        plan = world.plan_of(2, world.segment(2, world.table(2 * ROWS)), installation=THEIRS)
        world.commit(plan, world.prepare(plan, epoch=5), epoch=5)
        world.shows(world.ids_of(1, 2))

    def test_a_former_owner_who_has_gone_on_is_not_adopted_over(self, world: World) -> None:
        world.deliver(world.plan())
        plan = world.plan()
        world.deliver(plan)
        with pytest.raises(StateConflictError):
            world.participant(plan).adopt(world.fence(5, 1, THEIRS), 1)

    def test_who_adopts_late_takes_nothing_back(self, world: World) -> None:
        """Two processes adopt at the same moment; one of them has delivered when the other continues."""
        first = world.plan()
        world.deliver(first)
        late, participant = world.participant(first), world.participant(first)
        participant.end_orphans(world.fence(6, 0, THEIRS), None)
        before = participant.head(world.pipeline)
        with suppress(FencedError, StateConflictError):  # it may know already that it comes late
            late.end_orphans(world.fence(5, 0, THEIRS), None)
        assert participant.head(world.pipeline) == before
        participant.adopt(world.fence(6, 0, THEIRS), 1)
        world.predecessor = 1
        plan = world.plan_of(2, world.segment(2, world.table(2 * ROWS)), installation=THEIRS)
        world.commit(plan, world.prepare(plan, epoch=6), epoch=6)
        with suppress(FencedError):
            late.end_orphans(world.fence(5, 0, THEIRS), None)
        with pytest.raises(FencedError):
            late.adopt(world.fence(5, 0, THEIRS), 1)
        head = participant.head(world.pipeline)
        assert head is not None and (head.installation, head.epoch, head.number) == (THEIRS, 6, 2)
        world.predecessor = 2
        plan = world.plan_of(3, world.segment(3, world.table(3 * ROWS)), installation=THEIRS)
        world.commit(plan, world.prepare(plan, epoch=6), epoch=6)
        world.shows(world.ids_of(1, 2, 3))


def replace_predecessor(plan: Plan, predecessor: int) -> Plan:
    """The same plan behind another number."""
    return replace(plan, participants=tuple(replace(each, predecessor=predecessor) for each in plan.participants))
