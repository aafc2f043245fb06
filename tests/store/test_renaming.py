from __future__ import annotations

import pytest

from airflow_ft.core.errors import FencedError, PipelineHaltedError, StateConflictError
from airflow_ft.core.model import AfterAbort, CheckpointState, Former, HaltReason, PipelineStatus, Promise
from airflow_ft.core.overview import Condition
from airflow_ft.core.problems import problems
from airflow_ft.core.steps import require_active
from airflow_ft.core.sweep import health
from tests.store.scene import LATER_RUN, PIPELINE, RUN, Scene, a_position

NEW = "shop-orders"


def renamed(scene: Scene, delivered: int) -> Scene:
    """What the pipeline goes on as."""
    new = Scene(scene.store, NEW)
    new.take()
    scene.store.rename(PIPELINE, scene.epoch, delivered, NEW, new.epoch, a_position(7), "a test")
    return new


class TestRenames:
    def test_numbers_go_on_under_the_new_name_and_nothing_under_the_old_one(self, scene: Scene) -> None:
        first, second = scene.stage(2)
        scene.complete(first)
        scene.abort(second, AfterAbort.REWOUND, second)
        new = renamed(scene, first)
        store = scene.store
        row, old = store.pipeline(NEW), store.pipeline(PIPELINE)
        assert row.former == Former(PIPELINE, first, 3) and row.base == a_position(7) and row.base_is_clean
        assert (old.status, old.former) == (PipelineStatus.RENAMED, None)
        assert old.halt_message == "it goes on as shop-orders, behind checkpoint 1." and old.halted == ""
        assert new.stage() == [3] and store.position_before(NEW, 3) == a_position(7)
        acts = (
            scene.take,
            lambda: store.begin_stage(PIPELINE, scene.epoch, LATER_RUN),
            lambda: require_active(store, PIPELINE),
        )
        for act in acts:
            with pytest.raises(PipelineHaltedError, match="it was renamed: it goes on as shop-orders") as told:
                act()
            assert "let the DAG have the new name" in told.value.remedy
        assert "RENAMED: it goes on as shop-orders" in scene.told()[-1] and "RESTORED" in new.kinds()

    def test_a_run_that_has_died_with_the_turn_is_not_at_work_under_the_old_name_for_ever(self, scene: Scene) -> None:
        store = scene.store
        scene.complete(scene.stage()[0])
        store.enter_turn(PIPELINE, RUN, None)
        renamed(scene, 1)
        assert store.pipeline(PIPELINE).turn is None
        assert store.standing(PIPELINE).condition is Condition.IDLE

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
        with pytest.raises(StateConflictError, match="and not settled"):
            renamed(scene, 1)
        assert scene.store.pipeline(PIPELINE).status is PipelineStatus.ACTIVE

    def test_a_name_that_has_rows_of_its_own_takes_no_other_ones_place(self, scene: Scene) -> None:
        scene.complete(scene.stage()[0])
        other = Scene(scene.store, NEW)
        other.complete(other.stage()[0])
        with pytest.raises(StateConflictError, match="it has checkpoints of its own"):
            renamed(scene, 1)
        assert scene.store.pipeline(PIPELINE).status is PipelineStatus.ACTIVE

    def test_a_number_that_was_aborted_before_it_began_is_not_used_twice(self, scene: Scene) -> None:
        scene.complete(scene.stage()[0])
        other = Scene(scene.store, NEW)
        other.take()
        for _ in range(4):
            other.trigger()
        renamed(scene, 1)
        assert scene.store.pipeline(NEW).former == Former(PIPELINE, 1, 5)
        assert other.checkpoint(4).state is CheckpointState.ABORTED

    def test_an_old_name_is_no_problem_and_a_person_may_take_it_again(self, scene: Scene) -> None:
        store = scene.store
        scene.stage(made_with={})
        scene.complete(1)
        renamed(scene, 1)
        store.halt(PIPELINE, HaltReason.TOKEN_LOST, "found by a process that woke up")
        assert store.pipeline(PIPELINE).status is PipelineStatus.RENAMED
        assert list(problems(store)) == [] and health(store, PIPELINE).needs == ""
        assert store.standing(PIPELINE).condition == "IDLE"
        store.resume(PIPELINE, "ada")
        row = store.pipeline(PIPELINE)
        assert (row.status, row.halt_message) == (PipelineStatus.ACTIVE, "")
        assert "RESUMED: by ada, after it was renamed" in scene.told()[-1]
        scene.stage()
