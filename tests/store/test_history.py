from __future__ import annotations

import pytest

from airflow_ft.protocol.model import RunKey
from airflow_ft.protocol.pipelines import HaltReason
from airflow_ft.store import retention
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

    def test_events_of_old_runs_are_forgotten(self, scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
        """Also of runs that read nothing new. Halts, their ends, two turns and the newest epochs stay."""
        monkeypatch.setattr(retention, "FEWEST_EPOCHS", 2)
        store, stay = scene.store, ("REGISTERED", "HALTED", "RESUMED")
        for minute in range(10):
            run = RunKey("dag", f"minute {minute}")
            store.enter_turn(PIPELINE, run, None)
            scene.take()
            if minute == 3:
                store.halt(PIPELINE, HaltReason.FOREIGN_OWNER, "the head is another's.")
                store.resume(PIPELINE, "me")
            store.begin_stage(PIPELINE, scene.epoch, run)
            store.end_stage(PIPELINE, scene.epoch, run, None)
            store.leave_turn(PIPELINE, run)
        events = store.events(PIPELINE, 0)
        assert store.forget_events(PIPELINE, 5, 7) == 0, "whole parts only: that would be epochs 0 to 6"
        for begin in (3, 5):
            assert store.forget_events(PIPELINE, 5, 2) > 0
            kept = [each for each in events if each.epoch >= begin or each.kind in stay]
            assert store.events(PIPELINE, 0) == kept
        assert store.forget_events(PIPELINE, 5, 2) == 0
        while store.forget_events(PIPELINE, 1, 1):
            pass
        turns = [each for each in events if each.detail.get("has_turn")][:2]
        kept = [each for each in events if each.epoch >= 9 or each.kind in stay or each in turns]
        assert store.events(PIPELINE, 0) == kept

    def test_forgotten_events_hide_no_other_run(self, scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
        """Else a run that failed before its restore would deliver again what others have delivered since."""
        monkeypatch.setattr(retention, "FEWEST_EPOCHS", 2)
        store = scene.store

        def work(run: RunKey) -> None:
            store.enter_turn(PIPELINE, run, None)
            store.leave_turn(PIPELINE, run)
            scene.take()

        failed, others = RunKey("dag", "failed"), [RunKey("dag", f"minute {minute}") for minute in range(9)]
        for run in (failed, *others):
            work(run)
        for commands in range(2):
            while store.forget_events(PIPELINE, 1, 1):
                pass
            assert store.overtaken_by(PIPELINE, failed) == others[-1]
            for run in (others[-1], RunKey("dag", "unknown")):
                assert store.overtaken_by(PIPELINE, run) is None
            for _ in range(9):
                scene.take(f"command {commands}")
        work(failed)
        for _ in range(9):
            scene.take()
        while store.forget_events(PIPELINE, 1, 1):
            pass
        assert store.overtaken_by(PIPELINE, failed) == others[-1], "its own turn hides no other"
        begun = [event.epoch for event in store.events(PIPELINE, 0) if event.kind == "EPOCH"]
        assert min(begun) >= scene.epoch - 3, "what is kept for it keeps nothing else"

    def test_of_a_pipeline_that_is_not_there(self, scene: Scene) -> None:
        for call in (
            lambda: scene.store.forget_events("nope", 1, 1),
            lambda: scene.store.unsettled("nope"),
            lambda: scene.store.undelivered("nope"),
            lambda: scene.store.planned_before("nope", 1),
            lambda: scene.store.first_unproven("nope", 1, "db"),
            lambda: scene.store.last_published("nope", RUN),
            lambda: scene.store.confirmed("nope", RUN),
            lambda: scene.store.proven("nope", RUN, "db"),
        ):
            with pytest.raises(KeyError):
                call()
