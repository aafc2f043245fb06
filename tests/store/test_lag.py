"""What is told of sources, and when a pipeline is late."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from airflow_ft.protocol.errors import FencedError, StateConflictError
from airflow_ft.protocol.lag import Lag, Unit
from airflow_ft.protocol.overview import Condition
from airflow_ft.store.rows import from_time
from tests.raising import raises
from tests.store.scene import LATER_RUN, PIPELINE, RUN, Scene

MoveClock = Callable[[timedelta], None]

ORDERS = Lag("orders", Unit.RECORDS, 70, 12.5, 30, 100)
FILES = Lag("files", Unit.FILES, 3)
LATE = {"late_after": 3600.0}


class TestLags:
    def test_the_newest_lag_counts_and_a_checkpoint_keeps_its_own(self, scene: Scene) -> None:
        store = scene.store
        assert not store.lags([]) and not store.lags([PIPELINE])
        other = Scene(store, "other")
        for each in (scene, other):
            each.stage(3)
        store.record_lags(PIPELINE, scene.epoch, 1, [ORDERS, FILES])
        store.record_lags("other", other.epoch, 0, [FILES])
        stored = store.lags([PIPELINE, "other", "nowhere"])
        assert {name: [replace(each, at=None) for each in lags] for name, lags in stored.items()} == {
            PIPELINE: [FILES, ORDERS],
            "other": [FILES],
        }
        at = stored[PIPELINE][0].at
        assert at is not None and timedelta(0) <= store.now() - at < timedelta(minutes=1)
        store.record_lags(PIPELINE, scene.epoch, 3, [replace(ORDERS, behind=5)])
        assert [each.behind for each in store.lags([PIPELINE])[PIPELINE]] == [5]
        assert [each.lag for each in store.timings(PIPELINE, 5)] == [{"orders": 5}, {}, {"orders": 70, "files": 3}]
        assert [each.lag for each in store.timings("other", 5)] == [{}, {}, {}]
        assert [each.lag for each in store.checkpoints(PIPELINE)] == [each.lag for each in store.timings(PIPELINE, 5)]

    def test_whoever_was_replaced_tells_nothing_any_more(self, scene: Scene) -> None:
        scene.stage()
        old = scene.epoch
        scene.take()
        with pytest.raises(FencedError):
            scene.store.record_lags(PIPELINE, old, 1, [ORDERS])
        assert not scene.store.lags([PIPELINE])

    def test_it_writes_no_event(self, scene: Scene) -> None:
        scene.stage()
        before = scene.store.events(PIPELINE)
        scene.store.record_lags(PIPELINE, scene.epoch, 1, [ORDERS])
        assert scene.store.events(PIPELINE) == before


class TestLate:
    """All times are put two hours back: nothing was confirmed in the last one."""

    @staticmethod
    def condition(scene: Scene) -> Condition:
        """As of two hours later."""
        database = scene.store._database  # type: ignore[attr-defined]
        past = from_time(scene.store.now() - timedelta(hours=2))
        with database.write() as tx:
            for name in ("created_at", "confirmed_at", "complete_at"):
                tx.change(f"UPDATE pipeline SET {name} = ? WHERE {name} > ?", past, past)
            tx.change("UPDATE checkpoint SET completed_at = ? WHERE completed_at > ?", past, past)
            tx.change("UPDATE run SET stage_began = ? WHERE stage_began > ?", past, past)
        return scene.store.overview(PIPELINE).condition

    def test_without_a_bound_nothing_is_late(self, scene: Scene) -> None:
        scene.stage(made_with={"job": "shop"})
        scene.complete(1)
        assert self.condition(scene) is Condition.IDLE and scene.store.overview(PIPELINE).late is None

    def test_nothing_confirmed_for_longer_than_the_bound(self, scene: Scene) -> None:
        scene.stage(2, made_with=LATE)
        assert scene.store.overview(PIPELINE).condition is Condition.WAITING
        assert self.condition(scene) is Condition.LATE, "nothing was ever confirmed"
        scene.complete(1)
        assert scene.store.overview(PIPELINE).late is None, "just now"
        assert self.condition(scene) is Condition.LATE
        late = scene.store.overview(PIPELINE).late
        assert late is not None and timedelta(hours=2) <= late < timedelta(hours=2, minutes=1)
        scene.store.enter_turn(PIPELINE, RUN, None)
        assert scene.store.overview(PIPELINE).condition is Condition.LATE, "although somebody is at work"
        assert [each.condition for each in scene.store.overviews()] == [Condition.LATE]
        scene.complete(2)
        assert scene.store.overview(PIPELINE).condition is Condition.RUNNING

    def test_a_pipeline_made_by_a_fast_clock_becomes_late(self, scene: Scene, move_clock: MoveClock) -> None:
        move_clock(timedelta(days=400))
        scene.take()
        move_clock(timedelta(0))
        scene.stage(made_with=LATE)
        move_clock(timedelta(hours=2))
        assert scene.store.overview(PIPELINE).condition is Condition.LATE

    @pytest.mark.parametrize("waits", [False, True])
    def test_a_fast_clock_does_not_silence_it(self, scene: Scene, waits: bool, move_clock: MoveClock) -> None:
        scene.stage(made_with=LATE)
        move_clock(timedelta(days=400))
        scene.stage(run=LATER_RUN, made_with=LATE)
        scene.complete(1)
        if not waits:
            scene.complete(2)
        move_clock(timedelta(hours=2))
        assert scene.store.overview(PIPELINE).condition is Condition.LATE

    def test_what_is_worse_is_told_first(self, scene: Scene) -> None:
        scene.stage(made_with=LATE)
        scene.prepare(1)
        scene.decide(1)
        assert self.condition(scene) is Condition.IN_DOUBT

    def test_a_run_that_found_nothing_new_is_late_only_if_rows_wait(self, scene: Scene) -> None:
        scene.stage(made_with=LATE)
        scene.complete(1)
        assert self.condition(scene) is Condition.LATE
        scene.store.begin_stage(PIPELINE, scene.epoch, LATER_RUN, spec=LATE)
        assert scene.store.overview(PIPELINE).condition is Condition.LATE, "it has only begun"
        scene.store.end_stage(PIPELINE, scene.epoch, LATER_RUN, None)
        assert scene.store.overview(PIPELINE).condition is Condition.IDLE
        scene.stage(made_with=LATE)
        assert scene.store.overview(PIPELINE).condition is Condition.LATE, "its rows wait"

    def test_a_stream_that_has_read_all_is_in_time(self, scene: Scene) -> None:
        scene.stage(made_with=LATE, continues=True)
        scene.complete(1)
        assert self.condition(scene) is Condition.LATE
        scene.store.read_all(PIPELINE, scene.epoch, RUN, scene.store.now())
        assert scene.store.overview(PIPELINE).condition is Condition.IDLE

    def test_the_bound_is_that_of_the_newest_run(self, scene: Scene) -> None:
        scene.stage(made_with=LATE)
        scene.complete(1)
        assert self.condition(scene) is Condition.LATE
        scene.stage(run=LATER_RUN, made_with={"late_after": None})
        assert self.condition(scene) is Condition.WAITING

    def test_a_retired_pipeline_is_not_late_until_it_runs_again(self, scene: Scene) -> None:
        scene.stage(made_with=LATE)
        scene.complete(1)
        assert self.condition(scene) is Condition.LATE
        for _ in range(2):
            scene.store.retire(PIPELINE, "ada")
        assert scene.store.overview(PIPELINE).condition is Condition.IDLE
        assert [each.message for each in scene.store.events(PIPELINE) if each.kind == "RETIRED"] == [
            "pipeline orders RETIRED: by ada"
        ]
        scene.stage(run=LATER_RUN, made_with=LATE)
        assert self.condition(scene) is Condition.LATE

    def test_a_pipeline_with_an_active_run_is_not_retired(self, scene: Scene) -> None:
        scene.store.enter_turn(PIPELINE, RUN, None)
        scene.stage(made_with=LATE)
        scene.complete(1)
        with raises(StateConflictError, "run_active", run=str(RUN)):
            scene.store.retire(PIPELINE, "ada")
        with raises(StateConflictError, "run_active", run=str(RUN)):
            scene.store.retire(PIPELINE, "ada", LATER_RUN)
        assert self.condition(scene) is Condition.LATE

    def test_the_turn_of_a_run_that_has_ended_is_free_then(self, scene: Scene) -> None:
        """It has failed, and nobody came after it: it stood in the way for good."""
        scene.store.enter_turn(PIPELINE, RUN, None)
        scene.stage(made_with=LATE)
        scene.complete(1)
        scene.store.retire(PIPELINE, "ada", RUN)
        assert scene.store.pipeline(PIPELINE).turn is None and self.condition(scene) is Condition.IDLE
