"""A run that starts from a savepoint restores it before it delivers what could still be aborted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest

from airflow_ft.pipeline import steps as pipeline_steps
from airflow_ft.pipeline.barriers import BarrierGate
from airflow_ft.pipeline.checkpoints import Gate
from airflow_ft.pipeline.resolved import DeliveryContext
from airflow_ft.protocol import steps
from airflow_ft.protocol.config import CheckpointConfig
from airflow_ft.protocol.connections import missing_connection
from airflow_ft.protocol.errors import ConfigurationError, NotDeliveredError, PipelineHaltedError, StateConflictError
from airflow_ft.protocol.from_savepoint import BEGINNING, FromSavepoint, Later
from airflow_ft.protocol.lease import Worker
from airflow_ft.protocol.model import CheckpointState, RunKey
from airflow_ft.protocol.pipelines import PipelineStatus
from airflow_ft.protocol.recovery import Recovery
from airflow_ft.store.decision_log import DecisionLog
from tests.raising import raises
from tests.spark.test_renaming import NEW, OLD, RUN, Pipelines

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


@pytest.fixture
def pipelines(tmp_path: Path) -> Iterator[Pipelines]:
    """The pipeline has delivered offset 1."""
    made = Pipelines(tmp_path)
    made.store.register(OLD)
    made.run(OLD, 1)
    yield made
    made.store.close()


def run(
    pipelines: Pipelines, name: str = OLD, run_id: str = "run-2", try_number: int = 1
) -> steps.Context[DecisionLog]:
    worker = Worker("", try_number)
    return steps.Context(
        pipelines.store, name, RunKey("dag", run_id), pipelines.participants, worker, run_is_over=lambda _: True
    )


def recover(
    pipelines: Pipelines, savepoint: FromSavepoint, name: str = OLD, run_id: str = "run-2", try_number: int = 1
) -> tuple[int, ...]:
    root = str(pipelines.folder / "wal")
    recovery: Recovery = pipeline_steps.recover(run(pipelines, name, run_id, try_number), savepoint, {}, root)
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
        assert pipeline_steps.commit(run(pipelines), participant, restores=True) == []
    config = CheckpointConfig(quarantine_after=timedelta(microseconds=1))
    delivery = DeliveryContext(wal_root=str(pipelines.folder / "wal"), checkpointing=config)
    with pytest.raises(NotDeliveredError):
        pipeline_steps.confirm(run(pipelines), delivery, {}, missing_connection, restores=True)
    assert pipelines.store.checkpoint(OLD, 2).state is CheckpointState.PREPARED
    recover(pipelines, FromSavepoint(uri), run_id="run-3")
    assert pipelines.have(1)


def test_a_cleared_run_restores_nothing_after_later_runs(pipelines: Pipelines) -> None:
    """It failed before its restore, and the next run was given the same form."""
    again = FromSavepoint(pipelines.savepoint(), later="write-again")
    with pytest.raises(ConfigurationError):
        recover(pipelines, FromSavepoint(f"{again.path}-mistyped", later="write-again"))
    recover(pipelines, again, run_id="run-3")
    pipelines.run(OLD, 2)
    for late in (again, FromSavepoint(BEGINNING, later="write-again")):
        with raises(StateConflictError, "action_refused", run="dag/run-2", other="dag/run-3"):
            recover(pipelines, late, try_number=2)
    recover(pipelines, again, run_id="run-4")


def test_a_run_that_waited_for_others_restores(pipelines: Pipelines) -> None:
    again = FromSavepoint(pipelines.savepoint(), later="write-again")
    first, second, third = (RunKey("dag", f"run-{n}") for n in (1, 2, 3))
    for each in (first, second, third):
        assert pipelines.store.enter_turn(OLD, each, None) == first
    pipelines.run(OLD, 2)
    pipelines.store.leave_turn(OLD, first)
    assert pipelines.store.enter_turn(OLD, third, None) == third
    pipelines.store.leave_turn(OLD, third)
    recover(pipelines, again)
    assert pipelines.store.checkpoint(OLD, 2).state is CheckpointState.COMPLETED


def test_a_run_renames_again_after_the_old_name_was_resumed(pipelines: Pipelines) -> None:
    renaming = FromSavepoint(pipelines.savepoint(), rename=True)
    recover(pipelines, renaming, NEW)
    pipelines.store.resume(OLD, "ada")
    for other in (BEGINNING, renaming.path):
        with raises(PipelineHaltedError, "pipeline_renamed", new=OLD):
            recover(pipelines, FromSavepoint(other), NEW, "run-3")
    recover(pipelines, renaming, NEW, "run-3")
    assert pipelines.store.pipeline(OLD).status is PipelineStatus.RENAMED
    pipelines.run(NEW, 2)
    assert pipelines.have(1, 2)


@pytest.mark.parametrize("refresh", [True, False], ids=["full refresh", "savepoint"])
def test_gates_close_until_rows_are_delivered_again(pipelines: Pipelines, refresh: bool) -> None:
    """The sinks that a full refresh fills may have been emptied before."""
    store, uri = pipelines.store, BEGINNING if refresh else pipelines.savepoint()
    pipelines.run(OLD, 2)
    gates: dict[str, Callable[[], object]] = {
        "barrier": partial(BarrierGate((OLD,), at=LONG_AGO).is_open, store),
        "time": partial(Gate(as_of=LONG_AGO).is_open, store, OLD),
        "run": partial(Gate(run=RUN).is_open, store, OLD),
    }

    def opened() -> set[str]:
        return {name for name, is_open in gates.items() if is_open()}

    assert opened() == set(gates)
    pipelines.rename(uri, OLD, rename=False, later=Later.WRITE_AGAIN)
    assert opened() == {"run"}
    pipelines.run(OLD, 3)
    assert opened() == set(gates)


def test_a_gate_for_a_number_reopens_with_a_complete_run(pipelines: Pipelines) -> None:
    """Checkpoint 2 was rewound, so only a complete run shows that its rows are confirmed."""
    uri, gate = pipelines.savepoint(), Gate(number=3)
    pipelines.run(OLD, 2, "prepared")
    recover(pipelines, FromSavepoint(uri))
    pipelines.run(OLD, 2)
    assert gate.is_open(pipelines.store, OLD)
    pipelines.rename(uri, OLD, rename=False, later=Later.WRITE_AGAIN)
    assert not gate.is_open(pipelines.store, OLD)
    pipelines.run(OLD, 3)
    assert gate.is_open(pipelines.store, OLD)
