"""The conditions FAILED and NOT_RUNNING of a pipeline, from what the decision log and Airflow know."""

from __future__ import annotations

from collections.abc import Collection, Container
from datetime import timedelta
from typing import Any

import pytest

from airflow_ft.protocol.errors import AbortedHeuristicCommitError, HeuristicCommitError
from airflow_ft.protocol.explaining import checkpoint_actions, explained, pipeline_actions
from airflow_ft.protocol.failure import Failure
from airflow_ft.protocol.judging import judge
from airflow_ft.protocol.lease import Worker
from airflow_ft.protocol.model import PLAIN, Promise, RunKey
from airflow_ft.protocol.overview import Condition, Overview
from airflow_ft.protocol.pipelines import HaltReason
from airflow_ft.store.rows import from_time
from tests.store.scene import LATER_RUN, PIPELINE, RUN, Scene

BROKEN = Failure("JobError", "JOB_FAILED", "the job raised.", "correct it.", task_id="stage", try_number=3)
REFUSED = Failure("SinkUnavailableError", "row_refused", "db refuses row 7.", "correct row 7.", reason="DECLINED")
AWAY = Failure("SinkUnavailableError", "", "db does not answer.", "start it.")
STREAM: dict[str, Any] = {"streaming": True}
PROGRAM = RunKey(f"{PLAIN}{PIPELINE}", "a program")


def judged(scene: Scene, *, ended: Collection[RunKey] = (), paused: Container[str] = ()) -> Overview:
    [found] = judge(
        [scene.store.overview(PIPELINE)], 30, lambda runs: [run for run in runs if run in ended], lambda _: paused
    )
    return found


def silence(scene: Scene, seconds: int = 600) -> None:
    """As if nothing had been written, and no lease renewed, for that long."""
    database = scene.store._database  # type: ignore[attr-defined]
    past = from_time(scene.store.now() - timedelta(seconds=seconds))
    with database.write() as tx:
        tx.change("UPDATE pipeline SET changed_at = ?", past)
        tx.change("UPDATE lease SET renewed_at = ?", past)


class TestFailed:
    def test_a_pipeline_is_failed_after_an_error_until_the_next_run(self, scene: Scene) -> None:
        store = scene.store
        store.enter_turn(PIPELINE, RUN, None)
        store.record_failure(PIPELINE, RUN, BROKEN)
        assert judged(scene).condition is Condition.RUNNING, "Airflow may try its task again"
        store.leave_turn(PIPELINE, RUN)
        found = judged(scene)
        assert found.condition is Condition.FAILED and found.failure is not None
        assert (found.failure.dag_id, found.failure.run_id, found.failure.task_id) == (RUN.dag_id, RUN.run_id, "stage")
        assert "the job raised" in found.description and "correct it" in found.description
        assert scene.kinds()[-2:] == ["FAILED", "TURN"]
        store.enter_turn(PIPELINE, LATER_RUN, None)
        assert judged(scene).condition is Condition.RUNNING
        store.leave_turn(PIPELINE, LATER_RUN, confirmed=True)
        assert judged(scene).condition is Condition.IDLE

    def test_a_run_that_succeeds_on_a_retry_has_not_failed(self, scene: Scene) -> None:
        store = scene.store
        store.enter_turn(PIPELINE, RUN, None)
        store.record_failure(PIPELINE, RUN, BROKEN)
        store.leave_turn(PIPELINE, RUN, confirmed=True)
        assert judged(scene).condition is Condition.IDLE and judged(scene).failure is None

    def test_a_consequence_does_not_hide_its_cause(self, scene: Scene) -> None:
        store = scene.store
        store.enter_turn(PIPELINE, RUN, None)
        follows = Failure("NotDeliveredError", "", "its stage has not finished.")
        store.record_failure(PIPELINE, RUN, BROKEN)
        store.record_failure(PIPELINE, RUN, follows, follows=True)
        found = judged(scene).failure
        assert found is not None and found.kind == "JobError"
        store.enter_turn(PIPELINE, LATER_RUN, None, ended=[RUN])
        store.record_failure(PIPELINE, LATER_RUN, follows, follows=True)
        found = judged(scene).failure
        assert found is not None and found.kind == "NotDeliveredError", "nothing else is known of this run"

    def test_an_older_run_does_not_tell_for_a_newer_one(self, scene: Scene) -> None:
        store = scene.store
        scene.stage(run=RUN)
        scene.take()
        scene.stage(run=LATER_RUN)
        store.record_failure(PIPELINE, RUN, BROKEN)
        assert judged(scene).failure is None, "it woke up after the newer run"
        store.enter_turn(PIPELINE, LATER_RUN, None)
        store.record_failure(PIPELINE, RUN, BROKEN)
        assert judged(scene).failure is None, "the newer run is active"

    def test_a_run_that_fails_before_it_stages_tells_why(self, scene: Scene) -> None:
        store = scene.store
        scene.stage(run=RUN)
        store.enter_turn(PIPELINE, LATER_RUN, None)
        store.record_failure(PIPELINE, LATER_RUN, BROKEN)
        store.leave_turn(PIPELINE, LATER_RUN)
        found = judged(scene).failure
        assert found is not None and found.run_id == LATER_RUN.run_id

    def test_a_run_that_was_killed_with_the_turn_has_failed(self, scene: Scene) -> None:
        scene.store.enter_turn(PIPELINE, RUN, None)
        silence(scene)
        assert judged(scene).condition is Condition.RUNNING, "between two tasks no process holds a lease"
        found = judged(scene, ended=[RUN])
        assert found.condition is Condition.FAILED and str(RUN) in found.description

    @pytest.mark.parametrize("run", [PROGRAM, RUN])
    def test_what_was_killed_at_work_has_failed(self, scene: Scene, run: RunKey) -> None:
        scene.take()
        scene.store.enter_turn(PIPELINE, run, None)
        assert judged(scene).condition is Condition.RUNNING and judged(scene).alive_at is None
        silence(scene, seconds=25)
        assert judged(scene).condition is Condition.RUNNING
        silence(scene, seconds=31)
        found = judged(scene)
        assert found.condition is Condition.FAILED and found.alive_at == found.renewed_at is not None
        assert str(run) in found.description and f"{found.alive_at:%Y-%m-%d %H:%M:%S} UTC" in found.description
        scene.store.renew_lease(PIPELINE, scene.epoch, "worker")
        assert judged(scene).condition is Condition.RUNNING, "it was asleep"

    def test_what_another_run_writes_is_no_sign_of_life(self, scene: Scene) -> None:
        scene.take()
        scene.store.enter_turn(PIPELINE, PROGRAM, None)
        silence(scene)
        assert scene.store.enter_turn(PIPELINE, RunKey(PROGRAM.dag_id, "the next"), None) == PROGRAM
        assert judged(scene).condition is Condition.FAILED

    def test_a_lease_has_its_own_time(self, scene: Scene) -> None:
        scene.store.take_epoch(PIPELINE, 0, {}, Worker("dag/stage").lease(120.0), "a test")
        scene.store.enter_turn(PIPELINE, RUN, None)
        silence(scene, seconds=110)
        assert judged(scene).condition is Condition.RUNNING
        silence(scene, seconds=121)
        assert judged(scene).condition is Condition.FAILED

    def test_a_task_that_was_killed_and_retried_leaves_no_lease(self, scene: Scene) -> None:
        scene.take()
        scene.store.release_lease(PIPELINE, "worker")
        for number in (1, 2):
            scene.store.hold_lease(PIPELINE, scene.epoch, Worker("dag/prepare", number).lease())
        scene.store.hold_lease(PIPELINE, scene.epoch, Worker("dag/another").lease())
        held = scene.store.leases(PIPELINE)
        assert sorted((each.task, each.try_number) for each in held) == [("dag/another", 1), ("dag/prepare", 2)]

    def test_what_never_ran_and_what_was_retired_has_not_failed(self, scene: Scene) -> None:
        store = scene.store
        assert judged(scene).condition is Condition.IDLE
        store.enter_turn(PIPELINE, RUN, None)
        store.record_failure(PIPELINE, RUN, BROKEN)
        store.leave_turn(PIPELINE, RUN)
        store.retire(PIPELINE, "ada")
        assert judged(scene).condition is Condition.IDLE and judged(scene).trouble is None

    def test_a_pause_hides_no_failure(self, scene: Scene) -> None:
        store = scene.store
        store.enter_turn(PIPELINE, RUN, None)
        found = judged(scene, ended=[RUN], paused={RUN.dag_id})
        assert found.condition is Condition.FAILED and "Its DAG is paused" in found.description, "it was killed"
        store.record_failure(PIPELINE, RUN, BROKEN)
        store.leave_turn(PIPELINE, RUN)
        found = judged(scene, paused={RUN.dag_id})
        assert (
            found.condition is Condition.FAILED
            and "Its DAG is paused" in found.description
            and "raised" in found.description
        )

    @pytest.mark.parametrize("how", ["fails before it has the turn", "is killed before it stages"])
    def test_the_next_run_of_a_retired_pipeline_ends_the_silence(self, scene: Scene, how: str) -> None:
        store = scene.store
        store.retire(PIPELINE, "ada")
        if how == "is killed before it stages":
            store.enter_turn(PIPELINE, RUN, None)
            found = judged(scene, ended=[RUN])
        else:
            store.record_failure(PIPELINE, RUN, BROKEN)
            found = judged(scene)
        assert found.condition is Condition.FAILED

    def test_clearing_an_old_run_keeps_the_failure_of_a_later_one(self, scene: Scene) -> None:
        store = scene.store
        for run in (RUN, LATER_RUN):
            store.enter_turn(PIPELINE, run, None)
            store.leave_turn(PIPELINE, run, confirmed=True)
        store.record_failure(PIPELINE, LATER_RUN, BROKEN)
        store.leave_turn(PIPELINE, RUN, confirmed=True)
        assert judged(scene).condition is Condition.FAILED
        store.leave_turn(PIPELINE, LATER_RUN, confirmed=True)
        assert judged(scene).condition is Condition.IDLE

    def test_what_waits_is_promised_no_run_where_none_comes(self, scene: Scene) -> None:
        scene.stage()
        assert "The next run delivers them" in judged(scene).description
        found = judged(scene, paused={RUN.dag_id})
        assert found.condition is Condition.WAITING and "paused or deleted. No run delivers them" in found.description
        scene.store.retire(PIPELINE, "ada")
        assert "retired. No run delivers them" in judged(scene).description

    def test_what_is_decided_and_what_is_quarantined_come_before_it(self, scene: Scene) -> None:
        scene.stage()
        scene.prepare(1)
        scene.decide(1)
        scene.store.record_failure(PIPELINE, RUN, BROKEN)
        assert judged(scene).condition is Condition.IN_DOUBT and judged(scene).trouble is Condition.FAILED
        scene.quarantine(1)
        assert judged(scene).condition is Condition.QUARANTINED


class TestNotRunning:
    def test_a_stream_runs_while_it_renews_its_lease(self, scene: Scene) -> None:
        scene.stage(made_with=STREAM)
        scene.complete(1)
        store = scene.store
        store.enter_turn(PIPELINE, RUN, None)
        assert judged(scene).condition is Condition.RUNNING
        silence(scene)
        found = judged(scene)
        assert found.condition is Condition.NOT_RUNNING and not found.is_stopped and str(RUN) in found.description
        assert f"{found.alive_at:%Y-%m-%d %H:%M:%S} UTC" in found.description
        store.renew_lease(PIPELINE, scene.epoch, "worker")
        assert judged(scene).condition is Condition.RUNNING
        store.release_lease(PIPELINE, "worker")
        silence(scene, seconds=80)
        assert judged(scene).condition is Condition.RUNNING, "between two attempts it holds no lease"
        silence(scene, seconds=91)
        assert judged(scene).condition is Condition.NOT_RUNNING

    def test_a_stream_whose_run_ended_does_not_run(self, scene: Scene) -> None:
        scene.stage(made_with=STREAM)
        scene.complete(1)
        scene.store.enter_turn(PIPELINE, RUN, None)
        found = judged(scene, ended=[RUN])
        assert found.condition is Condition.NOT_RUNNING and not found.is_stopped
        scene.store.record_failure(PIPELINE, RUN, BROKEN)
        assert judged(scene, ended=[RUN]).condition is Condition.FAILED

    def test_a_stopped_or_paused_stream_is_shown_as_stopped(self, scene: Scene) -> None:
        scene.stage(made_with=STREAM)
        scene.complete(1)
        scene.store.leave_turn(PIPELINE, RUN, confirmed=True)
        assert judged(scene).condition is Condition.NOT_RUNNING and judged(scene).is_stopped
        found = judged(scene, paused={RUN.dag_id})
        assert found.condition is Condition.NOT_RUNNING and found.is_stopped and "paused" in found.description
        scene.store.record_failure(PIPELINE, RUN, BROKEN)
        found = judged(scene, paused={RUN.dag_id})
        assert found.condition is Condition.FAILED and not found.is_stopped, "it failed, whatever was done later"
        scene.store.retire(PIPELINE, "ada")
        assert judged(scene).condition is Condition.IDLE
        scene.store.begin_stage(PIPELINE, scene.epoch, LATER_RUN)
        assert not judged(scene).streaming, "now it is run by a schedule"

    def test_a_stream_at_work_is_late_by_default(self, scene: Scene) -> None:
        scene.stage(made_with={**STREAM, "checkpointing": {"interval": 600}})
        assert scene.store.overview(PIPELINE).late_after is None, "no run is active"
        scene.store.enter_turn(PIPELINE, RUN, None)
        assert scene.store.overview(PIPELINE).late_after == timedelta(minutes=100)
        scene.store.begin_stage(PIPELINE, scene.epoch, RUN, spec=STREAM)
        assert scene.store.overview(PIPELINE).late_after == timedelta(minutes=10)
        database = scene.store._database  # type: ignore[attr-defined]
        past = from_time(scene.store.now() - timedelta(hours=1))
        with database.write() as tx:
            tx.change("UPDATE pipeline SET created_at = ?, confirmed_at = ?", past, past)
        assert judged(scene).condition is Condition.LATE
        scene.store.begin_stage(PIPELINE, scene.epoch, RUN, spec={**STREAM, "late_after": 86400.0})
        assert scene.store.overview(PIPELINE).late_after == timedelta(days=1)


class TestExplained:
    @pytest.mark.parametrize(
        ("problem", "next_run"),
        [
            (None, "delivers it"),
            (AWAY, "when the sink answers"),
            (REFUSED, "fails until"),
            (Failure("SinkUnavailableError", "disk_full", "the disk of db is full.", "free space."), "fails until"),
        ],
    )
    def test_in_doubt_names_each_unconfirmed_sink_and_the_next_step(
        self, scene: Scene, problem: Failure | None, next_run: str
    ) -> None:
        scene.stage()
        scene.prepare(1)
        scene.decide(1)
        scene.prove(1, "log")
        if problem is not None:
            scene.store.record_problem(PIPELINE, scene.epoch, 1, "db", problem)
        explanation, code = explained(scene.store, judged(scene))
        assert next_run in explanation and "db" in explanation and "log:" not in explanation
        assert code == (problem.code if problem else "")
        assert problem is None or (problem.message in explanation and problem.remedy.rstrip(".") in explanation)

    def test_no_run_is_promised_where_none_comes(self, scene: Scene) -> None:
        scene.stage()
        scene.prepare(1)
        scene.decide(1)
        scene.store.record_failure(PIPELINE, RUN, BROKEN)
        assert "Unpause" in explained(scene.store, judged(scene, paused={RUN.dag_id})).text
        scene.store.retire(PIPELINE, "ada")
        assert "retired" in explained(scene.store, judged(scene)).text

    @pytest.mark.parametrize(
        ("problem", "first"), [(REFUSED, "Remove the cause. Then"), (AWAY, "When the sink answers,")]
    )
    def test_the_cause_comes_before_an_act_that_fails_with_it(self, scene: Scene, problem: Failure, first: str) -> None:
        scene.stage()
        scene.prepare(1)
        scene.decide(1)
        scene.store.record_problem(PIPELINE, scene.epoch, 1, "db", problem)
        scene.store.record_failure(PIPELINE, RUN, BROKEN)
        assert f"{first} unpause" in explained(scene.store, judged(scene, paused={RUN.dag_id})).text
        scene.store.retire(PIPELINE, "ada")
        assert f"{first} recover" in explained(scene.store, judged(scene)).text

    def test_what_follows_comes_before_the_fix(self, scene: Scene) -> None:
        scene.store.record_failure(PIPELINE, RUN, BROKEN)
        text = judged(scene, paused={RUN.dag_id}).description
        assert 0 < text.index("paused") < text.index("\nFix: ") and text.endswith(BROKEN.remedy)

    def test_a_manual_quarantine_does_not_mention_refused_rows(self, scene: Scene) -> None:
        scene.stage()
        scene.prepare(1)
        scene.decide(1)
        scene.quarantine(1, "ada wants to look.")
        explanation = explained(scene.store, judged(scene)).text
        assert "ada wants to look" in explanation and "refuse" not in explanation
        scene.store.record_problem(PIPELINE, scene.epoch, 1, "db", REFUSED)
        assert "set the refused rows aside" in explained(scene.store, judged(scene)).text


class TestActions:
    def fitting(self, scene: Scene, number: int) -> set[str]:
        opened = scene.store.open_checkpoints(PIPELINE)
        return set(checkpoint_actions(scene.store.pipeline(PIPELINE), scene.checkpoint(number), opened))

    def test_of_a_checkpoint(self, scene: Scene) -> None:
        scene.stage(2)
        assert self.fitting(scene, 1) == {"abort"}
        scene.prepare(1)
        assert self.fitting(scene, 1) == {"commit", "abort", "quarantine"}
        scene.quarantine(1)
        assert self.fitting(scene, 1) == {"commit", "abort"}
        scene.release(1)
        scene.decide(1)
        assert self.fitting(scene, 1) == {"commit", "quarantine", "redeliver", "dead_letter"}
        scene.prepare(2)
        assert self.fitting(scene, 2) == {"abort"}, "1 goes first"
        scene.quarantine(1)
        assert self.fitting(scene, 1) == {"commit", "redeliver", "dead_letter"}
        scene.store.halt(PIPELINE, HaltReason.TOKEN_LOST, "it is gone.")
        assert self.fitting(scene, 1) == {"redeliver"} and self.fitting(scene, 2) == set()

    def test_of_a_checkpoint_that_is_not_rolled_back(self, scene: Scene) -> None:
        scene.promises = {"xa": Promise.TWO_PHASE}
        scene.stage()
        scene.prepare(1)
        scene.abort(1)
        assert self.fitting(scene, 1) == set(), "only the command line has `give_up`"

    @pytest.mark.parametrize("error", [HeuristicCommitError, AbortedHeuristicCommitError])
    def test_of_a_checkpoint_that_was_committed_by_hand(self, scene: Scene, error: type[HeuristicCommitError]) -> None:
        scene.stage()
        scene.prepare(1)
        scene.store.halt(PIPELINE, HaltReason.HEURISTIC_COMMIT, "it is visible.", code=error.code)
        assert ("commit" in self.fitting(scene, 1)) is (error is HeuristicCommitError)

    def test_of_a_pipeline(self, scene: Scene) -> None:
        assert set(pipeline_actions(judged(scene))) == {"recover", "rewind", "reset_state", "verify", "doctor"}
        scene.stage()
        scene.prepare(1)
        scene.decide(1)
        assert set(pipeline_actions(judged(scene))) == {"recover", "verify", "doctor"}
        scene.quarantine(1)
        assert set(pipeline_actions(judged(scene))) == {"verify", "doctor"}
        scene.store.halt(PIPELINE, HaltReason.TOKEN_LOST, "it is gone.")
        assert set(pipeline_actions(judged(scene))) == {"resume", "verify", "doctor"}

    def test_of_a_stream_that_does_not_run(self, scene: Scene) -> None:
        scene.stage(made_with=STREAM)
        scene.complete(1)
        actions = set(pipeline_actions(judged(scene)))
        assert "retire" in actions and "stop" not in actions
        scene.store.enter_turn(PIPELINE, RUN, None)
        actions = set(pipeline_actions(judged(scene)))
        assert not actions & {"retire", "recover", "rewind", "reset_state"}, "its process holds the lease"
        assert {"stop", "drain", "stop_with_savepoint"} <= actions
        scene.store.release_lease(PIPELINE, "worker")
        assert {"recover", "rewind", "reset_state"} <= set(pipeline_actions(judged(scene))), "between two tasks"
