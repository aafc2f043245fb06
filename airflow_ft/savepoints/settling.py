"""A pipeline that is to go on from elsewhere: what is decided is delivered first, and what is not is given up."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_ft.core.coordinator import Coordinator
from airflow_ft.core.errors import StateConflictError
from airflow_ft.core.model import Checkpoint, CheckpointState, Pipeline, PipelineStatus
from airflow_ft.core.planning import quarantined
from airflow_ft.core.ports import Store
from airflow_ft.core.recovery import give_up_undecided


def require_settleable(row: Pipeline, opened: Sequence[Checkpoint]) -> None:
    """StateConflictError when it is halted, or something of it is in quarantine."""
    if row.status is PipelineStatus.HALTED:
        raise StateConflictError(
            f"it is HALTED ({row.halt_reason}): {row.halt_message}",
            remedy=f"mend that first, and `airflow ft resume {row.name}`.",
            pipeline=row.name,
        )
    if in_quarantine := quarantined(opened):
        raise StateConflictError(
            "it is QUARANTINED: a person has to say what becomes of it.",
            remedy=f"`airflow ft in-doubt --pipeline {row.name}`.",
            pipeline=row.name,
            checkpoint=in_quarantine[0].number,
        )


def settle(store: Store, name: str, coordinator: Coordinator, why: str) -> None:
    """What is decided is delivered, what is not is given up."""
    for checkpoint in store.open_checkpoints(name):
        if checkpoint.state is CheckpointState.COMMITTING or checkpoint.rollback_pending:
            coordinator.deliver(checkpoint.number)
    give_up_undecided(store, name, coordinator, why)
