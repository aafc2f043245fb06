from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_ft.protocol.errors import ConfigurationError, StateConflictError
from airflow_ft.protocol.model import AfterAbort, CheckpointState, Promise
from airflow_ft.protocol.votes import Outcome, Proof
from tests.raising import raises
from tests.store.scene import PIPELINE, Scene, a_segment

S = CheckpointState


class TestPlans:
    def test_a_plan_comes_back_as_it_was_given(self, scene: Scene) -> None:
        (number,) = scene.stage()
        plan = scene.make_plan(number)
        assert scene.store.plan(PIPELINE, 1, plan) == plan
        checkpoint = scene.checkpoint(number)
        assert (checkpoint.plan, checkpoint.state) == (plan, S.STAGED)
        assert "PLANNED: 11 rows of number 1 to db (ATOMIC, strategy, after 0)" in scene.event_texts(number)[-1]
        assert "the transaction of db decides" in scene.event_texts(number)[-1]

    def test_the_first_plan_is_fixed_and_the_second_planner_reads_it(self, scene: Scene) -> None:
        (number,) = scene.stage()
        first = scene.plan(number)
        other = replace(scene.make_plan(number), reasons=("mine",))
        assert scene.store.plan(PIPELINE, 1, other) == first
        scene.take("other")
        assert scene.store.plan(PIPELINE, 2, other) == first
        assert scene.kinds(number).count("PLANNED") == 1

    def test_staged_numbers_of_a_plan_are_subsumed(self, scene: Scene) -> None:
        scene.stage(3)
        scene.plan(3, [1, 2, 3])
        for number in (1, 2):
            checkpoint = scene.checkpoint(number)
            assert (checkpoint.state, checkpoint.subsumed_by) == (S.SUBSUMED, 3)
            assert checkpoint.is_undelivered
            assert scene.kinds(number)[-1] == "SUBSUMED"
        assert scene.open_numbers() == [1, 2, 3]

    def test_a_prepared_number_is_never_subsumed(self, scene: Scene) -> None:
        """R9."""
        scene.stage(2)
        scene.prepare(1)
        with raises(StateConflictError, "plan_conflict", checkpoint=2, segment=1, other=1):
            scene.plan(2, [1, 2])
        assert scene.checkpoint(1).state is S.PREPARED

    def test_a_segment_is_in_one_living_plan_only(self, scene: Scene) -> None:
        """I2."""
        scene.stage(3)
        scene.plan(2, [1, 2])
        for segments in ([1, 3], [2, 3], [1, 2, 3]):
            with raises(StateConflictError, "plan_conflict", checkpoint=3, other=2):
                scene.plan(3, segments)
        assert scene.checkpoint(3).plan is None

    def test_segments_of_an_aborted_plan_travel_with_the_next(self, scene: Scene) -> None:
        """R2: aborting loses no row."""
        scene.stage(3)
        scene.prepare(2, [1, 2])
        scene.abort(2)
        assert scene.checkpoint(2).after_abort is AfterAbort.CARRIED
        assert [c.number for c in scene.store.open_checkpoints(PIPELINE) if c.is_undelivered] == [1, 2, 3]
        scene.complete(3, [1, 2, 3])
        assert [scene.checkpoint(n).delivered_by for n in (1, 2, 3)] == [3, 3, 3]
        assert [scene.checkpoint(n).state for n in (1, 2, 3)] == [S.SUBSUMED, S.ABORTED, S.COMPLETED]
        assert [scene.checkpoint(n).subsumed_by for n in (1, 2, 3)] == [3, None, None]
        assert scene.open_numbers() == []

    def test_a_number_without_rows_delivers_what_is_carried(self, scene: Scene) -> None:
        scene.stage(1)
        scene.abort(1)
        number = scene.carry()
        with raises(StateConflictError, "plan_conflict", checkpoint=number):
            scene.plan(number, [1, number])
        done = scene.complete(number, [1])
        assert (done.state, done.delivered_by, done.is_confirmed) == (S.COMPLETED, None, True)
        assert scene.checkpoint(1).delivered_by == number
        assert "DELIVERED: with checkpoint 2" in scene.event_texts(1)[-1]

    def test_what_was_delivered_or_rewound_is_not_planned_again(self, scene: Scene) -> None:
        """I2."""
        scene.stage(3)
        scene.complete(1)
        with raises(StateConflictError, "plan_conflict", segment=1, other=1):
            scene.plan(2, [1, 2])
        scene.abort(2, AfterAbort.REWOUND, 2)
        (number,) = scene.stage()
        with raises(StateConflictError, "plan_conflict", segment=2, state="ABORTED"):
            scene.plan(number, [2, number])

    def test_a_plan_must_hold_the_very_segments_that_were_published(self, scene: Scene) -> None:
        """I1."""
        scene.stage(1)
        plan = scene.make_plan(1)
        for segment in (a_segment(1, rows=11), replace(a_segment(1), digest="0" * 64)):
            with raises(StateConflictError, "plan_conflict", segment=1):
                scene.store.plan(PIPELINE, 1, replace(plan, segments=(segment,)))

    def test_its_own_segment_is_the_last_of_a_plan(self, scene: Scene) -> None:
        scene.stage(2)
        with raises(StateConflictError, "plan_conflict", checkpoint=2):
            scene.plan(2, [1])

    @pytest.mark.parametrize(
        ("changes", "part"),
        [
            ({"pipeline": "else"}, "pipeline"),
            ({"installation": "else"}, "installation"),
            ({"participants": ()}, "participants"),
            ({"commit_point": "else"}, "commit_point"),
            ({"segments": ()}, "segments"),
            ({"segments": (a_segment(2), a_segment(1))}, "order"),
            ({"segments": (a_segment(1), a_segment(1), a_segment(2))}, "order"),
            ({"segments": (a_segment(2), a_segment(3))}, "order"),
        ],
    )
    def test_a_plan_that_makes_no_sense_is_refused(self, scene: Scene, changes: dict[str, object], part: str) -> None:
        scene.stage(3)
        with raises(ConfigurationError, "plan_invalid", part=part):
            scene.store.plan(PIPELINE, 1, replace(scene.make_plan(2), **changes))  # type: ignore[arg-type]

    def test_a_plan_that_waits_for_no_votes_decides(self, scene: Scene) -> None:
        scene.stage(2)
        plan = scene.plan_at_least_once(2, [1, 2])

        checkpoint = scene.checkpoint(2)
        assert (checkpoint.state, checkpoint.plan) == (S.COMMITTING, plan)
        assert checkpoint.decided_at is not None and checkpoint.prepared_at is None
        assert scene.votes(2) == {"db": 0, "log": 0}
        assert (scene.checkpoint(1).state, scene.checkpoint(1).subsumed_by) == (S.SUBSUMED, 2)
        assert scene.kinds(2)[-2:] == ["PLANNED", "COMMITTING"]
        assert scene.plan_at_least_once(2, [1, 2]) == plan and scene.kinds(2).count("COMMITTING") == 1
        with pytest.raises(StateConflictError):
            scene.abort(2)
        for name in ("db", "log"):
            scene.attempt(2, name)
            scene.prove(2, name)
        assert [scene.checkpoint(number).is_confirmed for number in (1, 2)] == [True, True]

    def test_what_keeps_no_markers_has_nothing_to_remember(self, scene: Scene) -> None:
        scene.stage(3)
        scene.complete(1)
        scene.plan_at_least_once(2)
        assert scene.store.last_delivered(PIPELINE, "db") == 2
        assert scene.store.last_delivered(PIPELINE, "log") == 1

    def test_participants_are_planned_once_each(self, scene: Scene) -> None:
        scene.stage(1)
        plan = scene.make_plan(1)
        with raises(ConfigurationError, "plan_invalid", part="participants"):
            scene.store.plan(PIPELINE, 1, replace(plan, participants=plan.participants * 2))

    def test_only_a_staged_number_is_planned(self, scene: Scene) -> None:
        scene.stage(2, continues=True)
        triggered = scene.trigger()
        with raises(StateConflictError, "checkpoint_state", state="TRIGGERED"):
            scene.plan(triggered)
        scene.abort(1)
        with raises(StateConflictError, "checkpoint_state", state="ABORTED"):
            scene.plan(1)
        scene.plan(2, [1, 2])
        scene.abort(2)
        with raises(StateConflictError, "checkpoint_state", state="ABORTED"):
            scene.plan(2, [1, 2])


class TestVotes:
    def test_the_last_vote_prepares(self, scene: Scene) -> None:
        (number,) = scene.stage()
        scene.plan(number)
        assert scene.vote(number, "db").state is S.STAGED
        checkpoint = scene.vote(number, "log")
        assert checkpoint.state is S.PREPARED
        assert checkpoint.prepared_at is not None
        assert {name: vote.attempt for name, vote in checkpoint.votes.items()} == scene.votes(number)
        assert scene.kinds(number)[-2:] == ["VOTED", "PREPARED"]

    def test_attempts_are_drawn_from_one_counter(self, scene: Scene) -> None:
        scene.stage(2)
        scene.plan(1)
        scene.plan(2)
        attempts = [scene.attempt(n, name) for n in (1, 2, 1) for name in ("db", "log")]
        assert attempts == sorted(set(attempts))
        assert attempts[0] == 2  # the stage had the first

    def test_only_the_newest_attempt_votes(self, scene: Scene) -> None:
        (number,) = scene.stage()
        scene.plan(number)
        with raises(StateConflictError, "vote_outdated", attempt=1, newest=0):
            scene.store.vote(PIPELINE, 1, number, "db", 1)
        old, new = scene.attempt(number, "db"), scene.attempt(number, "db")
        for wrong in (old, new + 1):
            with raises(StateConflictError, "vote_outdated", participant="db", attempt=wrong, newest=new):
                scene.store.vote(PIPELINE, 1, number, "db", wrong)
        assert scene.store.vote(PIPELINE, 1, number, "db", new).votes["db"].prepared == new

    def test_repeating_a_vote_has_no_effect(self, scene: Scene) -> None:
        (number,) = scene.stage()
        prepared = scene.prepare(number)
        events = len(scene.event_texts())
        again = scene.store.vote(PIPELINE, 1, number, "db", prepared.votes["db"].attempt)
        assert again == prepared
        scene.decide(number)
        scene.store.vote(PIPELINE, 1, number, "db", prepared.votes["db"].attempt)
        assert len(scene.event_texts()) == events + 1

    def test_what_a_participant_said_is_kept_with_its_vote(self, scene: Scene) -> None:
        (number,) = scene.stage()
        scene.plan(number)
        attempt = scene.attempt(number, "db")
        notes = {"xids": ["a", "b"], "note": "ü \u2603"}
        scene.store.vote(PIPELINE, scene.epoch, number, "db", attempt, notes)
        assert scene.checkpoint(number).votes["db"].notes == notes

    def test_after_the_decision_no_new_vote_counts(self, scene: Scene) -> None:
        (number,) = scene.stage()
        scene.prepare(number)
        scene.decide(number)
        attempt = scene.attempt(number, "log")
        with raises(StateConflictError, "checkpoint_state", state="COMMITTING"):
            scene.store.vote(PIPELINE, 1, number, "log", attempt)

    def test_without_a_plan_or_for_a_stranger_there_is_no_attempt(self, scene: Scene) -> None:
        scene.stage(2)
        with raises(StateConflictError, "plan_conflict", checkpoint=1):
            scene.attempt(1, "db")
        scene.plan(1)
        with raises(StateConflictError, "plan_conflict", participant="else"):
            scene.attempt(1, "else")
        scene.abort(1)
        with raises(StateConflictError, "checkpoint_state", state="ABORTED"):
            scene.attempt(1, "db")

    def test_a_decision_with_an_outdated_vote_is_refused(self, scene: Scene) -> None:
        """R7: the deciding write is under way while a two-phase participant is being prepared anew."""
        scene.promises = {"xa": Promise.TWO_PHASE, "log": Promise.REDO}
        (number,) = scene.stage()
        scene.prepare(number)
        late = scene.votes(number)
        attempt = scene.attempt(number, "xa")  # from here on its branches may be rolled back
        assert scene.checkpoint(number).votes["xa"].prepared == 0
        with raises(StateConflictError, "vote_outdated", counted=late):
            scene.store.decide(PIPELINE, 1, number, late)
        with pytest.raises(StateConflictError):
            scene.decide(number)
        scene.store.vote(PIPELINE, 1, number, "xa", attempt)
        with pytest.raises(StateConflictError):
            scene.store.decide(PIPELINE, 1, number, late)
        assert scene.decide(number).state is S.COMMITTING

    def test_the_deciding_sink_has_decided_whatever_votes_are_there(self, scene: Scene) -> None:
        scene.promises = {"db": Promise.ATOMIC, "xa": Promise.TWO_PHASE}
        (number,) = scene.stage()
        scene.prepare(number)
        late = scene.votes(number)
        scene.attempt(number, "xa")
        plan = scene.checkpoint(number).plan
        assert plan is not None
        for name, digest, code in (("xa", plan.digest, "vote_outdated"), ("db", "another", "marker_mismatch")):
            proof = Proof(name, number, Outcome.COMMITTED, digest, 1)
            with raises(StateConflictError, code):
                scene.store.decide(PIPELINE, 1, number, late, proof)
        proof = Proof("db", number, Outcome.COMMITTED, plan.digest, 1)
        decided = scene.store.decide(PIPELINE, 1, number, late, proof)
        assert (decided.state, decided.votes["xa"].prepared) == (S.COMMITTING, 0)

    def test_a_deciding_participant_keeps_its_vote_in_a_new_attempt(self, scene: Scene) -> None:
        (number,) = scene.stage()
        voted = scene.votes(scene.prepare(number).number)
        assert scene.attempt(number, "db") > voted["db"]
        assert scene.votes(number) == voted
        assert scene.decide(number).state is S.COMMITTING

    def test_votes_outlive_their_epoch(self, scene: Scene) -> None:
        (number,) = scene.stage()
        scene.plan(number)
        scene.vote(number, "db")
        scene.take("other")
        assert scene.vote(number, "log").state is S.PREPARED


class TestDecisions:
    def test_a_decision_names_every_vote(self, scene: Scene) -> None:
        (number,) = scene.stage()
        scene.prepare(number)
        votes = scene.votes(number)
        for wrong in ({}, {"db": votes["db"]}, {**votes, "log": votes["log"] + 1}, {**votes, "else": 1}):
            with raises(StateConflictError, "vote_outdated", stored=scene.votes(number)):
                scene.store.decide(PIPELINE, 1, number, wrong)
        decided = scene.decide(number)
        assert (decided.state, decided.decided_at is not None) == (S.COMMITTING, True)
        assert "COMMITTING: will be committed everywhere, counting db" in scene.event_texts(number)[-1]

    def test_repeating_a_decision_has_no_effect(self, scene: Scene) -> None:
        (number,) = scene.stage()
        scene.prepare(number)
        first = scene.decide(number)
        events = len(scene.event_texts())
        assert scene.store.decide(PIPELINE, 1, number, {}) == first
        assert len(scene.event_texts()) == events
        scene.prove(number, "db")
        scene.prove(number, "log")
        assert scene.store.decide(PIPELINE, 1, number, {}).state is S.COMPLETED

    def test_only_what_is_prepared_is_decided(self, scene: Scene) -> None:
        scene.stage(2)
        scene.plan(1)
        scene.vote(1, "db")
        with raises(StateConflictError, "checkpoint_state", state="STAGED"):
            scene.decide(1)
        scene.abort(1)
        with raises(StateConflictError, "checkpoint_state", state="ABORTED"):
            scene.decide(1)

    def test_what_is_decided_is_never_aborted(self, scene: Scene) -> None:
        (number,) = scene.stage()
        scene.prepare(number)
        scene.decide(number)
        with raises(StateConflictError, "checkpoint_state", state="COMMITTING", to="ABORTED"):
            scene.abort(number)

    def test_last_delivered_follows_each_participants_decisions(self, scene: Scene) -> None:
        scene.stage(3)
        assert scene.store.last_delivered(PIPELINE, "db") == 0
        scene.prepare(1)
        assert scene.store.last_delivered(PIPELINE, "db") == 0
        scene.decide(1)
        assert scene.store.last_delivered(PIPELINE, "db") == 1
        scene.promises = {"db": Promise.ATOMIC}
        scene.complete(2)
        assert scene.store.last_delivered(PIPELINE, "db") == 2
        assert scene.store.last_delivered(PIPELINE, "log") == 1
        assert scene.store.last_delivered(PIPELINE, "else") == 0

    def test_a_decision_out_of_order_does_not_lower_last_delivered(self, scene: Scene) -> None:
        scene.stage(2)
        scene.prepare(1)
        scene.complete(2)
        scene.decide(1)
        assert scene.store.last_delivered(PIPELINE, "db") == 2


class TestProofs:
    def test_the_last_proof_completes(self, scene: Scene) -> None:
        (number,) = scene.stage()
        scene.prepare(number)
        scene.decide(number)
        assert scene.prove(number, "log").state is S.COMMITTING
        assert not scene.checkpoint(number).is_confirmed
        done = scene.prove(number, "db")
        assert (done.state, done.delivered_by, done.is_confirmed) == (S.COMPLETED, number, True)
        assert done.completed_at is not None
        assert done.votes["db"].proof == scene.proof(number, "db")
        assert scene.kinds(number)[-2:] == ["PROVEN", "COMPLETED"]
        assert scene.open_numbers() == [number]  # until it is finalised

    def test_repeating_a_proof_has_no_effect(self, scene: Scene) -> None:
        (number,) = scene.stage()
        scene.prepare(number)
        scene.decide(number)
        first = scene.prove(number, "db")
        other = replace(scene.proof(number, "db"), epoch=9, counts={"orders": 77})
        assert scene.store.record_proof(PIPELINE, 1, number, other) == first
        scene.prove(number, "log")
        events = len(scene.event_texts())
        assert scene.store.record_proof(PIPELINE, 1, number, other).state is S.COMPLETED
        assert len(scene.event_texts()) == events

    def test_only_a_marker_of_this_plan_saying_committed_is_a_proof(self, scene: Scene) -> None:
        """I6, R1."""
        scene.stage(2)
        scene.prepare(1)
        scene.decide(1)
        for changes in ({"outcome": Outcome.ABORTED}, {"digest": "0" * 64}, {"number": 2}):
            with raises(StateConflictError, "marker_mismatch", participant="db"):
                scene.store.record_proof(PIPELINE, 1, 1, replace(scene.proof(1, "db"), **changes))
        with raises(StateConflictError, "plan_conflict", participant="else"):
            scene.store.record_proof(PIPELINE, 1, 1, scene.proof(1, "else"))
        assert scene.checkpoint(1).votes["db"].proof is None

    def test_a_proof_follows_the_decision(self, scene: Scene) -> None:
        (number,) = scene.stage()
        scene.prepare(number)
        with raises(StateConflictError, "checkpoint_state", state="PREPARED"):
            scene.prove(number, "db")

    def test_subsumed_checkpoints_are_confirmed_with_the_last_one(self, scene: Scene) -> None:
        scene.stage(3)
        scene.complete(3, [1, 2, 3], finalise=False)
        assert [scene.checkpoint(n).delivered_by for n in (1, 2, 3)] == [3, 3, 3]
        assert all(scene.checkpoint(n).is_confirmed for n in (1, 2, 3))
        assert scene.open_numbers() == [3]
        scene.store.finalise(PIPELINE, 3)
        assert all(scene.checkpoint(n).finalised for n in (1, 2, 3))
        assert scene.open_numbers() == []

    def test_only_a_completed_number_is_finalised_and_once(self, scene: Scene) -> None:
        scene.stage(2)
        with raises(StateConflictError, "checkpoint_state", state="STAGED"):
            scene.store.finalise(PIPELINE, 1)
        scene.complete(2, [1, 2])
        with raises(StateConflictError, "checkpoint_state", state="SUBSUMED"):
            scene.store.finalise(PIPELINE, 1)
        scene.store.finalise(PIPELINE, 2)
        assert scene.kinds(2).count("FINALISED") == 1

    def test_a_whole_life_is_told_in_the_event_log(self, scene: Scene) -> None:
        (number,) = scene.stage()
        scene.complete(number)
        assert scene.kinds(number) == [
            *["TRIGGERED", "STAGED", "PLANNED", "ATTEMPT", "VOTED", "ATTEMPT", "VOTED", "PREPARED", "COMMITTING"],
            *["PROVEN", "PROVEN", "COMPLETED", "FINALISED"],
        ]
        assert scene.kinds() == [
            "REGISTERED",
            "EPOCH",
            "STAGE_BEGUN",
            "TRIGGERED",
            "STAGED",
            "STAGE_ENDED",
            *scene.kinds(number)[2:],
        ]
        events = scene.store.events(PIPELINE)
        assert [event.at for event in events] == sorted((event.at for event in events), reverse=True)
        assert {event.epoch for event in events} == {0, 1}
        assert scene.store.events(PIPELINE, limit=2)[0].kind == "FINALISED"
        assert len(scene.store.events(PIPELINE, limit=2)) == 2
