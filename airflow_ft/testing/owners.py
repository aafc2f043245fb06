"""Cases for the owner of a memory (pipeline, participant, plan), and for objects that serve several steps."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from airflow_ft.protocol.errors import FencedError, HaltError, SinkAccessError
from airflow_ft.protocol.model import Fence, Plan, Promise
from airflow_ft.protocol.votes import Outcome
from airflow_ft.testing.fencing import replace_predecessor
from airflow_ft.testing.world import OURS, ROWS, THEIRS, WHY

if TYPE_CHECKING:
    from airflow_ft.protocol.connections import ConnectionInfo
    from airflow_ft.testing.world import World

_COMMITTED, _ABORTED = Outcome.COMMITTED, Outcome.ABORTED
_LONG = "-and-a-name-as-long-as-it-may-be-of-"  # of 63 characters together
_SIMILAR = [("a-b", "a_b"), ("a", "a-1"), ("ab", "a_"), (f"{_LONG}one", f"{_LONG}two")]


class OwnersConformance:
    """The cases."""

    # --- an object serves for several steps, while other processes act ------------------------------------------------

    def test_one_object_delivers_several_numbers(self, world: World) -> None:
        plan = world.plan()
        participant = world.participant(plan)
        for number in (1, 2, 3):
            fence = world.fence(1, world.attempt())
            notes = participant.prepare(plan, fence)
            vote = replace(world.vote_without_prepare(plan), attempt=fence.attempt, prepared=fence.attempt, notes=notes)
            fence = world.fence(1, world.attempt())
            assert participant.commit(plan, fence, vote).outcome is _COMMITTED
            head = participant.head(world.pipeline)
            assert head is not None and (head.number, head.epoch) == (number, 1)
            world.predecessor = number
            plan = world.plan()
        world.shows(world.ids_of(1, 2, 3))

    def test_one_object_sees_what_others_have_done(self, world: World) -> None:
        first = world.plan()
        participant = world.participant(first)
        assert participant.head(world.pipeline) is None and participant.proof(first) is None
        world.deliver(first)
        found = participant.proof(first)
        assert found is not None and found.outcome is _COMMITTED
        second = world.plan()
        participant.prepare(second, world.fence(1, world.attempt()))
        world.commit(second, world.prepare(second))
        world.predecessor = 2
        head = participant.head(world.pipeline)
        assert head is not None and head.number == 2
        found = participant.proof(second)
        assert found is not None and found.outcome is _COMMITTED

    @pytest.mark.parametrize("step", ["prepare", "commit", "abort"])
    def test_one_object_is_fenced_between_its_steps(self, world: World, step: str) -> None:
        """A newer owner prepares after this object has done so, and has seen the head."""
        plan = world.plan()
        old, fence = world.participant(plan), world.fence(1, world.attempt())
        notes = old.prepare(plan, fence)
        newest = world.prepare(plan, 1, epoch=2)
        late = world.fence(1, world.attempt())
        vote = replace(newest, attempt=fence.attempt, prepared=fence.attempt, notes=notes)
        with pytest.raises(FencedError):
            world.step(step, plan, late, vote, old)
        world.shows([])
        world.commit(plan, newest, 2, epoch=2)
        world.shows(world.ids_of(1))

    def test_a_fenced_step_leaves_the_head_as_it_is(self, world: World) -> None:
        first = world.plan()
        world.commit(first, world.prepare(first, 1, epoch=3), 1, epoch=3)
        world.predecessor = first.number
        plan = world.plan()
        before = world.participant(plan).head(world.pipeline)  # not of what is prepared: some hold their head with it
        for attempt in (7, 8):
            with pytest.raises(FencedError):
                world.participant(plan).prepare(plan, world.fence(2, attempt))
        assert before is not None and world.participant(plan).head(world.pipeline) == before
        world.commit(plan, world.prepare(plan, 2, epoch=3), 2, epoch=3)
        world.shows(world.ids_of(1, 2))

    # --- a memory belongs to one pipeline and one participant ---------------------------------------------------------

    @pytest.mark.parametrize("names", _SIMILAR, ids=["dash and underscore", "a beginning", "a pattern", "long"])
    def test_pipelines_of_similar_names_are_apart(self, world: World, names: tuple[str, str]) -> None:
        """A head, a marker and a floor are of exactly one of them."""
        base, target, expected, delivered = world.pipeline, world.target, list[int](), list[Plan]()
        for number, name in enumerate(names, 1):
            world.pipeline, world.predecessor = f"{base}{name}", 0
            world.target = target if number == 1 else target.fresh()
            plan = world.plan_of(1, world.segment(1, world.table(number * ROWS)))
            participant = world.participant(plan)
            assert participant.head(world.pipeline) is None and participant.proof(plan) is None
            world.deliver(plan)
            expected = world.ids_of(number) if world.target is not target else [*expected, *world.ids_of(number)]
            world.shows(expected)
            delivered.append(plan)
        first, second = delivered
        if world.target is target:
            world.participant(first).forget(Fence(first.pipeline, OURS, 1, 1), 1)
            kept = world.participant(second).proof(second)
            assert kept is not None and kept.outcome is _COMMITTED, f"{first.pipeline} forgot for {second.pipeline}"
        world.participant(second).forget(world.fence(1, 1), 1)
        world.predecessor = 1
        plan = world.plan_of(2, world.segment(2, world.table(9 * ROWS)))
        world.deliver(plan)
        world.shows(sorted([*expected, *world.ids_of(9)]))

    @pytest.mark.parametrize("other", ["another", "upper"])
    def test_participants_of_one_database_are_apart(self, world: World, other: str) -> None:
        """Two connections of one pipeline lead there: each has a head and markers of its own."""
        first = world.target.connection
        if not world.target.sink.conn_id:
            pytest.skip("its participants are known by their places, not by connections")
        name = first.conn_id.upper() if other == "upper" else f"{first.conn_id}_2"
        second = replace(first, conn_id=name)
        mine = world.plan()
        world.deliver(mine)
        theirs = self._of_another_connection(world, second, 2, 2 * ROWS, predecessor=0)
        participant = world.participant(theirs, second)
        assert participant.head(world.pipeline) is None and participant.proof(theirs) is None
        self._deliver_through(world, theirs, second)
        world.shows(world.ids_of(1, 2))
        world.predecessor = 1
        aborted = world.plan_of(2, world.segment(2, world.table(3 * ROWS)))
        world.prepare(aborted)
        assert world.abort(aborted).outcome is _ABORTED
        theirs = self._of_another_connection(world, second, 3, 4 * ROWS, predecessor=2)
        self._deliver_through(world, theirs, second)
        world.shows(world.ids_of(1, 2, 4))
        world.participant(mine).forget(world.fence(1, 1), 3)
        kept = world.participant(theirs, second).proof(theirs)
        assert kept is not None and kept.outcome is _COMMITTED, "one participant has forgotten for the other"

    def _of_another_connection(
        self, world: World, connection: ConnectionInfo, number: int, first: int, predecessor: int
    ) -> Plan:
        sink = replace(world.target.sink, conn_id=connection.conn_id)  # type: ignore[type-var]
        plan = world.into(sink, world.plan_of(number, world.segment(number, world.table(first))))
        return replace_predecessor(plan, predecessor)

    def _deliver_through(self, world: World, plan: Plan, connection: ConnectionInfo) -> None:
        vote = world.prepare(plan, connection=connection)
        fence = world.fence(1, world.attempt())
        assert world.participant(plan, connection).commit(plan, fence, vote).outcome is _COMMITTED

    # --- a marker belongs to one plan ---------------------------------------------------------------------------------

    @pytest.mark.parametrize("step", ["prepare", "commit", "abort", "proof"])
    def test_a_marker_of_other_rows_proves_nothing(self, world: World, step: str) -> None:
        """The number was delivered with other rows, so the decision log is an older one."""
        plan = world.plan()
        vote = world.prepare(plan)
        world.commit(plan, vote)
        other = world.plan_of(1, world.segment(1, world.table(5 * ROWS)))
        assert other.digest != plan.digest
        participant, fence = world.participant(other), world.fence(1, world.attempt())
        decides = world.participant_plan().promise is not Promise.TWO_PHASE
        if step == "abort" and not decides:
            pytest.skip("of a TWO_PHASE participant the decision log never asks it")
        try:
            if step == "prepare":
                participant.prepare(other, fence)
            elif step == "commit":
                assert participant.commit(other, fence, vote).digest == plan.digest, "it proves the rows that are there"
            elif step == "abort":
                participant.abort(other, fence, WHY)
            else:
                found = participant.proof(other)
                assert found is None or found.digest == plan.digest
        except HaltError:
            pass
        else:
            assert step in ("prepare", "proof"), f"{step} of other rows is refused"
        world.shows(world.ids_of(1))
        kept = world.participant(plan).proof(plan)
        assert kept is not None and (kept.outcome, kept.digest) == (_COMMITTED, plan.digest)

    # --- adoption -----------------------------------------------------------------------------------------------------

    def test_an_adopted_number_is_the_last_delivered_one(self, world: World) -> None:
        """Later numbers are delivered, and no number up to it can come again."""
        for _ in range(2):
            world.deliver(world.plan())
        last = world.plan_of(2, world.segment(2, world.table(2 * ROWS)))
        participant = world.participant(last)
        participant.end_orphans(world.fence(5, 1, THEIRS), None)
        participant.adopt(world.fence(5, 2, THEIRS), 2)
        head = participant.head(world.pipeline)
        assert head is not None and (head.installation, head.epoch, head.number) == (THEIRS, 5, 2)
        for number, predecessor in ((2, 1), (3, 1)):
            world.predecessor = predecessor
            wrong = world.plan_of(number, world.segment(number, world.table(7 * ROWS)), installation=THEIRS)
            with pytest.raises(HaltError):
                world.commit(wrong, world.prepare(wrong, epoch=5), epoch=5)
            world.shows(world.ids_of(1, 2))
        world.predecessor = 2
        right = world.plan_of(3, world.segment(3, world.table(3 * ROWS)), installation=THEIRS)
        world.commit(right, world.prepare(right, epoch=5), epoch=5)
        world.shows(world.ids_of(1, 2, 3))

    def test_a_new_pipeline_is_adopted_at_a_number(self, world: World) -> None:
        """The sink has forgotten all of it, or is a new one."""
        plan = world.plan_of(8, world.segment(8, world.table(8 * ROWS)))
        try:
            world.participant(plan).adopt(world.fence(3, 1), 7)
        except SinkAccessError:
            pytest.skip("it has to be prepared once before it can be adopted")
        world.predecessor = 6
        wrong = world.plan_of(7, world.segment(7, world.table(7 * ROWS)))
        with pytest.raises(HaltError):
            world.commit(wrong, world.prepare(wrong, epoch=3), epoch=3)
        world.predecessor = 7
        right = world.plan_of(8, world.segment(8, world.table(8 * ROWS)))
        world.commit(right, world.prepare(right, epoch=3), epoch=3)
        world.shows(world.ids_of(8))
