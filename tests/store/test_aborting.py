from __future__ import annotations

import pytest

from airflow_ft.protocol.errors import ConfigurationError, FencedError, StateConflictError
from airflow_ft.protocol.failure import MOST_CHARACTERS
from airflow_ft.protocol.model import AfterAbort, CheckpointState, Promise, SparkPosition
from airflow_ft.protocol.pipelines import HaltReason, RequestKind
from airflow_ft.protocol.position import Position, is_kept
from airflow_ft.protocol.reasons import AbortReason
from tests.raising import raises
from tests.store.scene import LATER_RUN, PIPELINE, RUN, Scene, a_position, a_segment

S = CheckpointState


class TestAborts:
    @pytest.mark.parametrize("state", [S.TRIGGERED, S.STAGED, S.PREPARED])
    def test_what_is_not_decided_can_be_aborted(self, scene: Scene, state: S) -> None:
        scene.take()
        number = scene.trigger()
        if state is not S.TRIGGERED:
            scene.publish(number)
        if state is S.PREPARED:
            scene.prepare(number)
        assert scene.checkpoint(number).state is state
        aborted = scene.abort(number)
        assert (aborted.state, aborted.reason, aborted.message) == (S.ABORTED, AbortReason.DECLINED, "too long")
        # Of what was never published there are no rows to carry.
        assert aborted.after_abort is (None if state is S.TRIGGERED else AfterAbort.CARRIED)
        assert aborted.is_undelivered is (state is not S.TRIGGERED)
        assert scene.open_numbers() == ([] if state is S.TRIGGERED else [number])
        assert "ABORTED: DECLINED" in scene.event_texts(number)[-1]

    def test_a_message_of_any_length_is_cut(self, scene: Scene) -> None:
        scene.take()
        number = scene.trigger()
        text = "row " * 250_000
        scene.store.abort(PIPELINE, scene.epoch, number, AbortReason.DECLINED, text, AfterAbort.CARRIED)
        scene.store.halt(PIPELINE, HaltReason.TOKEN_LOST, text)
        halt = scene.store.pipeline(PIPELINE).halt
        assert halt is not None
        stored = (scene.checkpoint(number).message, halt.message, *scene.event_texts(number), *scene.event_texts())
        assert max(map(len, stored)) <= MOST_CHARACTERS and stored[0].startswith("row row")

    def test_an_abort_of_prepared_rows_requires_an_abort_marker(self, scene: Scene) -> None:
        (number,) = scene.stage()
        scene.prepare(number)
        with raises(StateConflictError, "abort_marker_missing", checkpoint=number, commit_point="db"):
            scene.abort(number, tombstoned=False)
        assert scene.checkpoint(number).state is S.PREPARED

    def test_where_the_log_decides_an_abort_is_the_decision(self, scene: Scene) -> None:
        scene.promises = {"log": Promise.REDO}
        (number,) = scene.stage()
        scene.prepare(number)
        assert scene.abort(number, tombstoned=False).state is S.ABORTED

    def test_an_aborted_one_stays_as_it_is(self, scene: Scene) -> None:
        (number,) = scene.stage()
        first = scene.abort(number)
        events = len(scene.event_texts())
        assert scene.abort(number, AfterAbort.REWOUND, number) == first
        assert len(scene.event_texts()) == events

    @pytest.mark.parametrize("state", [S.COMPLETED, S.SUBSUMED])
    def test_what_is_settled_is_not_aborted(self, scene: Scene, state: S) -> None:
        scene.stage(2)
        scene.complete(2, [1, 2])
        number = 2 if state is S.COMPLETED else 1
        with raises(StateConflictError, "checkpoint_state", state=state.value, to="ABORTED"):
            scene.abort(number)

    @pytest.mark.parametrize(("after", "rewind_from"), [(AfterAbort.REWOUND, None), (AfterAbort.REWOUND, 3)])
    def test_a_rewind_must_say_where_it_begins(self, scene: Scene, after: AfterAbort, rewind_from: int | None) -> None:
        scene.stage(3)
        with raises(ConfigurationError, "arguments_conflict", argument="rewind_from", value=rewind_from):
            scene.abort(2, after, rewind_from)
        with raises(ConfigurationError, "arguments_conflict", argument="rewind_from", value=1):
            scene.abort(2, AfterAbort.CARRIED, 1)
        assert scene.checkpoint(2).state is S.STAGED


class TestRollbacks:
    """A TWO_PHASE participant may hold prepared rows of a number that is ABORTED: nobody may forget that."""

    @pytest.fixture(autouse=True)
    def mix(self, scene: Scene) -> None:
        scene.promises = {"xa": Promise.TWO_PHASE, "held": Promise.TWO_PHASE, "log": Promise.REDO}

    def test_it_stays_open_until_each_has_rolled_back(self, scene: Scene) -> None:
        (number,) = scene.stage()
        scene.prepare(number)
        aborted = scene.abort(number, AfterAbort.REWOUND, number)
        assert aborted.rollback_pending
        assert scene.open_numbers() == [number]
        assert scene.attempt(number, "xa") > aborted.votes["xa"].attempt  # its own attempt, so that older ones stop
        assert scene.rolled_back(number, "xa").rollback_pending
        assert not scene.rolled_back(number, "held").rollback_pending
        assert scene.open_numbers() == []
        events = len(scene.event_texts())
        assert not scene.rolled_back(number, "xa").rollback_pending  # repeated: no effect
        assert len(scene.event_texts()) == events
        with raises(StateConflictError, "checkpoint_state", state="ABORTED"):
            scene.attempt(number, "xa")

    def test_an_attempt_without_a_vote_counts_too(self, scene: Scene) -> None:
        """It may have prepared and died before its vote."""
        (number,) = scene.stage()
        scene.plan(number)
        scene.attempt(number, "xa")
        assert scene.abort(number).rollback_pending
        assert not scene.rolled_back(number, "xa").rollback_pending

    @pytest.mark.parametrize("touched", [[], ["log"]])
    def test_no_rollback_is_pending_without_a_two_phase_attempt(self, scene: Scene, touched: list[str]) -> None:
        (number,) = scene.stage()
        scene.plan(number)
        for name in touched:
            scene.attempt(number, name)
        assert not scene.abort(number).rollback_pending

    def test_only_an_aborted_one_is_rolled_back(self, scene: Scene) -> None:
        (number,) = scene.stage()
        scene.prepare(number)
        scene.decide(number)
        with raises(StateConflictError, "checkpoint_state", state="COMMITTING"):
            scene.rolled_back(number, "xa")

    def test_an_older_epoch_records_nothing(self, scene: Scene) -> None:
        (number,) = scene.stage()
        scene.prepare(number)
        scene.abort(number)
        old = scene.epoch
        scene.take("other")
        with pytest.raises(FencedError):
            scene.store.record_rollback(PIPELINE, old, number, "xa")
        assert scene.checkpoint(number).rollback_pending


class TestRewinds:
    def test_a_rewind_marks_everything_undelivered_from_there_on(self, scene: Scene) -> None:
        scene.stage(2)
        scene.stage(5, LATER_RUN, continues=True)
        scene.complete(1)
        scene.abort(3)  # carried
        scene.plan(5, [3, 4, 5])  # 4 is SUBSUMED
        scene.prepare(6)
        triggered = scene.trigger(LATER_RUN)
        aborted = scene.abort(6, AfterAbort.REWOUND, 3)
        assert aborted.after_abort is AfterAbort.REWOUND
        states = {c.number: (c.state, c.after_abort) for c in scene.store.checkpoints(PIPELINE)}
        assert states == {
            1: (S.COMPLETED, None),
            2: (S.STAGED, None),
            3: (S.ABORTED, AfterAbort.REWOUND),
            4: (S.SUBSUMED, AfterAbort.REWOUND),
            5: (S.ABORTED, AfterAbort.REWOUND),
            6: (S.ABORTED, AfterAbort.REWOUND),
            7: (S.ABORTED, AfterAbort.REWOUND),
            triggered: (S.ABORTED, None),
        }
        assert scene.checkpoint(6).reason is AbortReason.DECLINED
        for follows in (5, 7, triggered):
            assert scene.checkpoint(follows).reason is AbortReason.PREDECESSOR_ABORTED, "nobody refused these"
        assert scene.open_numbers() == [2]
        pipeline = scene.store.pipeline(PIPELINE)
        assert (pipeline.base, pipeline.base_is_clean) == (a_position(2), False)
        staged = {run: scene.store.run(PIPELINE, run) for run in (RUN, LATER_RUN)}
        assert {run: row and row.staged for run, row in staged.items()} == {RUN: True, LATER_RUN: False}
        assert "computed again from Spark's batch 2" in scene.event_texts()[-1]

    def test_rewound_positions_keep_their_order_and_their_files(self, scene: Scene) -> None:
        def give(*positions: str) -> None:
            scene.store.begin_stage(PIPELINE, scene.epoch, RUN)
            for position in positions:
                number, before = scene.trigger(), scene.store.pipeline(PIPELINE).last_published
                given = Position.of(position).to_json()
                scene.store.publish(PIPELINE, scene.epoch, number, before, a_segment(number), None, given)

        def left() -> tuple[int, bool] | None:
            found = scene.store.rewound_position(PIPELINE)
            return None if found is None else (found.number, is_kept(found))

        def needed() -> set[int]:
            there = scene.store.referenced_locations(PIPELINE)
            return {number for number in range(1, 8) if a_segment(number).location in there}

        scene.take()
        give("a", "b", "c")
        scene.plan(1)
        scene.abort(1, AfterAbort.REWOUND, 1)
        assert left() == (1, False)
        give("a")
        assert left() == (2, True)
        scene.plan(4)
        scene.abort(4, AfterAbort.REWOUND, 4)
        assert left() == (4, False), "it comes first, although b and c have lower numbers"
        assert {2, 3, 4} <= needed()
        give("a", "b", "c")
        assert left() is None
        assert needed() == {5, 6, 7}

    @pytest.mark.parametrize("others", [(), (1,)])
    def test_a_refusal_of_carried_positions_names_one_if_it_is_alone(
        self, scene: Scene, others: tuple[int, ...]
    ) -> None:
        scene.take()
        scene.store.begin_stage(PIPELINE, scene.epoch, RUN)
        for number in (1, 2):
            given = Position.of(f"day{number}").to_json()
            scene.store.publish(PIPELINE, scene.epoch, scene.trigger(), number - 1, a_segment(number), None, given)
        if not others:
            scene.complete(1)
        scene.plan(2, [*others, 2])
        scene.abort(2)
        carrying = scene.carry()
        scene.plan(carrying, [*others, 2])
        scene.abort(carrying, AfterAbort.REWOUND, others[0] if others else 2)
        assert scene.checkpoint(2).message == f"rewound with checkpoint {carrying}"
        assert [is_kept(scene.checkpoint(number)) for number in (*others, 2)] == [bool(others)] * len((*others, 2))

    def test_a_person_discards_carried_positions_too(self, scene: Scene) -> None:
        scene.take()
        scene.store.begin_stage(PIPELINE, scene.epoch, RUN)
        given = Position.of("day").to_json()
        scene.store.publish(PIPELINE, scene.epoch, scene.trigger(), 0, a_segment(1), None, given)
        scene.abort(1)
        scene.store.rewind(PIPELINE, scene.epoch, 1, None, "mysql://u:secret@h/x")
        assert not is_kept(scene.checkpoint(1))
        assert scene.checkpoint(1).message and "secret" not in scene.checkpoint(1).message

    def test_a_rewind_to_the_beginning_has_no_base(self, scene: Scene) -> None:
        (number,) = scene.stage()
        scene.abort(number, AfterAbort.REWOUND, 1)
        assert scene.store.pipeline(PIPELINE).base is None
        run = scene.store.run(PIPELINE, RUN)
        assert run is not None
        assert not run.staged

    def test_a_rewind_lets_a_run_that_published_nothing_stage_again(self, scene: Scene) -> None:
        """I9: its gate would open although what it found published is computed again."""
        (number,) = scene.stage()
        scene.store.enter_turn(PIPELINE, LATER_RUN, None)
        scene.store.begin_stage(PIPELINE, scene.epoch, LATER_RUN)
        scene.store.end_stage(PIPELINE, scene.epoch, LATER_RUN, None)
        scene.abort(number, AfterAbort.REWOUND, number)
        run = scene.store.run(PIPELINE, LATER_RUN)
        assert run is not None
        assert not run.staged

    @pytest.mark.parametrize("complete", [True, False])
    def test_a_rewind_concerns_runs_that_wait_for_its_numbers(self, scene: Scene, complete: bool) -> None:
        """I9: one without the turn, which has published nothing itself, would else be finished."""
        scene.complete(scene.stage(1)[0])
        scene.stage(1)
        scene.store.begin_stage(PIPELINE, 1, LATER_RUN)
        scene.store.end_stage(PIPELINE, 1, LATER_RUN, None, complete=complete)
        scene.store.rewind(PIPELINE, 1, 2, a_position(1), "by hand")
        row = scene.store.run(PIPELINE, LATER_RUN)
        assert row is not None and not row.staged

    @pytest.mark.parametrize("decided", [False, True])
    def test_nothing_is_rewound_under_a_number_in_doubt(self, scene: Scene, decided: bool) -> None:
        scene.stage(3)
        scene.prepare(2)
        if decided:
            scene.decide(2)
        for rewind in (
            lambda: scene.abort(3, AfterAbort.REWOUND, 1),
            lambda: scene.store.rewind(PIPELINE, 1, 2, None, "by hand"),
        ):
            with raises(StateConflictError, "checkpoint_unresolved", checkpoint=2):
                rewind()
        assert [scene.checkpoint(n).state for n in (1, 3)] == [S.STAGED, S.STAGED]
        assert scene.store.pipeline(PIPELINE).base_is_clean

    def test_a_person_rewinds_what_is_undelivered(self, scene: Scene) -> None:
        scene.stage(3)
        scene.complete(1)
        scene.store.rewind(PIPELINE, 1, 1, SparkPosition("file:///old", 1), "wrong rates")
        assert [scene.checkpoint(n).after_abort for n in (1, 2, 3)] == [None, AfterAbort.REWOUND, AfterAbort.REWOUND]
        assert scene.checkpoint(2).reason is AbortReason.USER
        assert scene.checkpoint(2).message == "wrong rates"
        assert scene.checkpoint(1).is_confirmed
        assert scene.store.pipeline(PIPELINE).base == SparkPosition("file:///old", 1)

    def test_state_is_dropped_where_everything_is_delivered(self, scene: Scene) -> None:
        """A rewind of what comes next must not bring it back."""
        fresh = SparkPosition("file:///spark/2-0", -1)
        scene.stage(2)
        scene.complete(1)
        with raises(StateConflictError, "checkpoint_unresolved", checkpoint=2, state="STAGED"):
            scene.store.reset_state(PIPELINE, 1, fresh, "by hand")
        assert scene.store.pipeline(PIPELINE).base == a_position(2)
        scene.complete(2)
        scene.store.reset_state(PIPELINE, 1, fresh, "by hand")
        row = scene.store.pipeline(PIPELINE)
        assert (row.base, row.base_is_clean) == (fresh, True)
        assert scene.store.position_before(PIPELINE, 3) == fresh
        assert fresh.location in scene.store.referenced_locations(PIPELINE)
        assert scene.checkpoint(1).position == a_position(1), "what is older is left as it was"
        assert scene.kinds()[-1] == "STATE_RESET" and "by hand" in scene.event_texts()[-1]

    def test_state_is_kept_for_who_has_asked_for_something_meanwhile(self, scene: Scene) -> None:
        """I10: to drain it, perhaps, or for a savepoint."""
        fresh = SparkPosition("file:///spark/2-0", -1)
        scene.complete(scene.stage(1)[0])
        first = scene.store.ask(PIPELINE, RequestKind.STOP, {}, "anna")
        second = scene.store.ask(PIPELINE, RequestKind.STOP, {"drain": True}, "ben")
        with raises(StateConflictError, "request_pending", request=second):
            scene.store.reset_state(PIPELINE, 1, fresh, "the stream has ended", seen_requests=[first])
        assert scene.store.pipeline(PIPELINE).base == a_position(1)
        scene.store.answer(PIPELINE, second, "nothing was drained")
        scene.store.reset_state(PIPELINE, 1, fresh, "the stream has ended", seen_requests=[first])
        assert scene.store.pipeline(PIPELINE).base == fresh

    def test_state_from_a_savepoint_is_not_restored_after_a_reset(self, scene: Scene) -> None:
        """It began with one, and nobody has published anything since: then there is no number that remembers."""
        scene.take()
        restored, fresh = SparkPosition("file:///spark/1-0", 7), SparkPosition("file:///spark/2-0", -1)
        scene.store.restore(PIPELINE, 1, restored, "a savepoint")
        scene.store.reset_state(PIPELINE, 1, fresh, "by hand")
        assert scene.store.position_before(PIPELINE, 1) == fresh
        assert scene.store.referenced_locations(PIPELINE) == {fresh.location}

    def test_a_run_restores_a_new_pipeline_to_the_beginning_once(self, scene: Scene) -> None:
        scene.take()
        scene.store.restore(PIPELINE, 1, None, "from the beginning", RUN, "the beginning")
        assert scene.store.pipeline(PIPELINE).base is None
        assert scene.store.run(PIPELINE, RUN).restored_from == "the beginning"  # type: ignore[union-attr]
        with raises(StateConflictError, "already_restored", run=str(RUN)):
            scene.store.restore(PIPELINE, 1, None, "once more", RUN, "the beginning")
        scene.complete(scene.stage(1)[0])
        with raises(StateConflictError, "pipeline_not_new"):
            scene.store.restore(PIPELINE, 1, None, "late")
        assert "from where its sources begin" in "".join(event.message for event in scene.store.events(PIPELINE))

    def test_state_is_not_dropped_by_an_old_owner_or_during_a_batch(self, scene: Scene) -> None:
        scene.complete(scene.stage(1, continues=True)[0])
        scene.trigger()
        with raises(StateConflictError, "checkpoint_unresolved", state="TRIGGERED"):
            scene.store.reset_state(PIPELINE, 1, a_position(0), "by hand")
        scene.take("other")
        with pytest.raises(FencedError):
            scene.store.reset_state(PIPELINE, 1, a_position(0), "by hand")
        assert scene.store.pipeline(PIPELINE).base == a_position(1)

    def test_an_attempt_older_than_a_rewind_publishes_nothing(self, scene: Scene) -> None:
        """I1, I10: its state contains the rewound rows, and its base would leave them out."""
        scene.stage(2, continues=True)
        working = scene.trigger()
        scene.store.rewind(PIPELINE, 1, 2, a_position(1), "by hand")
        assert scene.checkpoint(working).state is S.ABORTED
        later = scene.trigger()
        with raises(StateConflictError, "rewound", checkpoint=later):
            scene.publish(later)
        with raises(StateConflictError, "rewound"):
            scene.store.end_stage(PIPELINE, 1, RUN, a_position(3))
        assert scene.store.pipeline(PIPELINE).base == a_position(1)
        scene.stage(1)
        assert scene.store.pipeline(PIPELINE).last_published == later + 1

    def test_a_pending_rewind_does_not_hold_up_rows_carried_over(self, scene: Scene) -> None:
        """I7: recover needs no stage to deliver what is left."""
        scene.stage(3)
        scene.abort(1)
        scene.abort(2)
        scene.store.rewind(PIPELINE, 1, 3, a_position(2), "by hand")
        number = scene.carry()
        scene.complete(number, [1, 2])
        assert scene.open_numbers() == []
