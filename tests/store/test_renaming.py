from __future__ import annotations

from datetime import UTC, datetime

import pytest

from airflow_ft.pipeline.checkpoints import Gate
from airflow_ft.protocol.errors import FencedError, PipelineHaltedError, StateConflictError
from airflow_ft.protocol.failure import Failure
from airflow_ft.protocol.model import AfterAbort, CheckpointState, Former, Promise
from airflow_ft.protocol.overview import Condition
from airflow_ft.protocol.pipelines import HaltReason, PipelineStatus
from airflow_ft.protocol.problems import problems
from airflow_ft.protocol.steps import require_active
from airflow_ft.protocol.sweep import health
from tests.raising import raises
from tests.store.scene import LATER_RUN, PIPELINE, RUN, Scene, a_position

NEW = "shop-orders"


def renamed(scene: Scene, delivered: int) -> Scene:
    """What the pipeline goes on as."""
    new = Scene(scene.store, NEW)
    new.take()
    scene.store.rename(PIPELINE, scene.epoch, delivered, NEW, new.epoch, a_position(7), "a test")
    return new


class TestRenames:
    def test_numbers_continue_under_the_new_name_only(self, scene: Scene) -> None:
        first, second = scene.stage(2)
        scene.complete(first)
        scene.abort(second, AfterAbort.REWOUND, second)
        new = renamed(scene, first)
        store = scene.store
        row, old = store.pipeline(NEW), store.pipeline(PIPELINE)
        assert row.former == Former(PIPELINE, first, 3) and row.base == a_position(7) and row.base_is_clean
        assert (old.status, old.former) == (PipelineStatus.RENAMED, None)
        assert (old.renamed_to, old.halt) == (NEW, None)
        assert new.stage() == [3] and store.position_before(NEW, 3) == a_position(7)
        actions = (
            scene.take,
            lambda: store.begin_stage(PIPELINE, scene.epoch, LATER_RUN),
            lambda: require_active(store, PIPELINE),
        )
        for action in actions:
            with raises(PipelineHaltedError, "pipeline_renamed", pipeline=PIPELINE) as caught:
                action()
            assert NEW in caught.error.headline and caught.error.fields["new"] == NEW
        assert "RENAMED: it continues as shop-orders" in scene.event_texts()[-1] and "RESTORED" in new.kinds()

    def test_a_rename_frees_the_turn_of_a_dead_run(self, scene: Scene) -> None:
        store = scene.store
        scene.complete(scene.stage()[0])
        store.enter_turn(PIPELINE, RUN, None)
        renamed(scene, 1)
        assert store.pipeline(PIPELINE).turn is None
        assert store.overview(PIPELINE).condition is Condition.RENAMED

    def test_a_gate_that_cannot_open_any_more_says_so(self, scene: Scene) -> None:
        scene.complete(scene.stage()[0])
        renamed(scene, 1)
        assert Gate(number=1).is_open(scene.store, PIPELINE) == {"pipeline": PIPELINE, "number": 1}
        for gate in (Gate(number=2), Gate(run=LATER_RUN), Gate(as_of=datetime(2100, 1, 1, tzinfo=UTC))):
            with raises(PipelineHaltedError, "pipeline_renamed", pipeline=PIPELINE):
                gate.is_open(scene.store, PIPELINE)

    def test_whoever_acts_with_an_older_epoch_renames_nothing(self, scene: Scene) -> None:
        scene.complete(scene.stage()[0])
        held, scene.epoch = scene.epoch, 0
        scene.take("other")
        scene.epoch = held
        with pytest.raises(FencedError):
            renamed(scene, 1)
        assert scene.store.pipeline(PIPELINE).status is PipelineStatus.ACTIVE
        assert scene.store.pipeline(NEW).former is None and scene.store.pipeline(NEW).next_number == 1

    @pytest.mark.parametrize("left", ["triggered", "staged", "prepared", "committing", "quarantined", "rolling back"])
    def test_what_is_not_settled_keeps_its_name(self, scene: Scene, left: str) -> None:
        scene.promises = {"db": Promise.TWO_PHASE}
        scene.complete(scene.stage()[0])
        if left == "triggered":
            scene.store.begin_stage(PIPELINE, scene.epoch, RUN)
            scene.trigger()
        else:
            (number,) = scene.stage()
            if left != "staged":
                scene.prepare(number)
            if left == "committing":
                scene.decide(number)
            elif left == "quarantined":
                scene.quarantine(number)
            elif left == "rolling back":
                assert scene.abort(number, AfterAbort.REWOUND, number).rollback_pending
        with raises(StateConflictError, "checkpoint_unresolved", pipeline=PIPELINE):
            renamed(scene, 1)
        assert scene.store.pipeline(PIPELINE).status is PipelineStatus.ACTIVE

    def test_a_name_with_rows_of_its_own_is_refused_as_a_new_name(self, scene: Scene) -> None:
        scene.complete(scene.stage()[0])
        other = Scene(scene.store, NEW)
        other.complete(other.stage()[0])
        with raises(StateConflictError, "pipeline_not_new", pipeline=NEW):
            renamed(scene, 1)
        assert scene.store.pipeline(PIPELINE).status is PipelineStatus.ACTIVE

    def test_numbers_aborted_under_the_new_name_are_not_reused(self, scene: Scene) -> None:
        scene.complete(scene.stage()[0])
        other = Scene(scene.store, NEW)
        other.take()
        for _ in range(4):
            other.trigger()
        renamed(scene, 1)
        assert scene.store.pipeline(NEW).former == Former(PIPELINE, 1, 5)
        assert other.checkpoint(4).state is CheckpointState.ABORTED

    def test_an_old_name_is_no_problem_and_may_be_resumed(self, scene: Scene) -> None:
        store = scene.store
        scene.stage(made_with={})
        scene.complete(1)
        renamed(scene, 1)
        store.halt(PIPELINE, HaltReason.TOKEN_LOST, "found by a process that woke up")
        assert store.pipeline(PIPELINE).status is PipelineStatus.RENAMED
        store.record_failure(PIPELINE, RUN, Failure("PipelineHaltedError", "pipeline_renamed", "its DAG ran again."))
        assert list(problems(store)) == [] and health(store, PIPELINE).needs == ""
        assert not health(store, PIPELINE).failed
        overview = store.overview(PIPELINE)
        assert (overview.condition, overview.description) == ("RENAMED", "It continues as shop-orders.")
        store.resume(PIPELINE, "ada")
        row = store.pipeline(PIPELINE)
        assert (row.status, row.renamed_to) == (PipelineStatus.ACTIVE, "")
        assert "RESUMED: by ada, after RENAMED" in scene.event_texts()[-1]
        scene.stage()

    def test_no_run_is_at_work_under_an_old_name(self, scene: Scene) -> None:
        scene.complete(scene.stage()[0])
        scene.store.enter_turn(PIPELINE, RUN, None)
        renamed(scene, 1)
        assert scene.store.pipeline(PIPELINE).turn is None

    def test_resuming_the_old_name_fences_runs_under_the_new_name(self, scene: Scene) -> None:
        store = scene.store
        scene.complete(scene.stage()[0])
        new = renamed(scene, 1)
        store.enter_turn(NEW, RUN, None)
        store.begin_stage(NEW, new.epoch, RUN)
        number = new.trigger()
        store.resume(PIPELINE, "ada")
        with pytest.raises(FencedError):
            new.publish(number)
        row = store.pipeline(NEW)
        assert (row.former, row.base, row.turn, row.renamed_to) == (None, None, None, PIPELINE)
        assert "RENAMED: it continues as orders, which has its name back. By ada." in new.event_texts()[-1]
        with raises(PipelineHaltedError, "pipeline_renamed", pipeline=NEW):
            require_active(store, NEW)
        new.take()
        for action in (new.trigger, lambda: store.begin_stage(NEW, new.epoch, LATER_RUN)):
            with raises(PipelineHaltedError, "pipeline_renamed", pipeline=NEW):
                action()
        scene.take()
        renamed(scene, 1)
        assert store.pipeline(NEW).status is PipelineStatus.ACTIVE and store.pipeline(NEW).renamed_to == ""
        assert store.pipeline(NEW).former == Former(PIPELINE, 1, 3), "number 2 was given out"

    def test_an_old_name_is_not_resumed_once_the_new_one_has_staged(self, scene: Scene) -> None:
        scene.complete(scene.stage()[0])
        renamed(scene, 1).stage()
        with raises(StateConflictError, "pipeline_not_new", pipeline=PIPELINE, other=NEW):
            scene.store.resume(PIPELINE, "ada")
        assert scene.store.pipeline(PIPELINE).status is PipelineStatus.RENAMED

    def test_a_name_that_was_taken_back_may_begin_anew(self, scene: Scene) -> None:
        scene.complete(scene.stage()[0])
        new = renamed(scene, 1)
        scene.store.resume(PIPELINE, "ada")
        new.take()
        scene.store.restore(NEW, new.epoch, a_position(3), "a copy")
        assert scene.store.pipeline(NEW).status is PipelineStatus.ACTIVE and scene.store.pipeline(NEW).former is None
        new.stage()

    def test_the_numbers_of_a_copy_are_above_those_of_its_savepoint(self, scene: Scene) -> None:
        """A sink that compares numbers by key would leave rows of the other pipeline as they are."""
        copy = Scene(scene.store, NEW)
        copy.take()
        scene.store.restore(NEW, copy.epoch, a_position(3), "a copy", of=(PIPELINE, 17))
        assert copy.stage() == [18]
        copy.complete(18)
        scene.store.restore(NEW, copy.epoch, a_position(3), "an older one", of=(PIPELINE, 5))
        assert copy.stage() == [19]

    def test_a_run_that_renames_does_so_once(self, scene: Scene) -> None:
        scene.complete(scene.stage()[0])
        new = Scene(scene.store, NEW)
        new.take()
        scene.store.rename(PIPELINE, scene.epoch, 1, NEW, new.epoch, a_position(7), "a test", RUN, "/savepoint")
        run = scene.store.run(NEW, RUN)
        assert run is not None and run.restored_from == "/savepoint"
