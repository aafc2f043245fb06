"""The conditions FAILED and NOT_RUNNING of a pipeline, from what the decision log and Airflow know."""

from __future__ import annotations

from collections.abc import Collection, Container
from datetime import timedelta
from typing import Any

import pytest

from airflow_ft.protocol.explaining import checkpoint_acts, explained, pipeline_acts
from airflow_ft.protocol.failure import Failure
from airflow_ft.protocol.judging import judge
from airflow_ft.protocol.model import PLAIN, HaltReason, RunKey
from airflow_ft.protocol.overview import Condition, Overview
from airflow_ft.store.rows import from_time
from tests.store.scene import LATER_RUN, PIPELINE, RUN, Scene

BROKEN = Failure("JobError", "JOB_FAILED", "the job raised.", "correct it.", task_id="stage", try_number=3)
REFUSED = Failure("SinkUnavailableError", "row_refused", "db refuses row 7.", "correct row 7.", reason="DECLINED")
AWAY = Failure("SinkUnavailableError", "", "db does not answer.", "start it.")
STREAM: dict[str, Any] = {"streaming": True}
PROGRAM = RunKey(f"{PLAIN}{PIPELINE}", "a program")


def stands(scene: Scene, *, ended: Collection[RunKey] = (), paused: Container[str] = ()) -> Overview:
    [found] = judge(
        [scene.store.overview(PIPELINE)], 30, lambda runs: [run for run in runs if run in ended], lambda _: paused
    )
    return found


def silence(scene: Scene, minutes: int = 10) -> None:
    """As if nothing had been written for that long."""
    database = scene.store._database  # type: ignore[attr-defined]
    past = from_time(scene.store.now() - timedelta(minutes=minutes))
    with database.write() as tx:
        tx.change("UPDATE pipeline SET changed_at = ?", past)


class TestFailed:
    def test_a_run_that_told_an_error_has_failed_until_another_run_begins(self, scene: Scene) -> None:
        store = scene.store
        store.enter_turn(PIPELINE, RUN, None)
        store.record_failure(PIPELINE, RUN, BROKEN)
        assert stands(scene).condition is Condition.RUNNING, "Airflow may try its task again"
        store.leave_turn(PIPELINE, RUN)
        found = stands(scene)
        assert found.condition is Condition.FAILED and found.failure is not None
        assert (found.failure.dag_id, found.failure.run_id, found.failure.task_id) == (RUN.dag_id, RUN.run_id, "stage")
        assert "the job raised" in found.told and "correct it" in found.told
        assert scene.kinds()[-2:] == ["FAILED", "TURN"]
        store.enter_turn(PIPELINE, LATER_RUN, None)
        assert stands(scene).condition is Condition.RUNNING
        store.leave_turn(PIPELINE, LATER_RUN, confirmed=True)
        assert stands(scene).condition is Condition.IDLE

    def test_the_same_run_that_is_tried_again_with_success_has_not_failed(self, scene: Scene) -> None:
        store = scene.store
        store.enter_turn(PIPELINE, RUN, None)
        store.record_failure(PIPELINE, RUN, BROKEN)
        store.leave_turn(PIPELINE, RUN, confirmed=True)
        assert stands(scene).condition is Condition.IDLE and stands(scene).failure is None

    def test_a_consequence_does_not_hide_its_cause(self, scene: Scene) -> None:
        store = scene.store
        store.enter_turn(PIPELINE, RUN, None)
        follows = Failure("NotDeliveredError", "", "its stage has not finished.")
        store.record_failure(PIPELINE, RUN, BROKEN)
        store.record_failure(PIPELINE, RUN, follows, follows=True)
        found = stands(scene).failure
        assert found is not None and found.kind == "JobError"
        store.enter_turn(PIPELINE, LATER_RUN, None, ended=[RUN])
        store.record_failure(PIPELINE, LATER_RUN, follows, follows=True)
        found = stands(scene).failure
        assert found is not None and found.kind == "NotDeliveredError", "nothing else is known of this run"

    def test_an_older_run_does_not_tell_for_a_newer_one(self, scene: Scene) -> None:
        store = scene.store
        scene.stage(run=RUN)
        scene.take()
        scene.stage(run=LATER_RUN)
        store.record_failure(PIPELINE, RUN, BROKEN)
        assert stands(scene).failure is None, "it woke up after the newer run"
        store.enter_turn(PIPELINE, LATER_RUN, None)
        store.record_failure(PIPELINE, RUN, BROKEN)
        assert stands(scene).failure is None, "the newer run is active"

    def test_a_run_that_was_killed_with_the_turn_has_failed(self, scene: Scene) -> None:
        scene.store.enter_turn(PIPELINE, RUN, None)
        silence(scene)
        assert stands(scene).condition is Condition.RUNNING, "between two tasks no process holds a lease"
        found = stands(scene, ended=[RUN])
        assert found.condition is Condition.FAILED and str(RUN) in found.told

    def test_a_program_that_was_killed_at_work_has_failed(self, scene: Scene) -> None:
        scene.take()
        scene.store.enter_turn(PIPELINE, PROGRAM, None)
        assert stands(scene).condition is Condition.RUNNING
        silence(scene)
        assert stands(scene).condition is Condition.FAILED
        scene.store.renew_lease(PIPELINE, scene.epoch, "worker")
        assert stands(scene).condition is Condition.RUNNING, "it was asleep"

    def test_what_never_ran_and_what_was_retired_has_not_failed(self, scene: Scene) -> None:
        store = scene.store
        assert stands(scene).condition is Condition.IDLE
        store.enter_turn(PIPELINE, RUN, None)
        store.record_failure(PIPELINE, RUN, BROKEN)
        store.leave_turn(PIPELINE, RUN)
        store.retire(PIPELINE, "ada")
        assert stands(scene).condition is Condition.IDLE and stands(scene).trouble is None

    def test_a_pause_hides_no_failure(self, scene: Scene) -> None:
        store = scene.store
        store.enter_turn(PIPELINE, RUN, None)
        found = stands(scene, ended=[RUN], paused={RUN.dag_id})
        assert found.condition is Condition.FAILED and "Its DAG is paused" in found.told, "it was killed"
        store.record_failure(PIPELINE, RUN, BROKEN)
        store.leave_turn(PIPELINE, RUN)
        found = stands(scene, paused={RUN.dag_id})
        assert found.condition is Condition.FAILED and "Its DAG is paused" in found.told and "raised" in found.told

    @pytest.mark.parametrize("how", ["fails before it has the turn", "is killed before it stages"])
    def test_the_next_run_of_a_retired_pipeline_ends_the_silence(self, scene: Scene, how: str) -> None:
        store = scene.store
        store.retire(PIPELINE, "ada")
        if how == "is killed before it stages":
            store.enter_turn(PIPELINE, RUN, None)
            found = stands(scene, ended=[RUN])
        else:
            store.record_failure(PIPELINE, RUN, BROKEN)
            found = stands(scene)
        assert found.condition is Condition.FAILED

    def test_an_old_run_that_is_cleared_does_not_clear_the_failure_of_a_later_one(self, scene: Scene) -> None:
        store = scene.store
        for run in (RUN, LATER_RUN):
            store.enter_turn(PIPELINE, run, None)
            store.leave_turn(PIPELINE, run, confirmed=True)
        store.record_failure(PIPELINE, LATER_RUN, BROKEN)
        store.leave_turn(PIPELINE, RUN, confirmed=True)
        assert stands(scene).condition is Condition.FAILED
        store.leave_turn(PIPELINE, LATER_RUN, confirmed=True)
        assert stands(scene).condition is Condition.IDLE

    def test_what_waits_is_promised_no_run_where_none_comes(self, scene: Scene) -> None:
        scene.stage()
        assert "The next run delivers them" in stands(scene).told
        found = stands(scene, paused={RUN.dag_id})
        assert found.condition is Condition.WAITING and "paused or deleted. No run delivers them" in found.told
        scene.store.retire(PIPELINE, "ada")
        assert "retired. No run delivers them" in stands(scene).told

    def test_what_is_decided_and_what_is_quarantined_come_before_it(self, scene: Scene) -> None:
        scene.stage()
        scene.prepare(1)
        scene.decide(1)
        scene.store.record_failure(PIPELINE, RUN, BROKEN)
        assert stands(scene).condition is Condition.IN_DOUBT and stands(scene).trouble is Condition.FAILED
        scene.quarantine(1)
        assert stands(scene).condition is Condition.QUARANTINED


class TestNotRunning:
    def test_a_stream_runs_while_it_renews_its_lease(self, scene: Scene) -> None:
        scene.stage(made_with=STREAM)
        scene.complete(1)
        store = scene.store
        store.enter_turn(PIPELINE, RUN, None)
        assert stands(scene).condition is Condition.RUNNING
        silence(scene)
        found = stands(scene)
        assert found.condition is Condition.NOT_RUNNING and not found.is_stopped and str(RUN) in found.told
        store.renew_lease(PIPELINE, scene.epoch, "worker")
        assert stands(scene).condition is Condition.RUNNING

    def test_a_stream_whose_run_ended_does_not_run(self, scene: Scene) -> None:
        scene.stage(made_with=STREAM)
        scene.complete(1)
        scene.store.enter_turn(PIPELINE, RUN, None)
        found = stands(scene, ended=[RUN])
        assert found.condition is Condition.NOT_RUNNING and not found.is_stopped
        scene.store.record_failure(PIPELINE, RUN, BROKEN)
        assert stands(scene, ended=[RUN]).condition is Condition.FAILED

    def test_one_that_was_stopped_or_paused_does_not_run_either_and_needs_nobody(self, scene: Scene) -> None:
        scene.stage(made_with=STREAM)
        scene.complete(1)
        scene.store.leave_turn(PIPELINE, RUN, confirmed=True)
        assert stands(scene).condition is Condition.NOT_RUNNING and stands(scene).is_stopped
        found = stands(scene, paused={RUN.dag_id})
        assert found.condition is Condition.NOT_RUNNING and found.is_stopped and "paused" in found.told
        scene.store.record_failure(PIPELINE, RUN, BROKEN)
        found = stands(scene, paused={RUN.dag_id})
        assert found.condition is Condition.FAILED and not found.is_stopped, "it failed, whatever was done later"
        scene.store.retire(PIPELINE, "ada")
        assert stands(scene).condition is Condition.IDLE
        scene.store.begin_stage(PIPELINE, scene.epoch, LATER_RUN)
        assert not stands(scene).streaming, "now it is run by a schedule"

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
        assert stands(scene).condition is Condition.LATE
        scene.store.begin_stage(PIPELINE, scene.epoch, RUN, spec={**STREAM, "late_after": 86400.0})
        assert scene.store.overview(PIPELINE).late_after == timedelta(days=1)


class TestExplained:
    @pytest.mark.parametrize(
        ("problem", "next_run"),
        [(None, "delivers it"), (AWAY, "when the sink answers"), (REFUSED, "fails until")],
    )
    def test_in_doubt_names_each_sink_that_lacks_it_and_what_comes_next(
        self, scene: Scene, problem: Failure | None, next_run: str
    ) -> None:
        scene.stage()
        scene.prepare(1)
        scene.decide(1)
        scene.prove(1, "log")
        if problem is not None:
            scene.store.record_problem(PIPELINE, scene.epoch, 1, "db", problem)
        told = explained(scene.store, stands(scene))
        assert next_run in told and "db" in told and "log:" not in told
        assert problem is None or (problem.message in told and problem.remedy.rstrip(".") in told)

    def test_no_run_is_promised_where_none_comes(self, scene: Scene) -> None:
        scene.stage()
        scene.prepare(1)
        scene.decide(1)
        scene.store.record_failure(PIPELINE, RUN, BROKEN)
        assert "Unpause" in explained(scene.store, stands(scene, paused={RUN.dag_id}))
        scene.store.retire(PIPELINE, "ada")
        assert "retired" in explained(scene.store, stands(scene))

    def test_quarantine_by_a_person_does_not_claim_that_rows_are_refused(self, scene: Scene) -> None:
        scene.stage()
        scene.prepare(1)
        scene.decide(1)
        scene.quarantine(1, "ada wants to look.")
        told = explained(scene.store, stands(scene))
        assert "ada wants to look" in told and "refuse" not in told
        scene.store.record_problem(PIPELINE, scene.epoch, 1, "db", REFUSED)
        assert "set the refused rows aside" in explained(scene.store, stands(scene))


class TestActs:
    def fitting(self, scene: Scene, number: int) -> set[str]:
        opened = scene.store.open_checkpoints(PIPELINE)
        return set(checkpoint_acts(scene.store.pipeline(PIPELINE), scene.checkpoint(number), opened))

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

    def test_of_a_pipeline(self, scene: Scene) -> None:
        assert set(pipeline_acts(stands(scene))) == {"recover", "rewind", "reset_state", "verify", "doctor"}
        scene.stage()
        scene.prepare(1)
        scene.decide(1)
        assert set(pipeline_acts(stands(scene))) == {"recover", "verify", "doctor"}
        scene.quarantine(1)
        assert set(pipeline_acts(stands(scene))) == {"verify", "doctor"}
        scene.store.halt(PIPELINE, HaltReason.TOKEN_LOST, "it is gone.")
        assert set(pipeline_acts(stands(scene))) == {"resume", "verify", "doctor"}

    def test_of_a_stream_that_does_not_run(self, scene: Scene) -> None:
        scene.stage(made_with=STREAM)
        scene.complete(1)
        acts = set(pipeline_acts(stands(scene)))
        assert "retire" in acts and "stop" not in acts
        scene.store.enter_turn(PIPELINE, RUN, None)
        acts = set(pipeline_acts(stands(scene)))
        assert not acts & {"retire", "recover", "rewind", "reset_state"}, "its process holds the lease"
        assert {"stop", "drain", "stop_with_savepoint"} <= acts
        scene.store.release_lease(PIPELINE, "worker")
        assert {"recover", "rewind", "reset_state"} <= set(pipeline_acts(stands(scene))), "between two tasks"
