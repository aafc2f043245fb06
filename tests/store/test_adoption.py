from __future__ import annotations

import pytest

from airflow_ft.protocol.errors import FencedError, StateConflictError
from airflow_ft.protocol.model import AfterAbort, CheckpointState
from airflow_ft.protocol.overview import Noted
from airflow_ft.protocol.pipelines import HaltReason, PipelineStatus
from airflow_ft.protocol.reasons import AbortReason
from tests.raising import raises
from tests.store.scene import PIPELINE, Scene, a_lease

S = CheckpointState


class TestAdoption:
    def test_it_goes_on_above_what_the_sinks_hold(self, scene: Scene) -> None:
        scene.stage(2, continues=True)
        scene.plan(2, [1, 2])
        triggered = scene.trigger()
        scene.store.halt(PIPELINE, HaltReason.FOREIGN_OWNER, "the head is another's.")
        assert scene.store.adopt(PIPELINE, 41, {"db": 17, "kafka": 16}, "someone", expected=1) == 42
        row = scene.store.pipeline(PIPELINE)
        assert (row.epoch, row.next_number, row.status) == (42, 18, PipelineStatus.HALTED)
        assert scene.store.last_delivered(PIPELINE, "db") == 17
        assert scene.store.last_delivered(PIPELINE, "kafka") == 16
        planned = scene.checkpoint(2)
        assert (planned.state, planned.reason, planned.after_abort) == (
            S.ABORTED,
            AbortReason.SUPERSEDED,
            AfterAbort.CARRIED,
        )
        assert scene.checkpoint(triggered).state is S.ABORTED
        assert scene.open_numbers() == [1, 2], "their rows are still to be delivered"
        assert scene.store.leases(PIPELINE) == []
        with pytest.raises(FencedError):
            scene.store.hold_lease(PIPELINE, 1, a_lease())
        assert "adopted by someone" in scene.event_texts()[-1]

    def test_a_staged_number_that_the_sinks_have_passed_is_carried(self, scene: Scene) -> None:
        """Under its own number it would be below their fences' floors. A number above them keeps its place."""
        scene.stage(3, continues=True)
        scene.store.halt(PIPELINE, HaltReason.STORE_BEHIND_SINK, "the log is older.")
        scene.store.adopt(PIPELINE, 41, {"db": 2, "kafka": 1}, "ada", expected=1)
        found = [scene.checkpoint(number) for number in (1, 2, 3)]
        assert [each.state for each in found] == [S.ABORTED, S.ABORTED, S.STAGED]
        assert [each.after_abort for each in found] == [AfterAbort.CARRIED, AfterAbort.CARRIED, None]
        assert scene.open_numbers() == [1, 2, 3]

    def test_a_choice_is_kept_for_later_adoptions(self, scene: Scene) -> None:
        scene.stage()
        scene.store.halt(PIPELINE, HaltReason.FOREIGN_OWNER, "the head is another's.")
        assert scene.store.noted(PIPELINE, Noted.ADOPTED) is None
        choice = {"ending": "commit", "prepared": [["db", "former", 17]]}
        epoch = scene.store.adopt(PIPELINE, 41, {"db": 17}, "ada", expected=1, choice=choice)
        found = scene.store.noted(PIPELINE, Noted.ADOPTED)
        assert found is not None and found.detail["choice"] == choice
        scene.store.adopt(PIPELINE, 41, {"db": 17}, "bob", expected=epoch)
        found = scene.store.noted(PIPELINE, Noted.ADOPTED)
        assert found is not None and "choice" not in found.detail

    def test_only_what_is_halted_is_adopted(self, scene: Scene) -> None:
        scene.stage()
        with raises(StateConflictError, "action_refused", status="ACTIVE"):
            scene.store.adopt(PIPELINE, 41, {"db": 17}, "someone", expected=1)

    def test_what_may_have_a_marker_is_settled_first(self, scene: Scene) -> None:
        scene.stage()
        scene.prepare(1)
        scene.store.halt(PIPELINE, HaltReason.FOREIGN_OWNER, "the head is another's.")
        with raises(StateConflictError, "checkpoint_unresolved", checkpoint=1, state="PREPARED"):
            scene.store.adopt(PIPELINE, 41, {"db": 17}, "someone", expected=1)
        assert scene.checkpoint(1).state is S.PREPARED

    def test_a_number_that_keeps_its_place_takes_an_epoch_too(self, scene: Scene) -> None:
        """So two persons who let a former owner's marks give way do not end its branches differently."""
        scene.stage()
        scene.prepare(1)
        scene.store.halt(PIPELINE, HaltReason.FOREIGN_OWNER, "a former owner's mark is there.")
        before = scene.checkpoint(1)
        assert scene.store.adopt(PIPELINE, 1, None, "ada", expected=1) == 2
        row = scene.store.pipeline(PIPELINE)
        assert (row.epoch, row.status, scene.checkpoint(1)) == (2, PipelineStatus.HALTED, before)
        with raises(StateConflictError, "epoch_taken", epoch=1, current=2):
            scene.store.adopt(PIPELINE, 1, None, "bob", expected=1)

    def test_adopting_with_an_outdated_epoch_is_refused(self, scene: Scene) -> None:
        """Two look at the sinks; the one has adopted, and delivered, when the other goes on."""
        scene.stage()
        scene.store.halt(PIPELINE, HaltReason.FOREIGN_OWNER, "the head is another's.")
        scene.store.adopt(PIPELINE, 41, {"db": 18}, "someone", expected=1)
        with raises(StateConflictError, "epoch_taken", epoch=1, current=42):
            scene.store.adopt(PIPELINE, 41, {"db": 17}, "somebody else", expected=1)
        assert scene.store.last_delivered(PIPELINE, "db") == 18
        assert scene.store.pipeline(PIPELINE).epoch == 42
