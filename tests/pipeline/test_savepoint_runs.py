"""A run that starts from a savepoint restores it before it delivers what could still be aborted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_ft.pipeline import steps as pipeline_steps
from airflow_ft.protocol import steps
from airflow_ft.protocol.errors import ConfigurationError, StateConflictError
from airflow_ft.protocol.from_savepoint import FromSavepoint
from airflow_ft.protocol.lease import Worker
from airflow_ft.protocol.model import CheckpointState, RunKey
from airflow_ft.protocol.pipelines import PipelineStatus
from airflow_ft.protocol.recovery import Recovery
from airflow_ft.store.decision_log import DecisionLog
from tests.raising import raises
from tests.spark.test_renaming import NEW, OLD, Pipelines


@pytest.fixture
def pipelines(tmp_path: Path) -> Iterator[Pipelines]:
    """The pipeline has delivered offset 1."""
    made = Pipelines(tmp_path)
    made.store.register(OLD)
    made.run(OLD, 1)
    yield made
    made.store.close()


def run(pipelines: Pipelines, name: str = OLD, run_id: str = "run-2") -> steps.Context[DecisionLog]:
    return steps.Context(
        pipelines.store, name, RunKey("dag", run_id), pipelines.participants, Worker("", 1), run_is_over=lambda _: True
    )


def recover(pipelines: Pipelines, savepoint: FromSavepoint, name: str = OLD, run_id: str = "run-2") -> tuple[int, ...]:
    root = str(pipelines.folder / "wal")
    recovery: Recovery = pipeline_steps.recover(run(pipelines, name, run_id), savepoint, {}, root)
    return recovery.completed


def test_a_run_aborts_undecided_rows_as_it_restores(pipelines: Pipelines) -> None:
    uri = pipelines.savepoint()
    pipelines.run(OLD, 2, "prepared")
    assert recover(pipelines, FromSavepoint(uri)) == ()
    assert pipelines.store.checkpoint(OLD, 2).state is CheckpointState.ABORTED
    assert pipelines.have(1)


def test_a_refused_restore_delivers_decided_rows(pipelines: Pipelines) -> None:
    uri = pipelines.savepoint()
    pipelines.run(OLD, 2, "decided")
    with raises(StateConflictError, "rows_would_repeat", later=(2,)):
        recover(pipelines, FromSavepoint(uri))
    assert pipelines.have(1, 2)
    assert recover(pipelines, FromSavepoint(uri, later="write-again")) == ()


def test_a_run_decides_nothing_before_its_restore(pipelines: Pipelines) -> None:
    uri = pipelines.savepoint()
    pipelines.run(OLD, 2, "prepared")
    mistyped = FromSavepoint(f"{uri}-mistyped")
    with pytest.raises(ConfigurationError):
        recover(pipelines, mistyped)
    for participant in pipelines.delivery.names:
        assert pipeline_steps.commit(run(pipelines), participant, mistyped) == []
    assert pipelines.store.checkpoint(OLD, 2).state is CheckpointState.PREPARED
    recover(pipelines, FromSavepoint(uri), run_id="run-3")
    assert pipelines.have(1)


def test_a_run_renames_again_after_the_old_name_was_resumed(pipelines: Pipelines) -> None:
    renaming = FromSavepoint(pipelines.savepoint(), rename=True)
    recover(pipelines, renaming, NEW)
    pipelines.store.resume(OLD, "ada")
    recover(pipelines, renaming, NEW, "run-3")
    assert pipelines.store.pipeline(OLD).status is PipelineStatus.RENAMED
    pipelines.run(NEW, 2)
    assert pipelines.have(1, 2)
