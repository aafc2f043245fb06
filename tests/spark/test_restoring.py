"""Savepoints that are restored over real sinks, without Spark: each row comes once, unless a person wants more."""

from __future__ import annotations

from shutil import copytree, ignore_patterns, rmtree
from typing import Any

import pytest

from airflow_ft.protocol.errors import ConfigurationError, StateConflictError
from airflow_ft.protocol.from_savepoint import BEGINNING, Later
from airflow_ft.protocol.lease import Worker, new_epoch
from airflow_ft.protocol.lookup import retained
from airflow_ft.protocol.model import CheckpointState, Former
from airflow_ft.protocol.overview import Noted
from airflow_ft.protocol.recovery import recover
from airflow_ft.spark.savepoints import taking
from airflow_ft.spark.savepoints.metadata import read_metadata
from airflow_ft.spark.savepoints.taking import take_once
from airflow_ft.spark.state.catching_up import FOLDER, require_all_read
from airflow_ft.spark.state.draining import marked
from airflow_ft.spark.state.location_files import batches
from airflow_ft.spark.state.locations import SparkLocation, remember_incarnation
from airflow_ft.spark.state.reset import reset_state
from airflow_ft.wal.local import local_path
from tests.raising import raises
from tests.spark.test_renaming import NEW, OLD, Pipelines, pipelines, saved

__all__ = ["pipelines", "saved"]

pytestmark = pytest.mark.slow


def restored(pipelines: Pipelines, uri: str, later: Later) -> list[int]:
    """Restore a savepoint; returns the micro-batches that are computed again to rebuild the state."""
    position = pipelines.rename(uri, OLD, rename=False, later=later).position
    assert position is not None
    return batches(position.location, FOLDER)


def test_continue_after_write_again_waits_for_a_checkpoint(saved: tuple[Pipelines, str]) -> None:
    """The pipeline itself has not read 2 and 3 any more, so it would deliver them twice."""
    pipelines, uri = saved
    for offset in (2, 3):
        pipelines.run(OLD, offset)
    newest = pipelines.savepoint()
    assert restored(pipelines, uri, Later.WRITE_AGAIN) == []
    behind = pipelines.savepoint()
    for _ in range(2):
        with raises(ConfigurationError, "rebuild_impossible") as caught:
            restored(pipelines, uri, Later.CONTINUE)
        assert caught.error is not None and "taken before the write-again" in caught.error.remedy
        restored(pipelines, behind, Later.REFUSE)
    restored(pipelines, newest, Later.REFUSE)
    assert restored(pipelines, uri, Later.CONTINUE) == [2, 3]
    restored(pipelines, behind, Later.WRITE_AGAIN)
    pipelines.run(OLD, 3)
    assert restored(pipelines, uri, Later.CONTINUE) == [2, 3]


def test_an_installation_forgets_what_another_wrote_again(saved: tuple[Pipelines, str]) -> None:
    """Their numbers differ: the pipeline begins at 1 there."""
    pipelines, uri = saved
    pipelines.run(OLD, 2)
    restored(pipelines, uri, Later.WRITE_AGAIN)
    behind = pipelines.savepoint()
    other = Pipelines(pipelines.folder / "other")
    restored(other, behind, Later.REFUSE)
    base = other.store.pipeline(OLD).base
    assert base is not None
    require_all_read(read_metadata(behind).location(behind), base, 1)
    other.store.close()


@pytest.mark.parametrize("known", ["nothing", "older numbers", "the same number"])
def test_a_savepoint_that_the_decision_log_has_lost_is_refused(pipelines: Pipelines, known: str) -> None:
    """R11: log and sinks come from one backup. The rows up to the savepoint are in none of them."""
    pipelines.store.register(OLD)
    if known != "nothing":
        pipelines.run(OLD, 1)
    folder, bring_back = pipelines.folder, pipelines.backup()
    copytree(folder, folder / "copies", ignore=ignore_patterns("ft.db*", "backup.db"))
    for offset in (2, 3):
        pipelines.run(OLD, offset)
    newer = pipelines.savepoint()
    bring_back()
    if known == "the same number":
        for name in ("lake", "wal"):
            rmtree(folder / name)
        copytree(folder / "copies", folder, dirs_exist_ok=True)
        for offset in (4, 5):
            pipelines.run(OLD, offset)
    for later in Later:
        with raises(StateConflictError, "store_behind_sink", pipeline=OLD) as caught:
            restored(pipelines, newer, later)
        assert caught.error is not None and "`airflow ft retire orders`" in caught.error.remedy
        assert "--rename" not in caught.error.remedy
    with raises(StateConflictError, "store_behind_sink", pipeline=OLD) as caught:
        pipelines.rename(newer)
    assert caught.error is not None and "(--pipeline, without --rename)" in caught.error.remedy
    pipelines.rename(newer, rename=False)


def test_a_savepoint_of_a_decided_checkpoint_is_restored(saved: tuple[Pipelines, str]) -> None:
    """The backup of the log was made before the checkpoint was confirmed. The restore delivers it first."""
    pipelines, _ = saved
    pipelines.run(OLD, 2, "decided")
    bring_back = pipelines.backup()
    recover(pipelines.store, OLD, pipelines.participants, Worker("", 1))
    newer = pipelines.savepoint()
    bring_back()
    assert pipelines.store.checkpoint(OLD, 2).state is CheckpointState.COMMITTING
    restored(pipelines, newer, Later.REFUSE)
    pipelines.run(OLD, 3)
    assert pipelines.have(1, 2, 3)


def test_a_restore_replaces_the_state_of_what_it_delivers(saved: tuple[Pipelines, str]) -> None:
    """It delivers checkpoint 2 under its own epoch, and then moves the pipeline back to 1."""
    pipelines, uri = saved
    pipelines.run(OLD, 2, "decided")
    restored(pipelines, uri, Later.WRITE_AGAIN)
    assert [each.number for each in retained(pipelines.store, OLD, 10)] == [1]
    with raises(ConfigurationError, "state_replaced", checkpoint=2):
        taking.take(pipelines.store, OLD, str(pipelines.folder / "savepoints"), "a test", 2)
    behind = pipelines.savepoint()
    assert read_metadata(behind).restored
    restored(pipelines, BEGINNING, Later.WRITE_AGAIN)
    with raises(StateConflictError, "rows_would_repeat"):
        restored(pipelines, behind, Later.REFUSE)


def test_a_restore_records_in_which_life_its_savepoint_was_taken(saved: tuple[Pipelines, str]) -> None:
    """`reset-state` needs that if the folder of the state is lost."""
    pipelines, _ = saved
    pipelines.run(OLD, 2)
    base = pipelines.store.pipeline(OLD).base
    assert base is not None
    remember_incarnation(SparkLocation.of(base), "orders/7-0")
    savepoint = pipelines.savepoint()
    restored(pipelines, savepoint, Later.REFUSE)
    pipelines.rename(savepoint)
    events = [pipelines.store.noted(name, Noted.RESTORED) for name in (OLD, NEW)]
    assert [event and event.detail["life"] for event in events] == ["orders/7-0"] * 2


def test_a_rename_in_a_full_refresh_waits_for_a_run(saved: tuple[Pipelines, str]) -> None:
    """Another savepoint alone does not help: it would have no positions, either."""
    pipelines, _ = saved
    pipelines.rename(BEGINNING, OLD, rename=False, later=Later.WRITE_AGAIN)
    with raises(StateConflictError, "rows_would_repeat", later=()) as caught:
        pipelines.rename(pipelines.savepoint())
    assert caught.error is not None and "Let a run deliver a checkpoint first" in caught.error.remedy
    pipelines.run(OLD, 2)
    pipelines.rename(pipelines.savepoint())


@pytest.fixture
def drained(saved: tuple[Pipelines, str], monkeypatch: pytest.MonkeyPatch) -> Pipelines:
    """Checkpoint 2 drains the pipeline."""
    pipelines, _ = saved
    store = pipelines.store
    publish: Any = store.publish

    def drain(*given: Any) -> None:
        before = store.position_before(OLD, given[2])
        assert before is not None
        publish(*given[:-2], None, marked({}, before))

    with monkeypatch.context() as patch:
        patch.setattr(store, "publish", drain)
        pipelines.run(OLD, 2)
    return pipelines


def reset(pipelines: Pipelines) -> None:
    """`airflow ft reset-state`."""
    store = pipelines.store
    base = store.pipeline(OLD).base
    assert base is not None
    read = local_path(base.location) / "sources/0/0"
    read.parent.mkdir(parents=True)
    read.write_text('\0v1\n{"orders":{"0":0}}')
    with new_epoch(store, OLD, Worker("", 1), "a test") as (epoch, _):
        reset_state(store, OLD, epoch, "a test")


def test_a_savepoint_of_a_drain_outlives_a_reset_beside_it(drained: Pipelines, monkeypatch: pytest.MonkeyPatch) -> None:
    """The state was dropped while its files were copied. The copy would emit the drained windows once more."""
    copy = taking._copy

    def and_reset(*given: Any) -> Any:
        copied = copy(*given)
        reset(drained)
        return copied

    monkeypatch.setattr(taking, "_copy", and_reset)
    uri = drained.savepoint()
    assert read_metadata(uri).drained
    with raises(StateConflictError, "pipeline_drained"):
        drained.rename(uri, OLD, rename=False)


def test_a_drained_pipeline_is_renamed_without_its_state(drained: Pipelines) -> None:
    pipelines, store = drained, drained.store
    with raises(StateConflictError, "pipeline_drained") as caught:
        pipelines.rename(pipelines.savepoint())
    assert caught.error is not None and "`airflow ft reset-state orders`" in caught.error.remedy
    reset(pipelines)
    pipelines.rename(pipelines.savepoint())
    assert store.pipeline(NEW).former == Former(OLD, 2, 3)


def test_a_rename_keeps_the_state_that_follows_a_drain(drained: Pipelines) -> None:
    """The pipeline has continued since (`resume_drained`), so a newer savepoint is all that it needs."""
    uri = drained.savepoint()
    drained.run(OLD, 3)
    with raises(StateConflictError, "pipeline_drained") as caught:
        drained.rename(uri)
    assert caught.error is not None and caught.error.remedy.startswith("Take another savepoint")
    drained.rename(drained.savepoint())
    assert drained.store.pipeline(NEW).former == Former(OLD, 3, 4)


def test_a_stop_after_a_restore_takes_another_savepoint(saved: tuple[Pipelines, str]) -> None:
    """The first try has taken one and died before it answered. Then a person restores an older one."""
    pipelines, uri = saved
    folder = str(pipelines.folder / "savepoints")
    pipelines.run(OLD, 2)
    first, _ = take_once(pipelines.store, OLD, folder, "ada", 1)
    assert take_once(pipelines.store, OLD, folder, "ada", 1)[0] == first
    restored(pipelines, uri, Later.WRITE_AGAIN)
    second, taken = take_once(pipelines.store, OLD, folder, "ada", 1)
    assert second != first and taken.batch == read_metadata(uri).batch
    assert take_once(pipelines.store, OLD, folder, "ada", 1)[0] == second
