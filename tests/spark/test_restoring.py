"""Savepoints that are restored over real sinks, without Spark: each row comes once, unless a person wants more."""

from __future__ import annotations

from shutil import copytree, ignore_patterns, rmtree

import pytest

from airflow_ft.protocol.errors import ConfigurationError, StateConflictError
from airflow_ft.protocol.from_savepoint import Later
from airflow_ft.spark.state.catching_up import FOLDER
from airflow_ft.spark.state.location_files import batches
from tests.raising import raises
from tests.spark.test_renaming import OLD, Pipelines, pipelines, saved

__all__ = ["pipelines", "saved"]


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
        with raises(ConfigurationError, "rebuild_impossible"):
            restored(pipelines, uri, Later.CONTINUE)
        restored(pipelines, behind, Later.REFUSE)
    restored(pipelines, newest, Later.REFUSE)
    assert restored(pipelines, uri, Later.CONTINUE) == [2, 3]
    restored(pipelines, behind, Later.WRITE_AGAIN)
    pipelines.run(OLD, 3)
    assert restored(pipelines, uri, Later.CONTINUE) == [2, 3]


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
        with raises(StateConflictError, "store_behind_sink", pipeline=OLD):
            restored(pipelines, newer, later)
    pipelines.rename(newer, rename=False)
