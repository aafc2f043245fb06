from __future__ import annotations

import pytest

from airflow_ft.protocol.errors import FencedError, LeaseHeldError, PipelineHaltedError, StateConflictError
from airflow_ft.protocol.model import AfterAbort, CheckpointState, RunKey
from airflow_ft.protocol.pipelines import HaltReason
from tests.raising import raises
from tests.store.scene import PIPELINE, Scene

S = CheckpointState


class TestQuarantine:
    def test_it_goes_back_to_where_it_came_from(self, scene: Scene) -> None:
        scene.stage(2)
        scene.prepare(1)
        assert scene.quarantine(1, "the table is gone.").state is S.QUARANTINED
        assert scene.checkpoint(1).message == "the table is gone."
        assert scene.quarantine(1, "again").message == "the table is gone.", "repeated: no effect"
        assert scene.release(1).state is S.PREPARED
        assert scene.release(1).message == ""
        scene.decide(1)
        scene.quarantine(1)
        assert scene.release(1).state is S.COMMITTING, "I3: what was decided stays decided"
        for name in scene.promises:
            scene.prove(1, name)
        assert scene.checkpoint(1).state is S.COMPLETED
        assert scene.kinds(1).count("QUARANTINED") == 2
        assert any("taken out of quarantine" in text for text in scene.event_texts(1))

    def test_only_what_is_in_doubt_can_be_quarantined(self, scene: Scene) -> None:
        scene.stage(2)
        with raises(StateConflictError, "checkpoint_state", to="QUARANTINED"):
            scene.quarantine(1)
        scene.complete(1)
        with raises(StateConflictError, "checkpoint_state", to="QUARANTINED"):
            scene.quarantine(1)
        for number in (1, 2):
            with raises(StateConflictError, "checkpoint_state", checkpoint=number):
                scene.release(number)

    def test_the_earlier_one_goes_first(self, scene: Scene) -> None:
        scene.stage(2)
        scene.prepare(1)
        scene.prepare(2)
        with raises(StateConflictError, "checkpoint_unresolved", checkpoint=2, earlier=1, state="PREPARED"):
            scene.quarantine(2)
        scene.quarantine(1)
        with raises(StateConflictError, "checkpoint_unresolved", checkpoint=2, earlier=1, state="QUARANTINED"):
            scene.quarantine(2)

    def test_nothing_is_planned_or_decided_past_it(self, scene: Scene) -> None:
        scene.stage(3)
        scene.prepare(1)
        scene.prepare(2)
        scene.quarantine(1)
        with raises(StateConflictError, "checkpoint_unresolved", earlier=1, state="QUARANTINED"):
            scene.decide(2)
        with raises(StateConflictError, "checkpoint_unresolved", earlier=1, state="QUARANTINED"):
            scene.plan(3)
        scene.release(1)
        scene.decide(1)
        assert scene.decide(2).state is S.COMMITTING

    @pytest.mark.parametrize("decided", [False, True])
    def test_its_rows_are_kept_whole(self, scene: Scene, decided: bool) -> None:
        """I10: neither carried by another number, nor computed again, nor aborted, nor pruned."""
        scene.stage(4)
        scene.prepare(3, [1, 2, 3])
        if decided:
            scene.decide(3)
        scene.quarantine(3)
        assert scene.open_numbers() == [1, 2, 3, 4]
        with raises(StateConflictError, "checkpoint_unresolved", checkpoint=3, state="QUARANTINED"):
            scene.store.rewind(PIPELINE, scene.epoch, 2, None, "a test")
        with raises(StateConflictError, "checkpoint_state", state="QUARANTINED"):
            scene.abort(3, tombstoned=decided)
        with raises(StateConflictError, "checkpoint_unresolved", checkpoint=4, earlier=3):
            scene.plan(4, [1, 2, 4])
        for number in (1, 2, 3):
            with pytest.raises(StateConflictError):
                scene.store.prune(PIPELINE, number)
        assert {f"file:///wal/{number}" for number in (1, 2, 3, 4)} <= scene.store.referenced_locations(PIPELINE)
        scene.store.rewind(PIPELINE, scene.epoch, 4, scene.store.position_before(PIPELINE, 4), "what comes after it")
        assert scene.checkpoint(4).after_abort is AfterAbort.REWOUND
        assert scene.checkpoint(3).state is S.QUARANTINED

    def test_a_decision_or_a_proof_that_comes_late_does_not_move_it(self, scene: Scene) -> None:
        scene.stage(1)
        scene.prepare(1)
        votes = scene.votes(1)
        scene.quarantine(1)
        with raises(StateConflictError, "checkpoint_state", state="QUARANTINED"):
            scene.store.decide(PIPELINE, scene.epoch, 1, votes)
        scene.release(1)
        scene.decide(1)
        scene.quarantine(1)
        with raises(StateConflictError, "checkpoint_state", state="QUARANTINED"):
            scene.prove(1, "db")

    def test_an_older_epoch_changes_nothing(self, scene: Scene) -> None:
        scene.stage(1)
        scene.prepare(1)
        scene.take("successor")
        with pytest.raises(FencedError):
            scene.store.quarantine(PIPELINE, 1, 1, "a zombie")
        scene.quarantine(1)
        with pytest.raises(FencedError):
            scene.store.release(PIPELINE, 1, 1, "a zombie")

    def test_a_lease_may_prevent_it(self, scene: Scene) -> None:
        scene.stage(1)
        scene.prepare(1)
        with raises(LeaseHeldError, "lease_held", holder="worker"):
            scene.store.quarantine(PIPELINE, scene.epoch, 1, "a test.", if_idle=True)
        scene.store.release_lease(PIPELINE, "worker")
        assert scene.store.quarantine(PIPELINE, scene.epoch, 1, "a test.", if_idle=True).state is S.QUARANTINED

    def test_a_halted_pipeline_quarantines_but_releases_nothing(self, scene: Scene) -> None:
        scene.stage(1)
        scene.prepare(1)
        scene.store.halt(PIPELINE, HaltReason.TOKEN_LOST, "the token is gone.")
        scene.quarantine(1)
        with pytest.raises(PipelineHaltedError):
            scene.release(1)
        with raises(StateConflictError, "checkpoint_unresolved", checkpoint=1, state="QUARANTINED"):
            scene.store.adopt(PIPELINE, 41, {"db": 17}, "someone", expected=1)

    def test_the_run_is_not_settled(self, scene: Scene) -> None:
        scene.stage(1)
        scene.prepare(1)
        scene.decide(1)
        scene.quarantine(1)
        [found] = scene.store.run_checkpoints(PIPELINE, RunKey("dag", "run-1"))
        assert not found.is_settled and not found.is_confirmed
