"""What the protocol demands of a participant, as tests which the author of a sink runs over a real server.

    from airflow_ft.testing import ParticipantConformance, Target

    class TestShelf(ParticipantConformance):
        @pytest.fixture
        def target(self) -> Iterator[Target]:
            ...

Everything is judged by `Target.ids`, which reads the server by a client of its own. A sink whose promise is ATOMIC
carries the commit point; with refused rows it is tried as one that follows, too.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.doctor import Check, Verdict
from airflow_ft.protocol.errors import (
    AirflowFtError,
    DeclinedError,
    FencedError,
    ForeignOwnerError,
    HaltError,
    SinkUnavailableError,
    StateConflictError,
    TransientError,
    UnfitTargetError,
)
from airflow_ft.protocol.model import Outcome, Plan, Promise, Proof, Vote
from airflow_ft.protocol.participant import Expiring, Participant
from airflow_ft.protocol.planning import plan_delivery
from airflow_ft.protocol.sink_spec import SinkSpec
from airflow_ft.protocol.verify import Delivered
from airflow_ft.sinks.doctor import examine, is_examined
from airflow_ft.sinks.registry import system
from airflow_ft.testing.bags import BagsConformance
from airflow_ft.testing.beginnings import BeginningsConformance
from airflow_ft.testing.histories import HistoriesConformance
from airflow_ft.testing.kills import KillsConformance
from airflow_ft.testing.letters import NOTHING_REFUSED, LettersConformance
from airflow_ft.testing.owners import OwnersConformance
from airflow_ft.testing.relay import Fate
from airflow_ft.testing.upserts import UpsertsConformance
from airflow_ft.testing.value_cases import ValuesConformance
from airflow_ft.testing.world import OURS, PER_BATCH, ROWS, SINK, THEIRS, Target, World
from airflow_ft.testing.zombies import ZombiesConformance
from airflow_ft.wal import open_wal

WHY = {"message": "a test of conformance"}
_MANY_TRIPS = 200
_FILES, _PER_FILE, _PER_BATCH = 4, 15_000, 5_000
_MANY_ROWS = (120_000, 1_000_000)
_GROWS_BY = 100
"""Megabytes. Rows as objects of Python would take ten times that; a client may keep some batches on their way."""
_COMMITTED, _ABORTED = Outcome.COMMITTED, Outcome.ABORTED


class ParticipantConformance(
    BagsConformance,
    BeginningsConformance,
    HistoriesConformance,
    KillsConformance,
    LettersConformance,
    OwnersConformance,
    UpsertsConformance,
    ValuesConformance,
    ZombiesConformance,
):
    """Subclass it, and give `target`."""

    patience: ClassVar[float] = 10.0
    """Seconds that a successor is given to end beside a process that stands still, before that one goes on."""

    @pytest.fixture
    def target(self) -> Iterator[Target]:
        """A new and empty one for each test."""
        raise NotImplementedError("a subclass gives its target")

    @pytest.fixture
    def world(self, target: Target, tmp_path: Path) -> Iterator[World]:
        made = World(target, tmp_path)
        yield made
        made.close()

    # --- rows come once ------------------------------------------------------------------------------------------

    def test_what_is_committed_is_visible_once_and_proven(self, world: World) -> None:
        for number in (1, 2, 3):
            plan = world.plan()
            vote = world.prepare(plan)
            world.shows(world.ids_of(*range(1, number)), "prepared rows are invisible")
            with suppress(SinkUnavailableError):  # what is prepared may have to be ended before it can be read
                assert world.participant(plan).proof(plan) is None
            proof = world.commit(plan, vote)
            told = (plan.participants[0].name, number, _COMMITTED, plan.digest, 1, {SINK: ROWS})
            assert _fields(proof) == told, "the proof that commit returns"
            world.shows(world.ids_of(*range(1, number + 1)))
            read = world.participant(plan).proof(plan)
            assert read is not None and _fields(read) == told, "the proof that is read afterwards"
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
    def test_a_process_that_is_killed_leaves_nothing_that_is_not_finished_by_the_next(
        self, world: World, at: int
    ) -> None:
        self._needs_rows(world)
        world.deliver(world.plan())
        plan = world.plan()
        vote = world.prepare(plan)
        assert world.process(plan, vote, stop="kill", at=at).wait() == "", "it was killed"
        self._all_or_none(world, world.ids_of(1), world.ids_of(1, 2))
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
    def test_a_process_that_wakes_up_beside_its_successor_adds_nothing(self, world: World, at: int) -> None:
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
            zombie.go_on()
            told = zombie.wait()
            successor.wait()
        finally:
            zombie.kill()
        assert told in ("", "done: COMMITTED") or told.startswith(("FencedError", "SinkUnavailableError")), told
        world.commit(plan, vote)
        world.shows(world.ids_of(1))

    def test_several_that_commit_at_once_deliver_once(self, world: World) -> None:
        plan = world.plan()
        vote = world.prepare(plan)
        processes = [world.process(plan, vote) for _ in range(3)]
        ended = [process.wait() for process in processes]
        allowed = ("done: COMMITTED", "FencedError", "SinkUnavailableError")
        assert all(told.startswith(allowed) for told in ended), ended
        assert world.commit(plan, vote).outcome is _COMMITTED
        world.shows(world.ids_of(1))

    # --- answers that never come ---------------------------------------------------------------------------------

    @pytest.mark.parametrize("fate", [Fate.LOSE_REQUEST, Fate.LOSE_REPLY], ids=["a request", "a reply"])
    @pytest.mark.parametrize("step", ["prepare", "commit", "abort"])
    def test_whatever_is_lost_on_the_way_the_next_one_finishes(self, world: World, step: str, fate: Fate) -> None:
        """Lose each round trip in turn, through the last one. A client without an answer may try again."""
        expected: list[int] = []
        for trip in range(_MANY_TRIPS):
            plan = world.plan()
            vote = None if step == "prepare" else world.prepare(plan)
            with world.target.losing(fate, trip) as way:
                if way is None:
                    pytest.skip("there is no way to its server on which something is lost")
                connection, is_lost = way
                through = world.participant(plan, connection)
                done: Vote | Outcome | None = None
                with suppress(TransientError):
                    done = self._step(world, through, step, plan, vote)
                through.close()
                lost = is_lost()
            if step == "commit" and done is not None:  # without an error it must be done
                world.shows([*expected, *world.ids_of(plan.number)], f"round trip {trip + 1}")
            vote = done if isinstance(done, Vote) else vote
            if step == "abort":
                if done is _ABORTED and world.participant_plan().promise is Promise.ATOMIC:
                    assert world.commit(plan, vote).outcome is _ABORTED, f"round trip {trip + 1}"
                aborted = world.participant(plan).abort(plan, world.fence(1, world.attempt()), WHY)
                assert aborted.outcome is _ABORTED
            else:
                assert world.commit(plan, vote or world.prepare(plan)).outcome is _COMMITTED
                expected += world.ids_of(plan.number)
                world.predecessor = plan.number
            world.shows(expected, f"round trip {trip + 1}")
            if not lost:
                assert trip > 0, "it has asked the server for something"
                return
        raise AssertionError(f"one {step} takes more than {_MANY_TRIPS} round trips")

    def _step(self, world: World, participant: Participant, step: str, plan: Plan, vote: Vote | None) -> Vote | Outcome:
        fence = world.fence(1, world.attempt())
        if step == "prepare":
            notes = dict(participant.prepare(plan, fence))
            return Vote(plan.participants[0].name, fence.attempt, fence.attempt, None, notes)
        if step == "commit":
            return participant.commit(plan, fence, vote).outcome
        return participant.abort(plan, fence, WHY).outcome

    # --- a decision is final -------------------------------------------------------------------------------------

    def test_an_aborted_number_never_comes(self, world: World) -> None:
        plan = world.plan()
        vote = world.prepare(plan)
        aborted = world.participant(plan).abort(plan, world.fence(1, world.attempt()), WHY)
        assert (aborted.outcome, aborted.digest) == (_ABORTED, plan.digest)
        if world.participant_plan().promise is Promise.ATOMIC:  # others are not asked to commit what is not decided
            late = world.commit(plan, vote)
            assert late.outcome is _ABORTED and late.detail == WHY
            found = world.participant(plan).proof(plan)
            assert found is not None and found.outcome is _ABORTED
        world.shows([])
        assert (
            world.participant(plan).abort(plan, world.fence(1, world.attempt()), {"message": "again"}).outcome
            is _ABORTED
        )
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
        found = world.participant(plan).abort(plan, world.fence(1, world.attempt()), WHY)
        assert (found.outcome, dict(found.counts)) == (_COMMITTED, {SINK: ROWS})
        world.shows(world.ids_of(1))

    # --- who may write -------------------------------------------------------------------------------------------

    @pytest.mark.parametrize(("epoch", "attempt"), [(1, 9), (2, 1)], ids=["a later attempt", "a later epoch"])
    def test_an_older_owner_is_fenced(self, world: World, epoch: int, attempt: int) -> None:
        plan = world.plan()
        vote = world.prepare(plan, 2)
        newer = world.participant(plan)
        newest = world.prepare(plan, attempt, epoch)
        old = world.fence(1, 3) if epoch == 1 else world.fence(1, 99)
        for act in ("prepare", "commit", "abort"):
            with pytest.raises(FencedError) as told:
                participant = world.participant(plan)
                if act == "prepare":
                    participant.prepare(plan, old)
                elif act == "commit":
                    participant.commit(plan, old, vote)
                else:
                    participant.abort(plan, old, WHY)
            assert told.value.remedy, f"{act}: it says what to do"
            world.shows([])
        newer.commit(plan, world.fence(epoch, attempt), newest)
        world.shows(world.ids_of(1))

    def test_another_installation_is_refused(self, world: World) -> None:
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

    # --- another installation takes over --------------------------------------------------------------------------

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

    # --- rows that cannot be taken ---------------------------------------------------------------------------------

    def test_a_column_that_does_not_fit_is_named_before_anything_is_visible(self, world: World) -> None:
        world.deliver(world.plan())
        strange = pa.table({"id": [1], "text": ["a"], "no_such_column": [1]})
        plan = world.plan(strange)
        try:
            vote = world.prepare(plan)
        except (DeclinedError, UnfitTargetError) as error:
            assert "no_such_column" in str(error) and error.remedy and error.sink == SINK
            world.shows(world.ids_of(1))
        else:  # it takes any column
            world.commit(plan, vote)
            world.shows(sorted([*world.ids_of(1), 1]))

    @pytest.mark.parametrize("carries", [True, False], ids=["it decides", "it follows"])
    def test_of_refused_rows_nothing_comes(self, world: World, carries: bool) -> None:
        """It says so in prepare, or when it commits: where it does not decide, a person has to say what follows."""
        if world.target.refused is None:
            pytest.skip(NOTHING_REFUSED)
        if carries and world.participant_plan().promise is not Promise.ATOMIC:
            pytest.skip("it never decides: its promise is not ATOMIC")
        world.commit_point = carries
        plan = world.plan(world.target.refused)
        with pytest.raises((DeclinedError, UnfitTargetError)) as told:
            world.commit(plan, world.prepare(plan))
        assert told.value.sink == SINK and told.value.remedy
        world.shows([])
        aborted = world.participant(plan).abort(plan, world.fence(1, world.attempt()), WHY)
        assert aborted.outcome is _ABORTED
        world.deliver(world.plan())
        world.shows(world.ids_of(2))

    # --- who looks from outside ------------------------------------------------------------------------------------

    @pytest.mark.parametrize("what", ["nothing", "loss", "double", "change"])
    def test_verify_finds_what_somebody_else_has_done(self, world: World, what: str) -> None:
        verification = system(world.target.sink.kind).part("verify")
        if verification is None:
            pytest.skip("it has no verification")
        first = world.plan()
        delivered = [Delivered(first, world.deliver(first), None)]
        planted = int(what != "nothing" and world.target.plant(what, ROWS + 7))
        if what != "nothing" and not planted:
            pytest.skip("nobody can do that there")
        second = world.plan()
        delivered.append(Delivered(second, world.deliver(second), delivered[0].proof))
        without = world.plan_of(3, world.nothing(3))
        delivered.append(Delivered(without, world.deliver(without), delivered[1].proof))
        [planned] = delivered[-1].plan.participants
        [report] = verification.verify(delivered, planned, world.target.connection, open_wal(), full=True)
        assert (report.error, report.expected, report.numbers) == ("", 2 * ROWS, (1, 2, 3))
        lost = planted if what in ("loss", "change") else 0
        assert (report.missing, report.repeated) == (lost, planted if what == "double" else 0)
        assert [each.number for each in report.differences] == [1] * bool(lost)
        if lost == 1 and (samples := report.differences[0].samples):
            assert f"row {ROWS + 7}" in f"{samples[0]} {report.differences[0].file}"

    def test_the_doctor_finds_nothing_wrong_where_nothing_is(self, world: World) -> None:
        world.deliver(world.plan())
        checks = self._examined(world, world.target.sink, world.target.connection, world.table(0))
        assert checks and [check for check in checks if check.verdict is Verdict.PROBLEM] == []

    def test_a_mistake_is_told_by_the_doctor_and_before_anything_is_visible(self, world: World) -> None:
        mistakes = world.target.mistaken()
        if not mistakes:
            pytest.skip("the target names no mistakes")
        for name, (sink, connection) in mistakes.items():
            checks = self._examined(world, sink, connection, world.table(0))
            told = [check for check in checks if check.verdict is Verdict.PROBLEM]
            assert told and all(check.text and check.remedy for check in told), name
            [planned] = plan_delivery({SINK: sink}).participants
            plan = replace(world.plan(), participants=(planned,))
            with pytest.raises(AirflowFtError) as raised:
                world.participant(plan, connection).prepare(plan, world.fence())
            assert raised.value.remedy, name
            if connection != world.target.connection:
                assert not isinstance(raised.value, DeclinedError), f"{name}: the rows are not at fault"
            for text in (str(raised.value), *(f"{check.text} {check.remedy}" for check in told)):
                assert not [one for one in _secrets(world.target.connection, connection) if one in text], name
            world.shows([])

    def _examined(self, world: World, sink: SinkSpec, connection: ConnectionInfo, rows: pa.Table) -> Sequence[Check]:
        if not is_examined(sink.kind):
            pytest.skip("it has no examination")
        [planned] = plan_delivery({SINK: sink}).participants
        reader = open_wal().open(world.segment(99, rows))
        return examine(world.pipeline, planned, connection, [reader], OURS)

    # --- many rows ---------------------------------------------------------------------------------------------------

    def test_memory_does_not_grow_with_rows(self, world: World) -> None:
        """In the process that commits, up to a million; one is killed before its last rows. Prepare may use more."""
        used: list[float] = []
        for rows in _MANY_ROWS:
            plan = world.plan(world.table(10_000_000 * world.number, rows, world.target.texts))
            vote = world.prepare(plan)
            if not used and world.target.at_once and not self._has_no_rows(world):
                told = world.process(plan, vote, stop="kill", at=rows - 1, per_batch=2 * _PER_BATCH).wait(600)
                assert told == "", "it was killed"
                world.shows([], f"a process was killed before the last of {rows} rows")
            committing = world.process(plan, vote)
            assert committing.wait(600) == "done: COMMITTED"
            used.append(committing.megabytes())
            world.predecessor = plan.number
        assert used[1] < used[0] + _GROWS_BY, used
        assert len(world.target.ids()) == sum(_MANY_ROWS)

    # --- errors ------------------------------------------------------------------------------------------------------

    def test_no_secret_is_in_an_error(self, world: World) -> None:
        secrets = _secrets(world.target.connection)
        if not secrets:
            pytest.skip("its connection has no secret")
        plan = world.plan()
        world.deliver(plan)
        with pytest.raises(AirflowFtError) as told:
            world.participant(plan).prepare(plan, world.fence(1, 99, THEIRS))
        assert not [one for one in secrets if one in str(told.value)]


def _fields(proof: Proof) -> tuple[Any, ...]:
    return (proof.participant, proof.number, proof.outcome, proof.digest, proof.epoch, dict(proof.counts))


def _secrets(*connections: ConnectionInfo) -> list[str]:
    """Passwords, also those in the extra, as Kafka's are."""
    in_extra = (text for one in connections for key, text in one.extra.items() if "password" in key)
    return [secret for secret in (*(one.password for one in connections), *in_extra) if secret]


def replace_predecessor(plan: Plan, predecessor: int) -> Plan:
    """The same plan behind another number."""
    return replace(plan, participants=tuple(replace(each, predecessor=predecessor) for each in plan.participants))
