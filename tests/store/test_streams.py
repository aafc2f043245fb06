"""What the decision log knows of a stream: how far it has read, its attempts, and what is asked of it."""

from __future__ import annotations

import pytest

from airflow_ft.pipeline.checkpoints import Gate
from airflow_ft.protocol.errors import FencedError, StateConflictError
from airflow_ft.protocol.model import AfterAbort, CheckpointState
from airflow_ft.protocol.pipelines import RequestKind
from tests.raising import raises
from tests.store.scene import LATER_RUN, PIPELINE, RUN, Scene


def begin(scene: Scene) -> None:
    scene.take()
    scene.store.begin_stage(PIPELINE, scene.epoch, RUN)


def cut(scene: Scene, *, known: bool = True) -> int:
    """A checkpoint with everything that was there a moment before it."""
    as_of = scene.store.now() if known else None
    number = scene.trigger()
    scene.publish(number, as_of=as_of)
    return number


class TestHowFarItHasRead:
    def test_a_gate_waits_for_the_first_checkpoint_covering_a_time(self, scene: Scene) -> None:
        begin(scene)
        cut(scene)
        at = scene.store.now()
        second = cut(scene)
        cut(scene)
        assert scene.store.read_through(PIPELINE, at) == second, "not the newest: a stream always has a newer one"
        assert scene.store.read_through(PIPELINE, scene.store.now()) is None
        gate = Gate(as_of=at)
        scene.complete(1)
        assert gate.is_open(scene.store, PIPELINE) is None
        scene.complete(second)
        assert gate.is_open(scene.store, PIPELINE), "while the third one waits"

    def test_a_slice_of_what_was_there_covers_nothing(self, scene: Scene) -> None:
        begin(scene)
        at = scene.store.now()
        cut(scene, known=False)
        assert scene.store.read_through(PIPELINE, at) is None
        assert scene.store.complete_around(PIPELINE, 1) == (0, None)
        assert cut(scene) == 2
        assert scene.store.read_through(PIPELINE, at) == 2
        assert scene.store.complete_around(PIPELINE, 1) == (0, 2)
        assert scene.store.complete_around(PIPELINE, 3) == (2, None)

    def test_a_stream_that_finds_nothing_new_opens_the_gate_too(self, scene: Scene) -> None:
        begin(scene)
        scene.complete(cut(scene))
        at = scene.store.now()
        assert Gate(as_of=at).is_open(scene.store, PIPELINE) is None
        scene.store.read_all(PIPELINE, scene.epoch, RUN, scene.store.now())
        assert Gate(as_of=at).is_open(scene.store, PIPELINE)
        assert Gate(as_of=scene.store.now()).is_open(scene.store, PIPELINE) is None

    def test_what_is_rewound_was_not_read(self, scene: Scene) -> None:
        begin(scene)
        at = scene.store.now()
        scene.complete(cut(scene))
        second = scene.store.now()
        cut(scene)
        scene.store.read_all(PIPELINE, scene.epoch, RUN, scene.store.now())
        assert scene.store.read_through(PIPELINE, second) == 2
        scene.abort(2, AfterAbort.REWOUND, 2)
        assert scene.store.read_through(PIPELINE, second) is None
        assert scene.store.read_through(PIPELINE, at) == 1
        scene.store.read_all(PIPELINE, scene.epoch, RUN, scene.store.now())
        assert scene.store.read_through(PIPELINE, second) is None, "it reads the state of before the rewind"
        scene.store.begin_again(PIPELINE, scene.epoch, RUN)
        assert cut(scene) == 3
        assert scene.store.read_through(PIPELINE, second) == 3
        assert Gate(number=2).is_open(scene.store, PIPELINE) is None
        scene.complete(3)
        assert Gate(number=2).is_open(scene.store, PIPELINE), "computed again, and confirmed, while the stream goes on"

    def test_only_the_owner_says_so(self, scene: Scene) -> None:
        begin(scene)
        epoch = scene.epoch
        cut(scene)
        scene.take("another")
        with pytest.raises(FencedError):
            scene.store.read_all(PIPELINE, epoch, RUN, scene.store.now())
        scene.store.read_all(PIPELINE, scene.epoch, RUN, scene.store.now())
        assert scene.store.read_through(PIPELINE, scene.store.now()) is None, "this epoch has not begun the stage"


class TestAttempts:
    def test_a_stage_begins_again_in_its_process(self, scene: Scene) -> None:
        begin(scene)
        first = scene.store.pipeline(PIPELINE).last_attempt
        cut(scene)
        lost = scene.trigger()
        assert scene.store.begin_again(PIPELINE, scene.epoch, RUN) == first + 1
        assert not scene.store.pipeline(PIPELINE).base_is_clean
        assert scene.checkpoint(lost).state is CheckpointState.ABORTED, "a thread that slept cannot publish it any more"
        with pytest.raises(StateConflictError):
            scene.publish(lost)
        assert cut(scene) == lost + 1

    def test_of_a_run_that_this_epoch_has_not_begun_it_cannot(self, scene: Scene) -> None:
        begin(scene)
        with raises(StateConflictError, "stage_not_active", run=str(LATER_RUN)):
            scene.store.begin_again(PIPELINE, scene.epoch, LATER_RUN)
        old = scene.epoch
        scene.take("another")
        with pytest.raises(FencedError):
            scene.store.begin_again(PIPELINE, old, RUN)
        with pytest.raises(StateConflictError):
            scene.store.begin_again(PIPELINE, scene.epoch, RUN)


class TestRequests:
    def test_a_request_is_open_until_it_is_answered(self, scene: Scene) -> None:
        first = scene.store.ask(PIPELINE, RequestKind.STOP, {"at_once": True}, "anna")
        second = scene.store.ask(PIPELINE, RequestKind.STOP, {}, "ben")
        assert [(r.id, r.asked_by, dict(r.arguments)) for r in scene.store.open_requests(PIPELINE)] == [
            (first, "anna", {"at_once": True}),
            (second, "ben", {}),
        ]
        scene.store.answer(PIPELINE, first, "stopped after checkpoint 7")
        scene.store.answer(PIPELINE, first, "too late")
        found = scene.store.request(PIPELINE, first)
        assert found.outcome == "stopped after checkpoint 7" and found.answered_at is not None
        assert [request.id for request in scene.store.open_requests(PIPELINE)] == [second]
        assert [event.kind for event in scene.store.events(PIPELINE, limit=3)] == ["ANSWERED", "REQUESTED", "REQUESTED"]

    def test_a_fenced_owner_answers_no_request(self, scene: Scene) -> None:
        """I5: it slept since it looked whether the stream has ended, and another try runs it now."""
        id = scene.store.ask(PIPELINE, RequestKind.STOP, {}, "anna")
        old = scene.take()
        newer = scene.take("another")
        with pytest.raises(FencedError):
            scene.store.answer(PIPELINE, id, "stopped", epoch=old)
        assert not scene.store.request(PIPELINE, id).outcome
        scene.store.answer(PIPELINE, id, "stopped", epoch=newer)
        assert scene.store.request(PIPELINE, id).outcome == "stopped"

    def test_a_pipeline_that_is_not_known_is_told(self, scene: Scene) -> None:
        with pytest.raises(KeyError):
            scene.store.ask("nobody", RequestKind.STOP, {}, "anna")
        with pytest.raises(KeyError):
            scene.store.request(PIPELINE, 9)
