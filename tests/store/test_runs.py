"""Runs: what tells them apart, who staged them, and how far they have read their sources."""

from __future__ import annotations

from datetime import timedelta

import pytest

from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.protocol.model import AfterAbort, RunKey
from tests.raising import raises
from tests.store.scene import LATER_RUN, PIPELINE, RUN, Scene

MAPPED = RunKey("dag", "mapped", 0)


class TestRuns:
    def test_map_indexes_are_runs_of_their_own(self, scene: Scene) -> None:
        other = RunKey("dag", "mapped", 1)
        assert (str(MAPPED), str(other), str(RunKey("dag", "mapped"))) == (
            "dag/mapped[0]",
            "dag/mapped[1]",
            "dag/mapped",
        )
        assert scene.store.enter_turn(PIPELINE, MAPPED, None) == MAPPED
        assert scene.store.pipeline(PIPELINE).turn == MAPPED
        numbers = scene.stage(2, MAPPED)
        assert [c.number for c in scene.store.run_checkpoints(PIPELINE, MAPPED)] == numbers
        assert {c.run for c in scene.store.checkpoints(PIPELINE)} == {MAPPED}
        assert not scene.store.run_checkpoints(PIPELINE, other)
        assert scene.store.run(PIPELINE, other) is None
        assert not scene.store.run_checkpoints(PIPELINE, RunKey("dag", "mapped"))
        assert [run.key for run in scene.store.runs(PIPELINE, "dag", "mapped")] == [MAPPED]
        scene.store.leave_turn(PIPELINE, other)
        assert scene.store.pipeline(PIPELINE).turn == MAPPED
        scene.store.leave_turn(PIPELINE, MAPPED)
        assert scene.store.pipeline(PIPELINE).turn is None

    @pytest.mark.parametrize("index", [-1, 1])
    def test_one_map_index_of_a_dag_run_has_the_pipeline(self, scene: Scene, index: int) -> None:
        scene.store.enter_turn(PIPELINE, MAPPED, None)
        with raises(ConfigurationError, "map_index_conflict", other=str(MAPPED)):
            scene.store.enter_turn(PIPELINE, RunKey("dag", "mapped", index), None)
        scene.store.leave_turn(PIPELINE, MAPPED)  # also when the first one has finished
        with raises(ConfigurationError, "map_index_conflict", other=str(MAPPED)):
            scene.store.enter_turn(PIPELINE, RunKey("dag", "mapped", index), None)
        assert scene.store.enter_turn(PIPELINE, MAPPED, None) == MAPPED, "a cleared one finds its own run again"
        scene.store.leave_turn(PIPELINE, MAPPED)
        again = RunKey("dag", "mapped-later", index)
        assert scene.store.enter_turn(PIPELINE, again, None) == again, "another DAG run may map otherwise"

    def test_a_run_knows_who_staged_it_and_when_that_began(self, scene: Scene) -> None:
        epoch = scene.take()
        before = scene.store.now()
        scene.store.begin_stage(PIPELINE, epoch, RUN, "dag/run/orders.stage[1]")
        scene.publish(scene.trigger())
        row = scene.store.run(PIPELINE, RUN)
        assert row is not None and row.stage_task == "dag/run/orders.stage[1]" and not row.complete
        assert row.stage_began is not None and before <= row.stage_began <= scene.store.now()
        scene.store.end_stage(PIPELINE, epoch, RUN, None)
        ended = scene.store.run(PIPELINE, RUN)
        assert ended is not None and (ended.complete, ended.through) == (True, 1)
        assert ended.stage_began == row.stage_began

    def test_a_stage_that_begins_again_has_read_nothing_yet(self, scene: Scene) -> None:
        scene.stage(1)
        began = scene.store.now()
        scene.store.begin_stage(PIPELINE, scene.epoch, RUN)
        assert scene.store.read_through(PIPELINE, began - timedelta(days=1)) is None
        scene.store.end_stage(PIPELINE, scene.epoch, RUN, None)
        assert scene.store.read_through(PIPELINE, began) == 1

    def test_the_first_complete_stage_at_or_after_a_time_is_found(self, scene: Scene) -> None:
        scene.stage(1)
        between = scene.store.now()
        scene.stage(2, LATER_RUN)
        scene.stage(1, MAPPED)
        assert scene.store.read_through(PIPELINE, between) == 3
        found = scene.store.run(PIPELINE, LATER_RUN)
        assert found is not None and found.stage_began is not None
        assert scene.store.read_through(PIPELINE, found.stage_began) == 3, "at that very moment too"
        assert scene.store.read_through(PIPELINE, scene.store.now()) is None
        assert scene.store.complete_around(PIPELINE, 3) == (3, 3)
        assert scene.store.complete_around(PIPELINE, 2) == (1, 3)
        assert scene.store.complete_around(PIPELINE, 5) == (4, None)
        assert scene.store.complete_around(PIPELINE, 0) == (0, 1)

    def test_a_stage_that_left_input_to_the_next_one_is_not_complete(self, scene: Scene) -> None:
        scene.take()
        began = scene.store.now()
        scene.store.begin_stage(PIPELINE, scene.epoch, RUN)
        scene.publish(scene.trigger())
        scene.store.end_stage(PIPELINE, scene.epoch, RUN, None, complete=False)
        row = scene.store.run(PIPELINE, RUN)
        assert row is not None and row.staged and not row.complete
        assert scene.store.read_through(PIPELINE, began) is None

    def test_a_rewind_takes_back_what_runs_have_read(self, scene: Scene) -> None:
        began = scene.store.now()
        scene.stage(1)
        scene.stage(1, LATER_RUN)
        scene.take()
        # It finds nothing new, counts on what is rewound below, and publishes nothing itself.
        scene.store.begin_stage(PIPELINE, scene.epoch, MAPPED)
        scene.store.end_stage(PIPELINE, scene.epoch, MAPPED, None)
        assert scene.store.complete_around(PIPELINE, 2) == (2, 2)
        scene.abort(2, AfterAbort.REWOUND, 2)
        assert scene.store.complete_around(PIPELINE, 2) == (1, None)
        assert scene.store.read_through(PIPELINE, began) == 1, "what the first run has read is not computed again"
        assert scene.store.is_rewound(PIPELINE, 1, 2) and not scene.store.is_rewound(PIPELINE, 0, 1)
        scene.take()
        scene.stage(1, LATER_RUN)
        assert scene.store.complete_around(PIPELINE, 2) == (1, 3)

    def test_a_pipeline_that_is_not_known_is_told(self, scene: Scene) -> None:
        for ask in (
            lambda: scene.store.read_through("nobody", scene.store.now()),
            lambda: scene.store.complete_around("nobody", 1),
            lambda: scene.store.is_rewound("nobody", 0, 1),
            lambda: scene.store.runs("nobody", "d", "r"),
        ):
            with pytest.raises(KeyError):
                ask()
