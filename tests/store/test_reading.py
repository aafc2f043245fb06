from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta
from typing import Any

import pytest

from airflow_ft.protocol.errors import ConfigurationError, StateConflictError
from airflow_ft.protocol.model import DRAINED, AfterAbort, CheckpointState, Promise, RunKey, SparkPosition
from airflow_ft.protocol.overview import CheckpointCounts, Condition, Noted, Only, Origin
from airflow_ft.protocol.pipelines import HaltReason
from airflow_ft.protocol.position import SOURCE
from airflow_ft.protocol.reasons import AbortReason
from airflow_ft.store import retention
from airflow_ft.store.checkpoint_rows import select_checkpoints
from tests.raising import raises
from tests.store.scene import LATER_RUN, PIPELINE, RUN, Scene, a_position, a_segment

S = CheckpointState


class TestReading:
    def test_checkpoints_come_newest_first_with_their_votes(self, scene: Scene) -> None:
        scene.stage(4)
        scene.prepare(3, [1, 2, 3])
        found = scene.store.checkpoints(PIPELINE, limit=2)
        assert [c.number for c in found] == [4, 3]
        assert set(found[1].votes) == {"db", "log"}
        assert len(scene.store.checkpoints(PIPELINE)) == 4

    def test_a_plan_is_read_once_however_many_vote(self, scene: Scene) -> None:
        database = scene.store._database  # type: ignore[attr-defined]

        def read(participants: int) -> int:
            scene.promises = {f"p{i:02}": Promise.REDO for i in range(participants)}
            [number] = scene.stage()
            scene.prepare(number)
            assert sorted(scene.votes(number)) == sorted(scene.promises)
            rows = database.read(select_checkpoints("pipeline = ? AND number = ?"), PIPELINE, number)
            return sum(len(str(value)) for row in rows for value in row.values())

        assert read(40) < 2.5 * read(20)

    def test_a_page_of_checkpoints_ends_before_a_number(self, scene: Scene) -> None:
        scene.stage(4)
        assert [c.number for c in scene.store.checkpoints(PIPELINE, 2, before=4)] == [3, 2]
        assert not scene.store.checkpoints(PIPELINE, before=1)

    def test_all_pipelines_are_told_in_short(self, scene: Scene) -> None:
        store = scene.store
        other = Scene(store, "a")
        assert [(each.name, each.condition, each.dags) for each in store.overviews()] == [
            ("a", Condition.IDLE, ()),
            (PIPELINE, Condition.IDLE, ()),
        ]
        scene.stage(4)
        scene.complete(1)
        scene.prepare(2)
        scene.decide(2)
        [_, found] = store.overviews()
        assert (found.undelivered, found.committing, found.quarantined) == (3, 1, 0)
        assert (found.condition, found.dags, found.turn) == (Condition.IN_DOUBT, (RUN.dag_id,), None)
        scene.quarantine(2)
        other.stage(1, RunKey("b", "1"))
        other.stage(1, RunKey("c", "1"))
        other.abort(1, AfterAbort.REWOUND, 1)
        [first, second] = store.overviews()
        assert (second.condition, second.undelivered, second.quarantined) == (Condition.QUARANTINED, 3, 1)
        assert (first.dags, first.undelivered, first.condition) == (("b", "c"), 0, Condition.IDLE)
        other.stage(1, RunKey("bb", "1"))
        assert [each.name for each in store.overviews("bb")] == ["a"], "neither the first nor the last"
        assert [each.name for each in store.overviews(RUN.dag_id)] == [PIPELINE] and not store.overviews("d")
        for each in store.overviews():
            assert store.overview(each.name)._replace(now=each.now) == each
        with pytest.raises(KeyError):
            store.overview("nowhere")
        store.enter_turn("a", RUN, None)
        assert store.overviews()[0].turn == RUN and store.overviews()[0].condition is Condition.RUNNING
        store.halt("a", HaltReason.TOKEN_LOST, "it is gone", remedy="Restore it.")
        assert (halt := store.overviews()[0].halt) == store.pipeline("a").halt
        assert halt.remedy == "Restore it. Then run `airflow ft resume a`."
        assert store.overviews()[0].condition is Condition.HALTED

    def test_how_long_the_newest_checkpoints_took(self, scene: Scene) -> None:
        store = scene.store
        assert not store.timings(PIPELINE, 3)
        scene.stage(5)
        for number in (1, 2, 3):
            scene.complete(number)
        scene.abort(4)
        assert [each.number for each in store.timings(PIPELINE, 2)] == [5, 4]
        numbers = {only: [each.number for each in store.timings(PIPELINE, 9, only)] for only in Only}
        assert numbers == {Only.OPEN: [5, 4], Only.COMPLETED: [3, 2, 1], Only.FAILED: [4]}
        assert numbers == {only: [each.number for each in store.checkpoints(PIPELINE, only=only)] for only in Only}
        assert [each.number for each in store.checkpoints(PIPELINE, 1, 3, Only.COMPLETED)] == [2]
        whole, failed = scene.checkpoint(3), store.timings(PIPELINE, 1, Only.FAILED)[0]
        [found] = [each for each in store.timings(PIPELINE, 9) if each.number == 3]
        assert whole.segment is not None and (found.rows, found.bytes) == (11, whole.segment.bytes)
        assert (found.triggered_at, found.completed_at) == (whole.triggered_at, whole.completed_at)
        assert (found.staged_at, found.prepared_at, found.decided_at) == (
            whole.staged_at,
            whole.prepared_at,
            whole.decided_at,
        )
        assert (failed.state, failed.reason, failed.seconds) == (S.ABORTED, scene.checkpoint(4).reason, None)
        with pytest.raises(KeyError):
            store.timings("nowhere", 1)

    def test_how_many_have_ended_how_is_known_without_counting_them(self, scene: Scene) -> None:
        store = scene.store
        assert store.checkpoint_counts(PIPELINE) == CheckpointCounts(0, 0, 0, 0, 0)
        scene.stage(5)
        scene.complete(2, [1, 2])
        scene.abort(3)
        scene.complete(4, [3, 4])
        assert store.checkpoint_counts(PIPELINE) == CheckpointCounts(1, completed=2, subsumed=1, failed=1, restored=0)
        assert store.checkpoint_counts(PIPELINE).triggered == 5
        scene.complete(5)
        store.restore(PIPELINE, scene.epoch, a_position(5), "a test")
        assert store.checkpoint_counts(PIPELINE) == CheckpointCounts(0, completed=3, subsumed=1, failed=1, restored=1)
        store.forget_events(PIPELINE, 1, 100)
        assert store.checkpoint_counts(PIPELINE).restored == 1, "those of the whole pipeline stay"
        with pytest.raises(KeyError):
            store.checkpoint_counts("nowhere")

    def test_a_time_leads_to_a_number(self, scene: Scene) -> None:
        store = scene.store
        before = store.now()
        assert store.number_at(PIPELINE, before) == 0
        scene.stage(9)
        times = {number: scene.checkpoint(number).triggered_at for number in range(1, 10)}
        for number, at in times.items():
            assert store.number_at(PIPELINE, at) == max(n for n, other in times.items() if other <= at)
            below = [n for n, other in times.items() if other < at]
            assert store.number_at(PIPELINE, at - timedelta(microseconds=1)) == max(below, default=0), number
        assert store.number_at(PIPELINE, store.now() + timedelta(days=1)) == 9
        store.halt(PIPELINE, HaltReason.FOREIGN_OWNER, "a test")
        store.adopt(PIPELINE, scene.epoch, {"db": 20}, "a test", expected=scene.epoch)  # leaves out numbers up to 20
        assert store.number_at(PIPELINE, times[1] - timedelta(seconds=1)) == 0
        assert store.number_at(PIPELINE, store.now()) == 20

    def test_checkpoints_of_a_run_or_of_a_reason_alone(self, scene: Scene) -> None:
        store = scene.store
        scene.stage(3)
        scene.stage(2, LATER_RUN)
        scene.abort(2)
        store.abort(PIPELINE, scene.epoch, 4, AbortReason.EXPIRED, "a test", AfterAbort.CARRIED)
        numbers = {run: [each.number for each in store.checkpoints(PIPELINE, run=run)] for run in (RUN, LATER_RUN)}
        assert numbers == {RUN: [3, 2, 1], LATER_RUN: [5, 4]}
        assert [each.number for each in store.checkpoints(PIPELINE, 1, 3, run=RUN)] == [2]
        assert [each.number for each in store.checkpoints(PIPELINE, reason=AbortReason.EXPIRED)] == [4]
        assert [each.number for each in store.checkpoints(PIPELINE, before=4, only=Only.FAILED)] == [2]
        assert not store.checkpoints(PIPELINE, reason=AbortReason.EXPIRED, run=RUN)

    def test_who_has_made_the_newest_checkpoints_and_with_what(self, scene: Scene) -> None:
        assert not scene.store.origins(PIPELINE, 2)
        scene.stage(1, made_with={"job": "shop"})
        scene.carry()
        [carried, staged] = scene.store.origins(PIPELINE, 2)
        assert carried == Origin("", "")
        assert staged == Origin(RUN.dag_id, scene.checkpoint(1).spec) and scene.store.spec(staged.spec)
        assert scene.store.origins(PIPELINE, 1) == [carried]
        with pytest.raises(KeyError):
            scene.store.origins("nowhere", 1)

    def test_the_newest_savepoint_and_the_newest_restore_are_known(self, scene: Scene) -> None:
        store = scene.store
        assert store.noted(PIPELINE, Noted.SAVEPOINT) is None
        scene.stage(2)
        for number in (1, 2):
            store.note_savepoint(PIPELINE, number, f"of {number}", {"uri": "file:///there"})
        found = store.noted(PIPELINE, Noted.SAVEPOINT)
        assert found is not None and (found.number, found.detail["uri"]) == (2, "file:///there")
        assert store.noted(PIPELINE, Noted.RESTORED) is None
        with pytest.raises(KeyError):
            store.noted("nowhere", Noted.RESTORED)

    def test_the_numbers_of_a_run_come_in_order(self, scene: Scene) -> None:
        scene.stage(2)
        scene.stage(1, LATER_RUN)
        scene.stage(1, RUN)
        assert [c.number for c in scene.store.run_checkpoints(PIPELINE, RUN)] == [1, 2, 4]
        assert [c.number for c in scene.store.run_checkpoints(PIPELINE, LATER_RUN)] == [3]

    def test_the_latest_confirmed_is_the_highest_completed(self, scene: Scene) -> None:
        scene.stage(4)
        assert scene.store.latest_confirmed(PIPELINE) is None
        scene.complete(1)
        scene.complete(3, [2, 3])
        scene.prepare(4)
        latest = scene.store.latest_confirmed(PIPELINE)
        assert latest is not None
        assert (latest.number, set(latest.votes)) == (3, {"db", "log"})

    def test_only_old_delivered_finalised_numbers_are_prunable(self, scene: Scene) -> None:
        scene.stage(6)
        for number in (1, 2, 3):
            scene.complete(number)
        scene.complete(4, finalise=False)

        def prunable(retain: int, limit: int = 100) -> list[int]:
            return [c.number for c in scene.store.prunable(PIPELINE, retain, limit)]

        assert prunable(0) == [1, 2, 3]
        assert prunable(1) == [1, 2, 3]
        assert prunable(2) == [1, 2]
        assert prunable(2, limit=1) == [1]
        assert prunable(4) == []
        assert prunable(9) == []
        scene.store.prune(PIPELINE, 1)
        assert prunable(2) == [2]

    def test_what_was_delivered_with_a_retained_number_is_retained(self, scene: Scene) -> None:
        scene.stage(4)
        scene.complete(1)
        scene.complete(4, [2, 3, 4])
        assert [c.number for c in scene.store.prunable(PIPELINE, 1, 10)] == [1]

    def test_only_what_was_delivered_is_pruned_and_once(self, scene: Scene) -> None:
        """I10."""
        scene.stage(2)
        with raises(StateConflictError, "checkpoint_unresolved", checkpoint=1):
            scene.store.prune(PIPELINE, 1)
        scene.complete(1)
        scene.store.prune(PIPELINE, 1)
        scene.store.prune(PIPELINE, 1)
        assert scene.kinds(1).count("PRUNING") == 1
        assert "file:///wal/1" in scene.event_texts(1)[-1]

    def test_old_positions_are_forgotten(self, scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
        """But not those of a drain, nor those that a program of the author gave."""
        monkeypatch.setattr(retention, "POSITIONS_KEPT", 2)
        given: dict[int, Any] = {2: {"orders": 2, DRAINED: asdict(a_position(2))}, 3: {SOURCE: 3}}
        scene.take()
        scene.store.begin_stage(PIPELINE, scene.epoch, RUN)
        for number in range(1, 8):
            scene.trigger()
            scene.publish(number, positions=given.get(number))
            scene.complete(number)
        for number in range(1, 7):
            scene.store.prune(PIPELINE, number)
        found = {each.number: each.positions for each in scene.store.checkpoints(PIPELINE, 10)}
        assert found == {1: {}, **given, 4: {}, 5: {"orders": 5}, 6: {"orders": 6}, 7: {"orders": 7}}

    def test_a_rewind_goes_to_the_last_state_that_still_counts(self, scene: Scene) -> None:
        scene.stage(3)
        assert scene.store.position_before(PIPELINE, 1) is None
        assert scene.store.position_before(PIPELINE, 4) == a_position(3)
        scene.abort(3)
        assert scene.store.position_before(PIPELINE, 4) == a_position(3)
        carrying = scene.carry()
        assert scene.store.position_before(PIPELINE, carrying + 1) == a_position(3)
        scene.store.rewind(PIPELINE, 1, 2, a_position(1), "by hand")
        assert scene.store.position_before(PIPELINE, 9) == a_position(1)

    def test_files_that_may_still_be_needed_are_referenced(self, scene: Scene) -> None:
        assert scene.store.referenced_locations(PIPELINE) == frozenset()
        scene.stage(4)
        spark = "file:///spark/1-1"
        assert scene.store.referenced_locations(PIPELINE) == {spark, *(f"file:///wal/{n}" for n in (1, 2, 3, 4))}
        scene.complete(1)
        scene.store.prune(PIPELINE, 1)
        scene.store.rewind(PIPELINE, 1, 3, a_position(2), "by hand")
        assert scene.store.referenced_locations(PIPELINE) == {spark, "file:///wal/2"}
        scene.complete(2)
        scene.store.prune(PIPELINE, 2)
        assert scene.store.referenced_locations(PIPELINE) == {spark}  # the base

    def test_a_rewind_target_stays_referenced_after_pruning(self, scene: Scene) -> None:
        """I10: else the next attempt, which may work in a copy, could not be rewound."""
        fresh = SparkPosition("file:///spark/2-0", -1)
        scene.complete(scene.stage(1)[0])
        scene.store.reset_state(PIPELINE, 1, fresh, "a test")
        scene.store.prune(PIPELINE, 1)
        [number] = scene.stage(1)
        assert scene.store.position_before(PIPELINE, number) == fresh
        spark = a_position(number).location
        assert scene.store.referenced_locations(PIPELINE) == {fresh.location, spark, f"file:///wal/{number}"}
        scene.complete(number)
        assert scene.store.referenced_locations(PIPELINE) == {spark, f"file:///wal/{number}"}

    def test_where_a_rewind_behind_a_drain_goes_is_referenced(self, scene: Scene) -> None:
        """I10: a drain is the newest number that is delivered, and has no position."""
        scene.complete(scene.stage(1, continues=True)[0])
        fresh = SparkPosition("file:///spark/2-0", -1)
        scene.store.reset_state(PIPELINE, 1, fresh, "a test")
        drain = scene.trigger()
        scene.store.publish(PIPELINE, 1, drain, 1, a_segment(drain), None, {})
        scene.complete(drain)
        scene.store.prune(PIPELINE, 1)
        [number] = scene.stage(1)
        assert scene.store.position_before(PIPELINE, number) == fresh
        assert fresh.location in scene.store.referenced_locations(PIPELINE)

    @pytest.mark.parametrize(
        ("pipeline", "number"), [("a\0b", 1), ("\ud800", 1), (PIPELINE, 1 << 63), (PIPELINE, -(10**40))]
    )
    def test_what_no_database_can_be_asked_for_is_named(self, scene: Scene, pipeline: str, number: int) -> None:
        """SQLite has no larger numbers, PostgreSQL no texts with a NUL."""
        scene.stage(1)
        with raises(ConfigurationError, "argument_invalid", value=pipeline if pipeline != PIPELINE else number):
            scene.store.checkpoint(pipeline, number)
