from __future__ import annotations

import pytest

from tests.store.scene import PIPELINE, RUN, Scene


class TestHistory:
    def test_forgetting_old_events_keeps_what_was_decided(self, scene: Scene) -> None:
        scene.stage(6)
        for number in range(1, 7):
            scene.complete(number)
        before = [scene.checkpoint(number) for number in range(1, 7)]
        of_five, about_all = scene.event_texts(5), scene.event_texts(0)
        assert scene.store.forget_events(PIPELINE, 2, 3) == 3
        assert [bool(scene.event_texts(number)) for number in range(1, 7)] == [False] * 3 + [True] * 3
        assert scene.store.forget_events(PIPELINE, 2, 3) == 1
        assert scene.store.forget_events(PIPELINE, 2, 3) == 0
        assert (scene.event_texts(4), scene.event_texts(5), scene.event_texts(0)) == ([], of_five, about_all)
        assert [scene.checkpoint(number) for number in range(1, 7)] == before
        assert scene.store.confirmed(PIPELINE, RUN).numbers.count == 6

    def test_nothing_is_forgotten_from_the_first_open_number_on(self, scene: Scene) -> None:
        scene.stage(6)
        scene.complete(1)
        scene.abort(2)  # carried, so it waits for a delivery
        scene.complete(3, [3])
        for number in (4, 5):
            scene.complete(number)
        assert scene.store.forget_events(PIPELINE, 1, 100) == 1
        assert scene.store.forget_events(PIPELINE, 1, 100) == 0
        assert all(scene.event_texts(number) for number in range(2, 7))

    def test_a_late_process_meets_what_was_decided(self, scene: Scene) -> None:
        """I5, I6: nothing rests on events."""
        scene.stage(3)
        for number in (1, 2, 3):
            scene.complete(number)
        assert scene.store.forget_events(PIPELINE, 1, 100) == 2
        assert scene.decide(1).is_confirmed and scene.prove(1, "db").is_confirmed
        assert scene.plan(1) == scene.checkpoint(1).plan
        assert scene.event_texts(1) == []
        scene.take("later")
        assert scene.trigger() == 4

    def test_of_a_pipeline_that_is_not_there(self, scene: Scene) -> None:
        for call in (
            lambda: scene.store.forget_events("nope", 1, 1),
            lambda: scene.store.unsettled("nope"),
            lambda: scene.store.undelivered("nope"),
            lambda: scene.store.planned_before("nope", 1),
            lambda: scene.store.last_published("nope", RUN),
            lambda: scene.store.confirmed("nope", RUN),
            lambda: scene.store.proven("nope", RUN, "db"),
        ):
            with pytest.raises(KeyError):
                call()
