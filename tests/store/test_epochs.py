from __future__ import annotations

from datetime import UTC, datetime

import pytest

from airflow_ft.protocol.errors import (
    ConfigurationError,
    FencedError,
    LeaseHeldError,
    PipelineHaltedError,
    StateConflictError,
)
from airflow_ft.protocol.failure import Halt
from airflow_ft.protocol.model import AfterAbort, CheckpointState, RunKey
from airflow_ft.protocol.pipelines import HaltReason, PipelineStatus
from airflow_ft.protocol.reasons import AbortReason
from airflow_ft.store.decision_log import DecisionLog
from airflow_ft.store.errors import UnknownPipelineError
from tests.raising import raises
from tests.store.scene import LATER_RUN, PIPELINE, RUN, Scene, a_lease, a_position, a_segment


class TestPipelines:
    def test_a_new_pipeline_has_no_epoch_and_begins_with_number_one(self, store: DecisionLog) -> None:
        pipeline = store.register(PIPELINE)
        assert (pipeline.epoch, pipeline.next_number, pipeline.last_published) == (0, 1, 0)
        assert (pipeline.status, pipeline.base, pipeline.turn) == (PipelineStatus.ACTIVE, None, None)
        assert store.pipeline(PIPELINE) == pipeline

    def test_registering_again_changes_nothing(self, scene: Scene) -> None:
        scene.stage(2)
        before = scene.store.pipeline(PIPELINE)
        assert scene.store.register(PIPELINE) == before
        assert scene.kinds().count("REGISTERED") == 1

    @pytest.mark.parametrize("name", ["", "Orders", "-x", "a b", "a" * 64, "ordérs", "a\n"])
    def test_a_name_that_sinks_could_not_bear_is_refused(self, store: DecisionLog, name: str) -> None:
        with raises(ConfigurationError, "name_invalid", value=name):
            store.register(name)

    def test_pipelines_are_listed_by_name_and_do_not_mix(self, store: DecisionLog) -> None:
        second, first = Scene(store, "b"), Scene(store, "a")
        second.stage(2)
        first.stage(1)
        assert [pipeline.name for pipeline in store.pipelines()] == ["a", "b"]
        assert [c.number for c in store.checkpoints("a")] == [1]
        assert [c.number for c in store.checkpoints("b")] == [2, 1]
        assert store.pipeline("a").epoch == 1

    def test_every_read_of_an_unknown_pipeline_raises_a_key_error(self, store: DecisionLog) -> None:
        for read in (
            lambda: store.pipeline("nope"),
            lambda: store.leases("nope"),
            lambda: store.run("nope", RUN),
            lambda: store.checkpoint("nope", 1),
            lambda: store.checkpoints("nope"),
            lambda: store.open_checkpoints("nope"),
            lambda: store.run_checkpoints("nope", RUN),
            lambda: store.prunable("nope", 3, 10),
            lambda: store.prunable("nope", 0, 10),
            lambda: store.position_before("nope", 2),
            lambda: store.referenced_locations("nope"),
            lambda: store.latest_confirmed("nope"),
            lambda: store.last_delivered("nope", "db"),
            lambda: store.events("nope"),
            lambda: store.events("nope", 1),
        ):
            with raises(KeyError, "pipeline_unknown", pipeline="nope"):
                read()

    def test_a_write_to_a_pipeline_that_does_not_exist_says_so(self, store: DecisionLog) -> None:
        with raises(UnknownPipelineError, "pipeline_unknown", pipeline="nope"):
            store.trigger("nope", 1, RUN)

    def test_the_installation_is_a_uuid_that_stays(self, store: DecisionLog) -> None:
        assert len(store.installation) == 36
        assert store.installation.count("-") == 4

    def test_the_clock_is_utc_and_does_not_stand(self, store: DecisionLog) -> None:
        first, second = store.now(), store.now()
        assert first.tzinfo is UTC
        assert first <= second
        assert abs((datetime.now(UTC) - second).total_seconds()) < 60


class TestEpochs:
    def test_each_epoch_is_one_more_and_tells_why(self, scene: Scene) -> None:
        assert [scene.take(), scene.take("other")] == [1, 2]
        assert scene.store.pipeline(PIPELINE).epoch == 2
        assert "epoch 2 taken by other (dag/stage, try 1): a test" in scene.event_texts()[-1]
        assert "dropped the lease of worker" in scene.event_texts()[-1]

    def test_of_two_challengers_the_second_finds_the_lease_held(self, scene: Scene) -> None:
        scene.store.take_epoch(PIPELINE, 0, {}, a_lease("first"), "a test")
        with pytest.raises(LeaseHeldError):
            scene.store.take_epoch(PIPELINE, 0, {}, a_lease("second"), "a test")
        assert [lease.holder for lease in scene.store.leases(PIPELINE)] == ["first"]
        assert scene.store.pipeline(PIPELINE).epoch == 1

    def test_an_epoch_that_came_and_went_is_noticed(self, scene: Scene) -> None:
        """The other one has released its lease already: what this challenger has read is out of date all the same."""
        scene.take("first")
        scene.store.release_lease(PIPELINE, "first")
        with raises(LeaseHeldError, "epoch_taken", epoch=0, current=1):
            scene.store.take_epoch(PIPELINE, 0, {}, a_lease("second"), "a test")
        assert scene.store.pipeline(PIPELINE).epoch == 1

    def test_a_lease_that_nobody_has_watched_is_respected(self, scene: Scene) -> None:
        scene.take()
        with raises(LeaseHeldError, "lease_held", holder="worker"):
            scene.store.take_epoch(PIPELINE, 1, {}, a_lease("other"), "a test")

    def test_a_lease_that_was_renewed_since_it_was_seen_is_respected(self, scene: Scene) -> None:
        scene.take()
        seen = {lease.holder: lease.counter for lease in scene.store.leases(PIPELINE)}
        scene.store.renew_lease(PIPELINE, 1, "worker")
        with pytest.raises(LeaseHeldError):
            scene.store.take_epoch(PIPELINE, 1, seen, a_lease("other"), "a test")

    def test_a_take_over_drops_leases_and_aborts_unpublished_numbers(self, scene: Scene) -> None:
        scene.take()
        staged, triggered = scene.trigger(), scene.trigger()
        scene.publish(staged)
        scene.store.hold_lease(PIPELINE, 1, a_lease("task"))
        scene.take("other")
        assert [(lease.holder, lease.epoch) for lease in scene.store.leases(PIPELINE)] == [("other", 2)]
        lost = scene.checkpoint(triggered)
        assert (lost.state, lost.reason) == (CheckpointState.ABORTED, AbortReason.FENCED), "its owner has a lease"
        assert lost.after_abort is None
        assert scene.kinds(triggered) == ["TRIGGERED", "ABORTED"]
        assert scene.checkpoint(staged).state is CheckpointState.STAGED
        assert scene.open_numbers() == [staged]

    def test_what_nobody_is_at_work_on_ended_by_itself(self, scene: Scene) -> None:
        scene.take()
        lost = scene.trigger()
        scene.store.release_lease(PIPELINE, "worker")
        scene.take("other")
        scene.store.release_lease(PIPELINE, "other")
        assert scene.checkpoint(lost).reason is AbortReason.ATTEMPT_ENDED
        again = scene.trigger()
        scene.take("third")
        assert scene.checkpoint(again).reason is AbortReason.ATTEMPT_ENDED
        mine = scene.trigger()
        scene.take("third")  # the same process
        assert scene.checkpoint(mine).reason is AbortReason.ATTEMPT_ENDED

    def test_the_epoch_field_of_a_lease_is_ignored(self, scene: Scene) -> None:
        scene.store.take_epoch(PIPELINE, 0, {}, a_lease("first", epoch=99), "a test")
        scene.store.hold_lease(PIPELINE, 1, a_lease("second", epoch=99))
        assert {lease.epoch for lease in scene.store.leases(PIPELINE)} == {1}

    def test_a_newer_epoch_shuts_the_older_one_out_of_every_write(self, scene: Scene) -> None:
        """I5."""
        committing, prepared, planned, staged = scene.stage(4)
        scene.prepare(committing)
        scene.decide(committing)
        scene.prepare(prepared)
        plan = scene.plan(planned)
        attempt = scene.attempt(planned, "db")
        votes = scene.votes(prepared)
        proof = scene.proof(committing, "db")
        scene.take("other")
        triggered = scene.trigger()
        store, events = scene.store, len(scene.event_texts())
        for write in (
            lambda: store.hold_lease(PIPELINE, 1, a_lease("late")),
            lambda: store.renew_lease(PIPELINE, 1, "worker"),
            lambda: store.adopt_run(PIPELINE, 1, RUN),
            lambda: store.begin_stage(PIPELINE, 1, RUN),
            lambda: store.trigger(PIPELINE, 1, RUN),
            lambda: store.publish(PIPELINE, 1, triggered, staged, a_segment(triggered), a_position(triggered), {}),
            lambda: store.end_stage(PIPELINE, 1, RUN, a_position(4)),
            lambda: store.plan(PIPELINE, 1, plan),
            lambda: store.begin_attempt(PIPELINE, 1, planned, "db"),
            lambda: store.vote(PIPELINE, 1, planned, "db", attempt),
            lambda: store.decide(PIPELINE, 1, prepared, votes),
            lambda: store.decide(PIPELINE, 1, committing, {}),
            lambda: store.record_proof(PIPELINE, 1, committing, proof),
            lambda: store.abort(PIPELINE, 1, staged, AbortReason.USER, "", AfterAbort.CARRIED),
            lambda: store.rewind(PIPELINE, 1, staged, None, ""),
        ):
            with raises(FencedError, "fenced", epoch=1, current=2):
                write()
        assert len(scene.event_texts()) == events
        assert [c.state for c in store.checkpoints(PIPELINE)] == [
            CheckpointState.TRIGGERED,
            CheckpointState.STAGED,
            CheckpointState.STAGED,
            CheckpointState.PREPARED,
            CheckpointState.COMMITTING,
        ]

    def test_an_epoch_that_the_store_never_gave_is_a_conflict(self, scene: Scene) -> None:
        """R11: the store came from a backup, the process did not."""
        scene.take()
        with raises(StateConflictError, "epoch_unknown", epoch=2, current=1):
            scene.store.trigger(PIPELINE, 2, RUN)

    def test_nobody_writes_without_an_epoch(self, scene: Scene) -> None:
        with raises(StateConflictError, "epoch_unknown", epoch=0, current=0):
            scene.store.trigger(PIPELINE, 0, RUN)


class TestLeases:
    def test_a_lease_counts_its_renewals_without_an_event(self, scene: Scene) -> None:
        scene.take()
        events = len(scene.event_texts())
        scene.store.hold_lease(PIPELINE, 1, a_lease("task"))
        for _ in range(3):
            scene.store.renew_lease(PIPELINE, 1, "task")
        task = {lease.holder: lease for lease in scene.store.leases(PIPELINE)}["task"]
        assert (task.counter, task.try_number, task.task, task.epoch) == (3, 1, "dag/stage", 1)
        scene.store.release_lease(PIPELINE, "task")
        scene.store.release_lease(PIPELINE, "task")
        assert [lease.holder for lease in scene.store.leases(PIPELINE)] == ["worker"]
        assert len(scene.event_texts()) == events

    def test_a_holder_that_comes_again_counts_on(self, scene: Scene) -> None:
        scene.take()
        scene.store.renew_lease(PIPELINE, 1, "worker")
        scene.store.hold_lease(PIPELINE, 1, a_lease("worker"))
        assert scene.store.leases(PIPELINE)[0].counter == 2
        scene.take("worker")
        assert scene.store.leases(PIPELINE)[0].counter == 3

    def test_a_lease_that_is_gone_cannot_be_renewed(self, scene: Scene) -> None:
        scene.take()
        scene.store.release_lease(PIPELINE, "worker")
        with raises(FencedError, "lease_lost", holder="worker"):
            scene.store.renew_lease(PIPELINE, 1, "worker")


class TestTurns:
    def test_the_first_run_has_the_turn_until_it_leaves(self, scene: Scene) -> None:
        end = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
        assert scene.store.enter_turn(PIPELINE, RUN, end) == RUN
        assert scene.store.enter_turn(PIPELINE, LATER_RUN, None) == RUN
        assert scene.store.pipeline(PIPELINE).turn == RUN
        run = scene.store.run(PIPELINE, RUN)
        assert run is not None
        assert (run.interval_end, run.epoch, run.staged) == (end, 0, False)
        scene.store.leave_turn(PIPELINE, LATER_RUN)
        assert scene.store.pipeline(PIPELINE).turn == RUN
        scene.store.leave_turn(PIPELINE, RUN)
        assert scene.store.pipeline(PIPELINE).turn is None
        assert scene.store.enter_turn(PIPELINE, LATER_RUN, None) == LATER_RUN

    def test_the_turn_of_a_run_that_has_ended_is_taken(self, scene: Scene) -> None:
        scene.store.enter_turn(PIPELINE, RUN, None)
        assert scene.store.enter_turn(PIPELINE, LATER_RUN, None, ended=[RunKey("dag", "else")]) == RUN
        assert scene.store.enter_turn(PIPELINE, LATER_RUN, None, ended=[RUN]) == LATER_RUN
        assert "after dag/run-1" in scene.event_texts()[-1]

    def test_asking_again_and_again_leaves_no_events(self, scene: Scene) -> None:
        scene.store.enter_turn(PIPELINE, RUN, None)
        scene.store.enter_turn(PIPELINE, LATER_RUN, None)
        events = len(scene.event_texts())
        for run in (RUN, LATER_RUN, LATER_RUN):
            assert scene.store.enter_turn(PIPELINE, run, None) == RUN
        scene.store.leave_turn(PIPELINE, LATER_RUN)
        assert len(scene.event_texts()) == events

    def test_a_run_that_is_not_there_is_none(self, scene: Scene) -> None:
        assert scene.store.run(PIPELINE, RUN) is None

    def test_a_run_goes_on_under_the_epoch_that_its_new_try_took(self, scene: Scene) -> None:
        scene.stage(1)
        scene.take("second try")
        scene.store.adopt_run(PIPELINE, 2, RUN)
        run = scene.store.run(PIPELINE, RUN)
        assert run is not None
        assert (run.epoch, run.staged) == (2, True)


class TestHalts:
    def test_a_halted_pipeline_stages_attempts_and_decides_nothing(self, scene: Scene) -> None:
        prepared, planned, staged = scene.stage(3, continues=True)
        scene.prepare(prepared)
        scene.plan(planned)
        attempt = scene.attempt(planned, "db")
        triggered = scene.trigger()
        scene.store.halt(PIPELINE, HaltReason.TOKEN_LOST, "the token of log is gone")
        store = scene.store
        for write in (
            lambda: scene.take(),
            lambda: store.begin_stage(PIPELINE, 1, RUN),
            lambda: scene.trigger(),
            lambda: scene.publish(triggered),
            lambda: scene.plan(staged),
            lambda: scene.attempt(prepared, "db"),
            lambda: store.vote(PIPELINE, 1, planned, "db", attempt),
            lambda: scene.decide(prepared),
        ):
            with raises(PipelineHaltedError, "pipeline_halted", reason="TOKEN_LOST") as halted:
                write()
            assert "the token of log is gone" in halted.error.headline and "`airflow ft resume" in halted.error.remedy
        store.resume(PIPELINE, "ada")
        scene.publish(triggered)
        scene.decide(prepared)
        assert "RESUMED: by ada, after TOKEN_LOST" in " ".join(scene.event_texts())

    def test_a_halted_pipeline_still_records_what_has_happened(self, scene: Scene) -> None:
        committing, prepared, staged = scene.stage(3)
        scene.prepare(committing)
        scene.decide(committing)
        scene.prepare(prepared)
        scene.store.halt(PIPELINE, HaltReason.STORE_BEHIND_SINK, "the sink is ahead")
        pipeline = scene.store.pipeline(PIPELINE)
        assert (pipeline.status, pipeline.halt_reason) == (PipelineStatus.HALTED, HaltReason.STORE_BEHIND_SINK)
        assert pipeline.halt == Halt(
            "STORE_BEHIND_SINK",
            "store_behind_sink",
            "the sink is ahead",
            "Remove the cause, then run `airflow ft resume orders`.",
        )
        scene.prove(committing, "db")
        assert scene.prove(committing, "log").state is CheckpointState.COMPLETED
        scene.store.finalise(PIPELINE, committing)
        assert scene.abort(prepared).state is CheckpointState.ABORTED
        scene.store.rewind(PIPELINE, 1, staged, None, "by hand")
        scene.store.renew_lease(PIPELINE, 1, "worker")
        scene.store.leave_turn(PIPELINE, RUN)

    def test_a_repeated_or_later_halt_keeps_the_first_reason(self, scene: Scene) -> None:
        for _ in range(2):
            scene.store.halt(
                PIPELINE, HaltReason.TOKEN_LOST, "first", code="token_replaced", remedy="Run `airflow ft adopt`."
            )
        scene.store.halt(PIPELINE, HaltReason.FOREIGN_OWNER, "second")
        halt = Halt("TOKEN_LOST", "token_replaced", "first", "Run `airflow ft adopt`.")
        assert scene.store.pipeline(PIPELINE).halt == scene.store.overview(PIPELINE).halt == halt
        assert [text.partition("HALTED: ")[2] for text in scene.event_texts() if "HALTED: " in text] == [
            halt.text,
            "FOREIGN_OWNER [foreign_owner]: second",
        ]
        scene.store.resume(PIPELINE, "ada")
        assert scene.store.pipeline(PIPELINE).halt is None

    def test_resuming_with_an_outdated_reason_is_refused(self, scene: Scene) -> None:
        """Somebody else was faster, and it was halted anew while a person thought about the first reason."""
        scene.store.halt(PIPELINE, HaltReason.STORE_BEHIND_SINK, "the sink is ahead")
        with raises(StateConflictError, "action_refused", status="HALTED", reason="STORE_BEHIND_SINK"):
            scene.store.resume(PIPELINE, "ada", HaltReason.TOKEN_LOST)
        assert scene.store.pipeline(PIPELINE).halt_reason is HaltReason.STORE_BEHIND_SINK
        scene.store.resume(PIPELINE, "ada", HaltReason.STORE_BEHIND_SINK)
        assert scene.store.pipeline(PIPELINE).status is PipelineStatus.ACTIVE

    def test_resuming_with_an_outdated_epoch_is_refused(self, scene: Scene) -> None:
        """Another person was faster, a run took an epoch, and it was halted for the same reason."""
        epoch = scene.store.pipeline(PIPELINE).epoch
        scene.stage()
        scene.store.halt(PIPELINE, HaltReason.FOREIGN_OWNER, "the head is another's.")
        with raises(StateConflictError, "epoch_taken", epoch=epoch, current=epoch + 1):
            scene.store.resume(PIPELINE, "ada", epoch=epoch)
        assert scene.store.pipeline(PIPELINE).status is PipelineStatus.HALTED
        scene.store.resume(PIPELINE, "ada", epoch=epoch + 1)
        assert scene.store.pipeline(PIPELINE).status is PipelineStatus.ACTIVE

    def test_resuming_an_active_pipeline_does_nothing(self, scene: Scene) -> None:
        scene.store.resume(PIPELINE, "ada")
        assert scene.kinds() == ["REGISTERED"]
