"""Settle a pipeline before a restore: deliver decided numbers, and abort undecided ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from airflow_ft.protocol.coordinator import Coordinator, coordinating
from airflow_ft.protocol.errors import StateConflictError, require_understood
from airflow_ft.protocol.lease import Worker
from airflow_ft.protocol.model import Checkpoint, CheckpointState
from airflow_ft.protocol.participant import ParticipantFactory
from airflow_ft.protocol.pipelines import Pipeline
from airflow_ft.protocol.planning import quarantined
from airflow_ft.protocol.recovery import give_up_undecided

if TYPE_CHECKING:
    from airflow_ft.protocol.delivery_log import DeliveryLog


def require_settleable(row: Pipeline, opened: Sequence[Checkpoint]) -> None:
    """StateConflictError when it is halted, or something of it is in quarantine."""
    require_understood(row)
    if (halt := row.halt) is not None:
        raise StateConflictError(
            f"the pipeline is {halt.headline}",
            code="pipeline_halted",
            remedy=halt.remedy,
            pipeline=row.name,
            reason=halt.reason,
        )
    if in_quarantine := quarantined(opened):
        raise StateConflictError(
            "the checkpoint is QUARANTINED. A person must decide what happens to its rows.",
            code="checkpoint_quarantined",
            remedy=f"Run `airflow ft in-doubt --pipeline {row.name}`. It shows what you can do.",
            pipeline=row.name,
            checkpoint=in_quarantine[0].number,
        )


@contextmanager
def settled(
    store: DeliveryLog, name: str, participants: ParticipantFactory, worker: Worker, why: str, lease_seconds: float
) -> Iterator[int]:
    """Holds a pipeline of which nothing is under way; its new epoch. Raises as `coordinating` does."""
    with coordinating(store, name, participants, worker, why, lease_seconds) as (coordinator, keeper):
        _settle(store, name, coordinator, why)
        keeper.check()
        yield coordinator.epoch


def _settle(store: DeliveryLog, name: str, coordinator: Coordinator, why: str) -> None:
    """Deliver decided numbers, and abort undecided ones."""
    for checkpoint in store.open_checkpoints(name):
        if checkpoint.state is CheckpointState.COMMITTING or checkpoint.rollback_pending:
            coordinator.deliver(checkpoint.number)
    give_up_undecided(store, name, coordinator, why)
