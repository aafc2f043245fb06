from __future__ import annotations

import pytest

from airflow_ft.protocol.errors import ConfigurationError, FencedError, StateConflictError
from airflow_ft.protocol.model import AfterAbort, CheckpointState, SparkPosition
from airflow_ft.protocol.position import Position
from airflow_ft.protocol.reasons import AbortReason
from airflow_ft.store.decision_log import DecisionLog
from airflow_ft.store.errors import UnknownCheckpointError
from tests.raising import raises
from tests.store.scene import LATER_RUN, PIPELINE, RUN, Scene, a_position, a_segment


class TestStaging:
    def test_a_stage_gives_its_run_the_epoch_and_draws_an_attempt(self, scene: Scene) -> None:
        scene.stage(1)
        scene.take("second")
        first = scene.store.begin_stage(PIPELINE, 2, RUN)
        second = scene.store.begin_stage(PIPELINE, 2, LATER_RUN)
        assert second > first
        run = scene.store.run(PIPELINE, RUN)
        assert run is not None
        assert (run.epoch, run.staged) == (2, False)
        pipeline = scene.store.pipeline(PIPELINE)
        assert (pipeline.base, pipeline.base_is_clean) == (a_position(1), False)

    def test_what_a_checkpoint_was_made_with_is_kept_once(self, scene: Scene) -> None:
        scene.take()
        one = {"job": "jobs.orders", "sinks": {"orders": {"table": "törders"}}}
        other = {**one, "job": "jobs.new"}
        for spec in (one, one, other):
            scene.store.begin_stage(PIPELINE, 1, RUN, "task", spec)
            scene.publish(scene.trigger())
        carried = scene.carry()
        scene.store.begin_stage(PIPELINE, 1, LATER_RUN)
        digests = [scene.checkpoint(number).spec for number in (1, 2, 3)]
        assert digests[0] == digests[1] != digests[2] and all(len(digest) == 64 for digest in digests)
        assert [scene.store.spec(digest) for digest in digests] == [one, one, other]
        runs = [scene.store.run(PIPELINE, run) for run in (RUN, LATER_RUN)]
        assert [run and run.spec for run in runs] == [digests[2], ""], "of the newest attempt; none was given"
        assert scene.checkpoint(carried).spec == scene.checkpoint(scene.trigger(LATER_RUN)).spec == ""
        with pytest.raises(KeyError):
            scene.store.spec("0" * 64)

    def test_the_source_of_a_job_is_kept_once_for_all_runs(self, scene: Scene) -> None:
        scene.take()
        source = "def transform(): ...\n" * 500
        specs = [{"job": "orders", "job_source": source, "job_args": {"day": str(day)}} for day in range(3)]
        for spec in specs:
            scene.store.begin_stage(PIPELINE, 1, RUN, "task", spec)
            scene.publish(scene.trigger())
        assert [scene.store.spec(scene.checkpoint(number).spec) for number in (1, 2, 3)] == specs
        [found] = scene.store._database.read("SELECT sum(length(text)) AS characters FROM spec")
        assert found["characters"] < 2 * len(source)

    def test_giving_up_aborts_only_unpublished_checkpoints(self, scene: Scene) -> None:
        scene.take()
        staged, lost = scene.trigger(), scene.trigger()
        scene.publish(staged)
        scene.store.give_up(PIPELINE, 1, AbortReason.STAGE_FAILED, "killed by SIGKILL")
        found = scene.checkpoint(lost)
        assert (found.state, found.reason) == (CheckpointState.ABORTED, AbortReason.STAGE_FAILED)
        assert found.message == "killed by SIGKILL" and found.after_abort is None
        assert scene.checkpoint(staged).state is CheckpointState.STAGED
        with pytest.raises(StateConflictError):
            scene.publish(lost)
        before = scene.event_texts()
        scene.store.give_up(PIPELINE, 1, AbortReason.STAGE_FAILED, "once more")
        assert scene.event_texts() == before
        triggered = scene.trigger()
        scene.take("other")
        with pytest.raises(FencedError):
            scene.store.give_up(PIPELINE, 1, AbortReason.STAGE_FAILED, "too late")
        assert scene.checkpoint(triggered).reason is AbortReason.FENCED

    def test_a_confirmed_checkpoint_resets_the_checkpoint_failures(self, scene: Scene) -> None:
        scene.take()
        assert scene.store.failed_in_a_row(PIPELINE) == 0
        for reason in AbortReason:
            scene.trigger()
            scene.store.give_up(PIPELINE, 1, reason, "a test")
        assert scene.store.failed_in_a_row(PIPELINE) == sum(reason.counts for reason in AbortReason) == 2
        scene.complete(scene.stage(1)[0])
        assert scene.store.failed_in_a_row(PIPELINE) == 0

    def test_an_ended_stage_leaves_a_clean_base(self, scene: Scene) -> None:
        scene.stage(2)
        pipeline = scene.store.pipeline(PIPELINE)
        assert (pipeline.base, pipeline.base_is_clean, pipeline.last_published) == (a_position(2), True, 2)
        run = scene.store.run(PIPELINE, RUN)
        assert run is not None
        assert run.staged

    def test_the_last_try_of_each_unpublished_position_is_known(self, scene: Scene) -> None:
        scene.take()
        one, other = (Position.of(day).to_json() for day in (1, 2))
        numbers = [scene.store.trigger(PIPELINE, 1, RUN, positions=each) for each in (one, other, one)]
        scene.store.give_up(PIPELINE, 1, AbortReason.STAGE_FAILED, "a test")
        left = scene.store.unpublished_positions(PIPELINE)
        assert [(each.number, each.positions) for each in left] == [(numbers[2], one), (numbers[1], other)]
        published = scene.trigger()
        scene.store.publish(PIPELINE, 1, published, 0, a_segment(published), None, one)
        assert [each.number for each in scene.store.unpublished_positions(PIPELINE)] == [numbers[1]]
        published = scene.trigger()
        scene.store.publish(PIPELINE, 1, published, published - 1, a_segment(published), None, other)
        assert scene.store.unpublished_positions(PIPELINE) == []

    def test_a_stage_that_ends_without_a_position_keeps_the_base(self, scene: Scene) -> None:
        scene.take()
        scene.store.begin_stage(PIPELINE, 1, RUN)
        scene.publish(scene.trigger())
        scene.store.end_stage(PIPELINE, 1, RUN, None)
        pipeline = scene.store.pipeline(PIPELINE)
        assert (pipeline.base, pipeline.base_is_clean) == (a_position(1), False)

    def test_a_stage_that_was_not_begun_cannot_end(self, scene: Scene) -> None:
        scene.take()
        with raises(StateConflictError, "stage_not_active", run=str(RUN), epoch=1):
            scene.store.end_stage(PIPELINE, 1, RUN, a_position(1))

    def test_a_stage_that_has_ended_triggers_nothing_more(self, scene: Scene) -> None:
        """The request of a driver that is gone arrives late: nothing would ever publish its number."""
        scene.stage(1)
        events = scene.event_texts()
        with raises(StateConflictError, "stage_not_active", run="dag/run-1"):
            scene.trigger()
        assert scene.event_texts() == events
        assert scene.trigger(LATER_RUN) == 2  # the number was not used up
        scene.abort(2)
        assert scene.trigger(None) == 3
        scene.take("other")  # and what this one does for a run that another has staged is its own
        assert scene.trigger() == 4

    def test_a_number_is_never_used_twice(self, scene: Scene) -> None:
        scene.take()
        first = scene.trigger()
        scene.abort(first)
        second = scene.trigger()
        scene.take("other")
        assert [first, second, scene.trigger()] == [1, 2, 3]
        assert scene.store.pipeline(PIPELINE).next_number == 4

    def test_a_published_checkpoint_holds_all_that_was_given(self, scene: Scene) -> None:
        scene.take()
        number = scene.trigger()
        assert scene.checkpoint(number).state is CheckpointState.TRIGGERED
        scene.publish(number, positions={"orders": 5})
        checkpoint = scene.checkpoint(number)
        assert checkpoint.state is CheckpointState.STAGED
        assert (checkpoint.segment, checkpoint.position) == (a_segment(number), a_position(number))
        assert (checkpoint.positions, checkpoint.run, checkpoint.predecessor) == ({"orders": 5}, RUN, 0)
        assert checkpoint.staged_at is not None
        assert checkpoint.triggered_at <= checkpoint.staged_at <= scene.store.now()
        assert checkpoint.is_undelivered
        assert scene.event_texts(number)[-1] == "checkpoint 1 STAGED: 11 rows (orders 10; alerts 1), 4.1 MB, by epoch 1"

    def test_text_that_databases_dislike_comes_back(self, scene: Scene) -> None:
        scene.take()
        number = scene.trigger()
        positions = {"a'b": ["%s", "?", "\\", "\u0000", "käse", None, 1.5]}
        scene.store.publish(PIPELINE, 1, number, 0, a_segment(number), a_position(1), positions)
        assert scene.checkpoint(number).positions == positions
        message = "nul \0 and half \udc80 ?%s"
        scene.store.abort(PIPELINE, 1, number, AbortReason.USER, message, AfterAbort.CARRIED)
        assert scene.checkpoint(number).message == "nul \\0 and half \\udc80 ?%s"

    def test_a_publication_must_follow_the_last_one_ever_published(self, scene: Scene) -> None:
        scene.stage(2, continues=True)
        scene.abort(2)  # also when that one was aborted
        number = scene.trigger()
        for wrong in (0, 1, 3):
            with raises(StateConflictError, "order_conflict", predecessor=wrong, published=2):
                scene.store.publish(PIPELINE, 1, number, wrong, a_segment(number), a_position(3), {})
        scene.publish(number)
        assert scene.checkpoint(number).predecessor == 2

    def test_nothing_is_published_before_a_later_number(self, scene: Scene) -> None:
        scene.take()
        early, late = scene.trigger(), scene.trigger()
        scene.publish(late)
        with raises(StateConflictError, "order_conflict", checkpoint=early, published=2):
            scene.publish(early)

    def test_a_checkpoint_is_published_once(self, scene: Scene) -> None:
        """I1: what is published is frozen, whoever repeats it."""
        scene.take()
        number = scene.trigger()
        scene.publish(number)
        with pytest.raises(StateConflictError):
            scene.store.publish(PIPELINE, 1, number, 0, a_segment(number, 99), a_position(9), {})
        assert scene.checkpoint(number).segment == a_segment(number)
        aborted = scene.trigger()
        scene.abort(aborted)
        with raises(StateConflictError, "checkpoint_state", state="ABORTED", to="STAGED"):
            scene.publish(aborted)

    def test_a_number_with_only_carried_rows_keeps_the_base(self, scene: Scene) -> None:
        scene.stage(1)
        number = scene.carry()
        checkpoint = scene.checkpoint(number)
        assert (checkpoint.state, checkpoint.segment, checkpoint.position) == (CheckpointState.STAGED, None, None)
        assert not checkpoint.is_undelivered
        assert (scene.store.pipeline(PIPELINE).base, scene.store.pipeline(PIPELINE).base_is_clean) == (
            a_position(1),
            True,
        )

    def test_a_segment_of_another_number_is_refused(self, scene: Scene) -> None:
        scene.take()
        number = scene.trigger()
        with raises(ConfigurationError, "argument_invalid", argument="segment", value=7):
            scene.store.publish(PIPELINE, 1, number, 0, a_segment(7), a_position(1), {})

    def test_a_number_that_does_not_exist_is_said_so(self, scene: Scene) -> None:
        scene.take()
        with raises(UnknownCheckpointError, "checkpoint_unknown", checkpoint=7):
            scene.store.publish(PIPELINE, 1, 7, 0, a_segment(7), a_position(1), {})
        with raises(KeyError, "checkpoint_unknown", checkpoint=7):
            scene.checkpoint(7)

    def test_a_run_may_be_staged_without_airflow(self, scene: Scene) -> None:
        scene.take()
        number = scene.trigger(None)
        assert scene.checkpoint(number).run is None
        assert scene.store.run_checkpoints(PIPELINE, RUN) == []

    def test_everything_is_there_after_opening_it_again(self, scene: Scene, store_url: str) -> None:
        from airflow_ft.store import open_store

        scene.stage(2)
        scene.prepare(1)
        scene.store.close()
        again: DecisionLog = open_store(store_url)
        try:
            assert again.installation == scene.store.installation
            assert [c.state for c in again.checkpoints(PIPELINE)] == [CheckpointState.STAGED, CheckpointState.PREPARED]
            assert again.pipeline(PIPELINE).base == SparkPosition("file:///spark/1-1", 2)
        finally:
            again.close()
