"""Errors and warnings of runs, as the decision log keeps them."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace

import pytest

from airflow_ft.protocol.doctor import Verdict, examine_state
from airflow_ft.protocol.errors import FencedError, StageError
from airflow_ft.protocol.failure import MOST_CHARACTERS, Failure
from airflow_ft.protocol.model import AfterAbort
from airflow_ft.protocol.noting import note_failure, note_problem, warn
from airflow_ft.protocol.pipelines import HaltReason, RequestKind
from airflow_ft.protocol.reasons import AbortReason
from airflow_ft.protocol.warning import MOST_WARNINGS, PipelineWarning
from tests.store.scene import LATER_RUN, PIPELINE, RUN, Scene

GREW = PipelineWarning("SOURCE_FILE_GREW", "orders", "a.json has grown.", "write new lines into a new file.")
DECLINED = Failure("DeclinedError", "DECLINED", "db refuses row 7.", "correct the row.")


def warned(scene: Scene) -> list[PipelineWarning]:
    return [replace(each, at=None) for each in scene.store.warnings([PIPELINE]).get(PIPELINE, ())]


class TestWarnings:
    def test_a_warning_is_kept_until_a_confirmed_run_omits_it(self, scene: Scene) -> None:
        store = scene.store
        scene.stage()
        assert warned(scene) == [] and store.warnings([]) == {}
        warn(store, PIPELINE, GREW)
        warn(store, PIPELINE, PipelineWarning("TIMESTAMP_REPLACED", "clicks", "its topic has LogAppendTime."))
        store.leave_turn(PIPELINE, RUN, confirmed=True)
        assert len(warned(scene)) == 2, "told by this very run"
        store.begin_stage(PIPELINE, scene.epoch, LATER_RUN)
        warn(store, PIPELINE, GREW)
        store.leave_turn(PIPELINE, LATER_RUN)
        assert len(warned(scene)) == 2, "it was not confirmed"
        store.leave_turn(PIPELINE, LATER_RUN, confirmed=True)
        assert warned(scene) == [GREW]

    def test_a_repeated_warning_is_an_event_only_with_a_new_message(self, scene: Scene) -> None:
        scene.stage()
        for message in ("1 line", "1 line", "2 lines"):
            warn(scene.store, PIPELINE, replace(GREW, message=message))
        assert warned(scene) == [replace(GREW, message="2 lines")]
        assert scene.kinds().count("WARNING") == 2

    def test_they_are_bounded(self, scene: Scene) -> None:
        scene.stage()
        for number in range(MOST_WARNINGS + 5):
            warn(scene.store, PIPELINE, PipelineWarning("MANY", f"{number:04}", "x" * 5000))
        found = warned(scene)
        assert len(found) == MOST_WARNINGS and max(len(each.message) for each in found) <= 1000

    def test_doctor_names_each(self, scene: Scene) -> None:
        scene.stage()
        warn(scene.store, PIPELINE, GREW)
        [check] = [each for each in examine_state(scene.store, PIPELINE) if each.name == GREW.code]
        assert (check.verdict, check.remedy) == (Verdict.WARNING, GREW.remedy) and "a.json" in check.text

    def test_a_warning_that_cannot_be_stored_fails_nothing(self, scene: Scene) -> None:
        warn(scene.store, "nowhere", GREW)
        scene.store.close()
        warn(scene.store, PIPELINE, GREW)


class TestProblems:
    def test_the_newest_error_of_a_participant_lasts_until_its_vote(self, scene: Scene) -> None:
        scene.stage()
        scene.plan(1)
        attempt = scene.attempt(1, "db")
        scene.store.record_problem(PIPELINE, scene.epoch, 1, "db", DECLINED)
        found = scene.checkpoint(1).votes["db"].problem
        assert found is not None and found.at and replace(found, at=0) == DECLINED
        scene.store.vote(PIPELINE, scene.epoch, 1, "db", attempt)
        assert scene.checkpoint(1).votes["db"].problem is None

    def test_an_old_owner_tells_nothing_and_a_long_message_is_cut(self, scene: Scene) -> None:
        scene.stage()
        scene.plan(1)
        scene.attempt(1, "db")
        old = scene.epoch
        scene.take()
        with pytest.raises(FencedError):
            scene.store.record_problem(PIPELINE, old, 1, "db", DECLINED)
        scene.store.record_problem(PIPELINE, scene.epoch, 1, "db", replace(DECLINED, message="x" * 99_999 + "\0"))
        found = scene.checkpoint(1).votes["db"].problem
        assert found is not None and len(found.message) == MOST_CHARACTERS


def test_no_message_that_is_kept_holds_a_password(scene: Scene) -> None:
    """A job's driver or a server quotes the URL that it was given, and the error ends in many columns."""
    store, quoted = scene.store, "cannot connect to postgresql://app:planted-1@db/shop?sslpassword=planted-2."
    warn(store, PIPELINE, replace(GREW, message=quoted, remedy=quoted))
    scene.stage(3, continues=True)
    aborted = store.abort(PIPELINE, scene.epoch, 3, AbortReason.JOB_FAILED, quoted, AfterAbort.CARRIED)
    scene.trigger()
    store.give_up(PIPELINE, scene.epoch, AbortReason.JOB_FAILED, quoted)
    scene.prepare(1)
    scene.quarantine(1, quoted)
    scene.release(1, quoted)
    store.answer(PIPELINE, store.ask(PIPELINE, RequestKind.STOP, {}, "ada"), quoted)
    note_failure(store, PIPELINE, RUN, StageError(quoted))
    note_problem(store, PIPELINE, scene.epoch, 1, "db", StageError(quoted))
    store.halt(PIPELINE, HaltReason.TOKEN_LOST, quoted, remedy=quoted)
    with closing(sqlite3.connect(store.url.removeprefix("sqlite:///"))) as database:
        assert "planted" not in "\n".join(database.iterdump())
    assert aborted.message == "cannot connect to postgresql://***@db/shop?sslpassword=***"
