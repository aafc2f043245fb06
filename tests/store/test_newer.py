"""A newer release has written what this one does not know: lists show it as it stands, and acts refuse by name.

Not damage, of which nothing is concluded (tests/test_damaged.py): the remedy would be to restore a backup.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta

import pytest

from airflow_ft.protocol.doctor import Verdict, examine_state
from airflow_ft.protocol.doubt import Finding, doubts
from airflow_ft.protocol.errors import NewerReleaseError, StoreCorruptError
from airflow_ft.protocol.lag import Lag, Unit
from airflow_ft.protocol.lease import Worker
from airflow_ft.protocol.overview import Condition, Only
from airflow_ft.protocol.pipelines import HaltReason, PipelineStatus, RequestKind
from airflow_ft.protocol.planning import read_tombstone
from airflow_ft.protocol.problems import problems
from airflow_ft.protocol.steps import require_active
from airflow_ft.protocol.sweep import recover_all
from airflow_ft.store.decision_log import DecisionLog
from tests.protocol.systems import Systems
from tests.raising import raises
from tests.store.scene import PIPELINE, RUN, Scene, a_lease

NEW = "SINK_MOVED"


def write(store: DecisionLog, sql: str, *values: object) -> None:
    """As a release does that knows more than this one."""
    with closing(sqlite3.connect(store.url.removeprefix("sqlite:///"))) as db:
        assert db.execute(sql, values).rowcount == 1
        db.commit()


def halt(store: DecisionLog, pipeline: str, status: str = "HALTED", reason: str | None = NEW) -> None:
    sql = "UPDATE pipeline SET status = ?, halt_reason = ?, halt_message = 'go and see' WHERE name = ?"
    write(store, sql, status, reason, pipeline)


@pytest.mark.parametrize(
    ("status", "reason", "shown"), [("HALTED", NEW, NEW), ("PAUSED", None, "PAUSED"), ("PAUSED", "LATER", "PAUSED")]
)
def test_a_list_shows_it_as_it_stands_and_all_others(scene: Scene, status: str, reason: str | None, shown: str) -> None:
    store = scene.store
    other = Scene(store, "other")
    other.take()
    halt(store, PIPELINE, status, reason)
    found = {each.name: each for each in store.overviews()}
    assert list(found) == [PIPELINE, "other"]
    assert found[PIPELINE].description.startswith(f"{shown}: go and see\nFix: Install the version")
    assert found[PIPELINE].condition is Condition.HALTED and found["other"].condition is Condition.IDLE
    assert store.overview(PIPELINE)._replace(now=found[PIPELINE].now) == found[PIPELINE]
    row, _ = store.pipelines()
    assert (row.status, row.halt_reason, row.newer) == (PipelineStatus.HALTED, None, shown)
    assert row.halt is not None and row.halt == found[PIPELINE].halt


ACTIONS: dict[str, Callable[[Scene], object]] = {
    "take an epoch": lambda scene: scene.take(),
    "stage": lambda scene: scene.store.begin_stage(PIPELINE, scene.epoch, RUN),
    "trigger": lambda scene: scene.trigger(),
    "plan": lambda scene: scene.plan(1),
    "resume": lambda scene: scene.store.resume(PIPELINE, "somebody"),
    "resume for a reason": lambda scene: scene.store.resume(PIPELINE, "somebody", HaltReason.TOKEN_LOST),
    "retire": lambda scene: scene.store.retire(PIPELINE, "somebody"),
    "adopt": lambda scene: scene.store.adopt(PIPELINE, 9, {}, "somebody", expected=scene.epoch),
    "go on": lambda scene: require_active(scene.store, PIPELINE),
}


@pytest.mark.parametrize("action", ACTIONS)
def test_whoever_acts_on_it_is_refused_and_nothing_is_changed(scene: Scene, action: str) -> None:
    scene.stage(1)
    halt(scene.store, PIPELINE)
    before = scene.store.pipeline(PIPELINE), scene.event_texts()
    with raises(NewerReleaseError, "newer_release", pipeline="orders") as refused:
        ACTIONS[action](scene)
    assert refused.error is not None and NEW in refused.error.headline
    assert (scene.store.pipeline(PIPELINE), scene.event_texts()) == before


def test_a_second_halt_keeps_an_unknown_first_reason(scene: Scene) -> None:
    """A run of a halted pipeline can still release its lease and leave its turn."""
    store = scene.store
    scene.take()
    store.enter_turn(PIPELINE, RUN, None)
    halt(store, PIPELINE)
    store.halt(PIPELINE, HaltReason.TOKEN_LOST, "the token is gone")
    assert store.pipeline(PIPELINE).newer == NEW
    store.renew_lease(PIPELINE, scene.epoch, "worker")
    store.release_lease(PIPELINE, "worker")
    store.leave_turn(PIPELINE, RUN)
    assert store.pipeline(PIPELINE).turn is None and not store.leases(PIPELINE)


def test_another_pipeline_is_resumed_and_recovered_beside_it(scene: Scene) -> None:
    store = scene.store
    other = Scene(store, "other")
    other.take()
    store.halt("other", HaltReason.TOKEN_LOST, "the token is gone")
    halt(store, PIPELINE)
    sql = """UPDATE pipeline SET former = '{"pipeline": "old", "number": 1, "below": 2}' WHERE name = ?"""
    write(store, sql, PIPELINE)
    store.resume("other", "somebody")
    assert store.pipeline("other").status is PipelineStatus.ACTIVE
    swept = {each.pipeline: each for each in recover_all(store, Systems({}), Worker(), orphan_age=timedelta(0))}
    assert swept[PIPELINE].left_alone == f"it is HALTED ({NEW})" and swept[PIPELINE].error is None
    assert swept["other"].error is None and not swept["other"].left_alone


def test_people_are_told_of_it_and_of_the_others(scene: Scene) -> None:
    store = scene.store
    Scene(store, "other")
    store.halt("other", HaltReason.TOKEN_LOST, "the token is gone")
    halt(store, PIPELINE)
    found = {each.pipeline: each for each in problems(store)}
    assert {name: each.condition for name, each in found.items()} == dict.fromkeys(
        [PIPELINE, "other"], Condition.HALTED
    )
    assert NEW in found[PIPELINE].cause and found[PIPELINE].remedy.startswith("Install the version")
    by_name = {each.pipeline: each for each in doubts(store, [PIPELINE, "other"], Systems({}))}
    assert by_name[PIPELINE].state == f"HALTED ({NEW})" and by_name[PIPELINE].advice.startswith("Install")
    assert by_name["other"].state == "HALTED (TOKEN_LOST)"
    [status] = [each for each in examine_state(store, PIPELINE) if each.verdict is Verdict.PROBLEM]
    assert NEW in status.text and status.remedy.startswith("Install the version")


def test_an_unknown_failure_reason_is_shown_and_handed_on_as_is(scene: Scene) -> None:
    """What becomes of the rows is told apart from it, so the pipeline goes on."""
    store = scene.store
    scene.stage(3)
    scene.complete(1)
    scene.abort(2)
    write(store, "UPDATE checkpoint SET reason = 'TOO_COLD' WHERE pipeline = ? AND number = 2", PIPELINE)
    found = {each.number: each.reason for each in store.timings(PIPELINE, 9)}
    assert found == {1: None, 2: "TOO_COLD", 3: None}
    [failed] = store.checkpoints(PIPELINE, only=Only.FAILED)
    assert failed.reason is not None and failed.reason.value == "TOO_COLD"
    assert "newer airflow-ft" in failed.reason.explanation and not failed.reason.counts
    assert store.failed_in_a_row(PIPELINE) == 0
    scene.complete(3, [2, 3])
    assert scene.checkpoint(2).delivered_by == 3
    after = read_tombstone({"reason": "TOO_COLD", "message": "as told", "after": "carried"})
    assert after[0].value == "TOO_COLD"
    with raises(NewerReleaseError, "newer_release") as refused:
        read_tombstone({"reason": "USER", "message": "", "after": "set-aside"})
    assert refused.error is not None and "set-aside" in refused.error.headline


@pytest.mark.parametrize(("column", "value"), [("state", "ARCHIVED"), ("after_abort", "parked")])
def test_what_decides_of_a_checkpoint_is_refused_by_name(scene: Scene, column: str, value: str) -> None:
    store = scene.store
    other = Scene(store, "other")
    other.stage(1)
    scene.stage(1)
    write(store, f"UPDATE checkpoint SET {column} = ? WHERE pipeline = ? AND number = 1", value, PIPELINE)
    with raises(NewerReleaseError, "newer_release", pipeline="orders", checkpoint=1) as refused:
        store.checkpoint(PIPELINE, 1)
    assert refused.error is not None and value in refused.error.headline
    assert [each.name for each in store.overviews()] == [PIPELINE, "other"]
    assert not list(problems(store))
    assert [each.pipeline for each in problems(store, patience=timedelta(0))] == ["other"]
    unknown = [each for each in doubts(store, [PIPELINE, "other"], Systems({})) if each.pipeline == PIPELINE]
    assert [each.evidence.finding for each in unknown] == [Finding.UNKNOWN]


def test_units_and_requests_are_passed_over(scene: Scene) -> None:
    """A stream of this release goes on, whatever it is asked in a newer one's words."""
    store = scene.store
    scene.take()
    store.record_lags(PIPELINE, scene.epoch, 0, [Lag("clicks", Unit.RECORDS, 1200)])
    write(store, "UPDATE source_lag SET unit = 'partitions' WHERE pipeline = ?", PIPELINE)
    [lag] = store.lags([PIPELINE])[PIPELINE]
    assert lag.amount == "1,200 partitions"
    store.ask(PIPELINE, RequestKind.STOP, {}, "somebody")
    write(store, "UPDATE request SET kind = 'PAUSE' WHERE pipeline = ?", PIPELINE)
    store.ask(PIPELINE, RequestKind.STOP, {}, "somebody else")
    assert [each.kind for each in store.open_requests(PIPELINE)] == ["PAUSE", RequestKind.STOP]


def test_what_is_no_word_is_damage(scene: Scene) -> None:
    halt(scene.store, PIPELINE, reason="\0\1")
    for read in (scene.store.overviews, scene.store.pipelines, lambda: scene.store.pipeline(PIPELINE)):
        with raises(StoreCorruptError, "store_corrupt", table="pipeline"):
            read()
    with raises(StoreCorruptError, "store_corrupt", table="pipeline"):
        scene.store.take_epoch(PIPELINE, 0, {}, a_lease(), "a test")
