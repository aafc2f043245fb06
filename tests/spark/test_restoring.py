"""Savepoints that are restored over real sinks, without Spark: each row comes once, unless a person wants more."""

from __future__ import annotations

from airflow_ft.protocol.errors import ConfigurationError
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
