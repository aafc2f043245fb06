"""Rows come once: repeated and concurrent commits, a killed or suspended process, many rows in bounded memory."""

from __future__ import annotations

import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from airflow_ft.protocol.errors import SinkUnavailableError
from airflow_ft.protocol.model import Promise
from airflow_ft.protocol.votes import Outcome, Proof
from airflow_ft.testing.world import PER_BATCH, ROWS, SINK

if TYPE_CHECKING:
    from airflow_ft.testing.world import World

_PASSES = 4
"""Times that a sink may read its rows."""
_FILES, _PER_FILE, _PER_BATCH = 4, 15_000, 5_000
_MANY_ROWS = (120_000, 1_000_000)
_GROWS_BY = 100
"""Megabytes. Rows as objects of Python would take ten times that; a client may keep some batches on their way."""
_COMMITTED = Outcome.COMMITTED


class DeliveriesConformance:
    """The cases."""

    patience: ClassVar[float]

    def test_what_is_committed_is_visible_once_and_proven(self, world: World) -> None:
        for number in (1, 2, 3):
            plan = world.plan()
            vote = world.prepare(plan)
            world.shows(world.ids_of(*range(1, number)), "prepared rows are invisible")
            with suppress(SinkUnavailableError):  # what is prepared may have to be ended before it can be read
                assert world.participant(plan).proof(plan) is None
            proof = world.commit(plan, vote)
            expected = (plan.participants[0].name, number, _COMMITTED, plan.digest, 1, {SINK: ROWS})
            assert _fields(proof) == expected, "the proof that commit returns"
            world.shows(world.ids_of(*range(1, number + 1)))
            read = world.participant(plan).proof(plan)
            assert read is not None and _fields(read) == expected, "the proof that is read afterwards"
            world.predecessor = number

    def test_where_it_follows_nothing_is_visible_before_the_decision(self, world: World) -> None:
        """Rows that a follower tries in prepare must not stay."""
        world.commit_point = False
        plan = world.plan()
        vote = world.prepare(plan)
        world.shows([])
        world.commit(plan, vote)
        world.shows(world.ids_of(1))

    def test_a_checkpoint_of_several_segments_comes_as_one(self, world: World) -> None:
        parts = [world.segment(number, world.table(number * ROWS)) for number in (1, 2, 3)]
        proof = world.deliver(world.plan_of(3, *parts))
        assert dict(proof.counts) == {SINK: 3 * ROWS}
        world.shows(world.ids_of(1, 2, 3), "a checkpoint has three segments")

    def test_of_what_the_job_returned_nothing_nothing_is_demanded(self, world: World) -> None:
        """It may leave an optional sink out: such a segment has no columns either."""
        world.deliver(world.plan_of(1, world.nothing(1)))
        world.deliver(world.plan_of(2, world.segment(2, world.table(2 * ROWS)), world.nothing(2)))
        world.deliver(world.plan_of(3, world.nothing(3)))
        world.shows(world.ids_of(2))

    def test_a_checkpoint_without_rows_is_delivered(self, world: World) -> None:
        empty = world.plan(world.table(0, 0))
        world.deliver(empty)
        read = world.participant(empty).proof(empty)
        assert read is not None and read.outcome is _COMMITTED, "a number without rows is never confirmed"
        world.deliver(world.plan())
        world.shows(world.ids_of(2))

    def test_to_commit_again_changes_nothing(self, world: World) -> None:
        plan = world.plan()
        vote = world.prepare(plan)
        same = world.participant(plan)
        first = same.commit(plan, world.fence(1, world.attempt()), vote)
        again = [
            same.commit(plan, world.fence(1, world.attempts), vote),
            world.commit(plan, vote),
            world.commit(plan, vote, epoch=2),
        ]
        assert {(proof.outcome, proof.digest) for proof in [first, *again]} == {(_COMMITTED, plan.digest)}
        world.shows(world.ids_of(1))

    def test_to_prepare_again_changes_nothing(self, world: World) -> None:
        plan = world.plan()
        world.prepare(plan)
        vote = world.prepare(plan)
        world.shows([])
        world.commit(plan, vote)
        world.prepare(plan)
        world.shows(world.ids_of(1))
        found = world.participant(plan).proof(plan)
        assert found is not None and found.outcome is _COMMITTED

    def _has_no_rows(self, world: World) -> bool:
        return world.participant_plan().promise is Promise.TWO_PHASE or world.target.adopts

    def _needs_rows(self, world: World) -> None:
        if self._has_no_rows(world):
            pytest.skip("no rows go by when it commits, between which something could happen to it")

    @pytest.mark.parametrize(
        "at", [0, ROWS // 2, ROWS], ids=["before the first row", "in the middle", "after the last"]
    )
    def test_a_killed_delivery_is_finished_by_the_next_process(self, world: World, at: int) -> None:
        self._needs_rows(world)
        world.deliver(world.plan())
        plan = world.plan()
        vote = world.prepare(plan)
        assert world.process(plan, vote, stop="kill", at=at).wait() == "", "it was killed"
        self._all_or_none(world, world.ids_of(1), world.ids_of(1, 2))
        again = range(at + ROWS, at + _PASSES * ROWS, ROWS) if at else ()
        for later in again:  # a sink may read its rows more than once, and change something in the last pass only
            if (ended := world.process(plan, vote, stop="kill", at=later).wait()) == "":
                self._all_or_none(world, world.ids_of(1), world.ids_of(1, 2))
            else:
                assert ended == "done: COMMITTED"
                break
        assert world.process(plan, vote).wait() == "done: COMMITTED"
        world.shows(world.ids_of(1, 2))

    def test_many_rows_come_all_or_none(self, world: World) -> None:
        """Killed before the last batch of a large segment, a process leaves none of its rows."""
        self._needs_rows(world)
        if not world.target.at_once:
            pytest.skip("it shows some rows before the others")
        world.deliver(world.plan())
        first, files = 1_000 * ROWS, range(_FILES)
        tables = [world.table(first + file * _PER_FILE, _PER_FILE, world.target.texts) for file in files]
        plan = world.plan_of(2, world.segment_of(2, *tables))
        vote = world.prepare(plan)
        last = _FILES * _PER_FILE - 1
        assert world.process(plan, vote, stop="kill", at=last, per_batch=_PER_BATCH).wait() == "", "it was killed"
        after = [*world.ids_of(1), *range(first, first + _FILES * _PER_FILE)]
        self._all_or_none(world, world.ids_of(1), after)
        proof = world.commit(plan, vote)
        assert (proof.outcome, dict(proof.counts)) == (_COMMITTED, {SINK: _FILES * _PER_FILE})
        world.shows(after)

    def _all_or_none(self, world: World, before: list[int], after: list[int]) -> None:
        """Check the rows that a killed process left. A sink that shows rows in chunks may show some, each once."""
        seen = world.target.ids()
        if world.target.at_once:
            there = f"neither the {len(before)} of before nor all {len(after)}"
            assert seen in (before, after), f"a killed process left {len(seen)} rows visible: {there}"
        else:
            more = set(seen) - set(after)
            assert not more, f"a killed process left rows that it was not given: {sorted(more)}"
            assert len(set(seen)) == len(seen), "a killed process left a row twice"
            assert set(before) <= set(seen), "a killed process has removed rows that were there before"

    @pytest.mark.parametrize(
        "at", [0, PER_BATCH, ROWS], ids=["before the first row", "in the middle", "after the last"]
    )
    def test_a_zombie_that_wakes_beside_its_successor_adds_no_rows(self, world: World, at: int) -> None:
        """The successor may have to wait until it has woken up, and then says so."""
        self._needs_rows(world)
        plan = world.plan()
        vote = world.prepare(plan)
        zombie = world.process(plan, vote, stop="freeze", at=at)
        try:
            zombie.wait_until_frozen()
            successor = world.process(plan, vote)
            try:
                ended = successor.wait(self.patience)
                assert ended == "done: COMMITTED" or ended.startswith(SinkUnavailableError.__name__), ended
            except subprocess.TimeoutExpired:  # it waits for the zombie
                pass
            zombie.resume()
            outcome = zombie.wait()
            successor.wait()
        finally:
            zombie.kill()
        assert outcome in ("", "done: COMMITTED") or outcome.startswith(("FencedError", "SinkUnavailableError")), (
            outcome
        )
        world.commit(plan, vote)
        world.shows(world.ids_of(1))

    def test_several_that_commit_at_once_deliver_once(self, world: World) -> None:
        plan = world.plan()
        vote = world.prepare(plan)
        processes = [world.process(plan, vote) for _ in range(3)]
        ended = [process.wait() for process in processes]
        allowed = ("done: COMMITTED", "FencedError", "SinkUnavailableError")
        assert all(outcome.startswith(allowed) for outcome in ended), ended
        assert world.commit(plan, vote).outcome is _COMMITTED
        world.shows(world.ids_of(1))

    def test_memory_does_not_grow_with_rows(self, world: World) -> None:
        """In the process that commits, up to a million; one is killed before its last rows. Prepare may use more."""
        used: list[float] = []
        for rows in _MANY_ROWS:
            plan = world.plan(world.table(10_000_000 * world.number, rows, world.target.texts))
            vote = world.prepare(plan)
            if not used and world.target.at_once and not self._has_no_rows(world):
                outcome = world.process(plan, vote, stop="kill", at=rows - 1, per_batch=2 * _PER_BATCH).wait(600)
                assert outcome == "", "it was killed"
                world.shows([], f"a process was killed before the last of {rows} rows")
            committing = world.process(plan, vote)
            assert committing.wait(600) == "done: COMMITTED"
            used.append(committing.megabytes())
            world.predecessor = plan.number
        assert used[1] < used[0] + _GROWS_BY, used
        assert len(world.target.ids()) == sum(_MANY_ROWS)


def _fields(proof: Proof) -> tuple[Any, ...]:
    return (proof.participant, proof.number, proof.outcome, proof.digest, proof.epoch, dict(proof.counts))
