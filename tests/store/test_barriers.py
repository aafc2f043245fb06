"""Barriers in the decision log: the first injection counts; what each pipeline has read up to a number."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.protocol.model import AfterAbort
from airflow_ft.store.decision_log import DecisionLog
from tests.raising import raises
from tests.store.scene import LATER_RUN, PIPELINE, RUN, Scene, a_segment

MoveClock = Callable[[timedelta], None]


class TestInjection:
    def test_it_is_of_one_moment_in_all_pipelines(self, store: DecisionLog) -> None:
        for name in ("orders", "payments", "refunds"):
            store.register(name)
        before = store.now()
        found = store.inject("closing", ["payments", "orders"], "anna")
        assert [each.pipeline for each in found] == ["orders", "payments"]
        assert len({each.injected_at for each in found}) == 1
        assert before <= found[0].injected_at <= store.now()
        assert list(store.barrier("closing")) == list(found) == list(reversed(store.barriers()))
        assert store.barrier("another") == []
        [event] = store.events("orders", limit=1)
        assert (event.kind, event.message) == ("BARRIER", "pipeline orders BARRIER: closing injected by anna")
        assert "BARRIER" not in [event.kind for event in store.events("refunds")]

    def test_the_first_one_counts_for_each_pipeline(self, store: DecisionLog) -> None:
        for name in ("orders", "payments"):
            store.register(name)
        [first] = store.inject("closing", ["orders"], "anna")
        events = len(store.events("orders"))
        again = store.inject("closing", ["orders", "payments"], "ben")
        assert again[0] == first
        assert again[1].injected_at > first.injected_at and again[1].injected_by == "ben"
        assert len(store.events("orders")) == events
        assert list(store.inject("closing", ["orders"], "carl")) == [first]

    def test_a_stream_on_a_fast_clock_does_not_move_it(self, scene: Scene, move_clock: MoveClock) -> None:
        store = scene.store
        move_clock(timedelta(days=400))
        scene.stage(continues=True)
        store.end_stage(PIPELINE, scene.epoch, RUN, None, complete=False)
        store.leave_turn(PIPELINE, RUN)
        move_clock(timedelta(0))
        [found] = store.inject("closing", [PIPELINE], "anna")
        assert found.injected_at <= store.now()

    @pytest.mark.parametrize("reader", ["stage", "stream", "idle"])
    def test_it_is_later_than_what_was_read_before(self, scene: Scene, move_clock: MoveClock, reader: str) -> None:
        """The clock went back meanwhile, or another server has taken over."""
        store = scene.store
        move_clock(timedelta(seconds=20))
        as_of = store.now()
        if reader == "stage":
            scene.stage()
        move_clock(timedelta(0))
        if reader != "stage":
            scene.take()
            store.begin_stage(PIPELINE, scene.epoch, RUN)
            scene.publish(scene.trigger(), as_of=as_of if reader == "stream" else None)
            store.read_all(PIPELINE, scene.epoch, RUN, as_of if reader == "idle" else store.now())
        store.register("payments")
        found = store.inject("closing", ["payments", PIPELINE], "anna")
        assert len({each.injected_at for each in found}) == 1
        for at in (as_of, found[0].injected_at):
            assert store.read_through(PIPELINE, at) is None

    def test_positions_of_given_rows_do_not_put_it_into_the_future(self, scene: Scene) -> None:
        scene.take()
        scene.store.begin_stage(PIPELINE, scene.epoch, RUN)
        later = scene.store.now() + timedelta(days=30)
        number = scene.trigger()
        scene.store.publish(PIPELINE, scene.epoch, number, 0, a_segment(number), None, {"position": 1}, later)
        scene.store.end_stage(PIPELINE, scene.epoch, RUN, None)
        [found] = scene.store.inject("closing", [PIPELINE], "anna")
        assert found.injected_at < later
        assert scene.store.read_through(PIPELINE, found.injected_at) == number, "as the caller has said"

    def test_it_is_in_all_pipelines_or_in_none(self, store: DecisionLog) -> None:
        store.register("orders")
        with raises(KeyError, "pipeline_unknown", pipeline="nobody"):
            store.inject("closing", ["nobody", "orders"], "anna")
        with pytest.raises(KeyError):
            store.inject("closing", ["orders", "zebra"], "anna")
        assert store.barrier("closing") == []
        assert [event.kind for event in store.events("orders")] == ["REGISTERED"]

    @pytest.mark.parametrize("wrong", ["", " closing", "two\nlines", "2026-01-02", "2026-01-02T00:00:00Z", "x" * 251])
    def test_an_id_is_a_line_that_is_no_time(self, wrong: str, scene: Scene) -> None:
        with raises(ConfigurationError, "argument_invalid", argument="barrier"):
            scene.store.inject(wrong, [PIPELINE], "anna")

    def test_the_newest_come_first(self, scene: Scene) -> None:
        for barrier in ("b", "a", "c"):
            scene.store.inject(barrier, [PIPELINE], "anna")
        assert [each.id for each in scene.store.barriers(limit=2)] == ["c", "a"]


class TestWhatANumberCovers:
    def test_of_stages_the_last_one_up_to_it(self, scene: Scene) -> None:
        store = scene.store
        assert store.read_as_of(PIPELINE, 9) is None
        scene.stage(2)
        first = store.run(PIPELINE, RUN)
        scene.stage(1, LATER_RUN)
        second = store.run(PIPELINE, LATER_RUN)
        assert first is not None and second is not None
        assert [store.read_as_of(PIPELINE, number) for number in range(1, 5)] == [
            None,
            first.stage_began,
            second.stage_began,
            second.stage_began,
        ]
        store.begin_stage(PIPELINE, scene.epoch, RUN)
        store.end_stage(PIPELINE, scene.epoch, RUN, None)
        nothing_new = store.run(PIPELINE, RUN)
        assert nothing_new is not None and nothing_new.through == 3
        assert store.read_as_of(PIPELINE, 3) == nothing_new.stage_began, "the latest of those that know it"
        assert store.read_as_of(PIPELINE, 2) is None, "a run has one stage: what its first one knew is gone"

    def test_a_number_of_a_stream_covers_the_last_reported_time(self, scene: Scene) -> None:
        store = scene.store
        scene.take()
        store.begin_stage(PIPELINE, scene.epoch, RUN)
        times = [store.now(), store.now(), store.now()]
        scene.publish(scene.trigger(), as_of=times[0])
        scene.publish(scene.trigger())  # a slice
        assert [store.read_as_of(PIPELINE, number) for number in (0, 1, 2)] == [None, times[0], times[0]]
        store.read_all(PIPELINE, scene.epoch, RUN, times[1])
        assert [store.read_as_of(PIPELINE, number) for number in (1, 2)] == times[:2]
        scene.publish(scene.trigger(), as_of=times[2])
        assert [store.read_as_of(PIPELINE, number) for number in (2, 3)] == times[1:]
        scene.abort(2, AfterAbort.REWOUND, 2)
        assert store.read_as_of(PIPELINE, 3) == times[0], "what is rewound was not read"

    def test_a_number_travels_with_the_one_that_has_delivered_it(self, scene: Scene) -> None:
        scene.stage(4)
        assert scene.store.delivered_with(PIPELINE, 4) == 0
        scene.complete(1)
        scene.complete(3, [2, 3])
        assert [scene.store.delivered_with(PIPELINE, number) for number in range(5)] == [0, 1, 3, 3, 3]
        with pytest.raises(KeyError):
            scene.store.delivered_with("nobody", 1)
        with pytest.raises(KeyError):
            scene.store.read_as_of("nobody", 1)
