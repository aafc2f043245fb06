"""Finish the work of earlier runs: redo what was decided, settle what is in doubt. Idempotent."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from airflow_ft.protocol.coordinator import Coordinator, coordinating
from airflow_ft.protocol.decision_log import QueryLog
from airflow_ft.protocol.delivery_log import DeliveryLog
from airflow_ft.protocol.errors import StateConflictError
from airflow_ft.protocol.lease import LEASE_SECONDS, Worker
from airflow_ft.protocol.model import AfterAbort, Checkpoint, CheckpointState, RunKey
from airflow_ft.protocol.participant import ParticipantFactory
from airflow_ft.protocol.planning import is_half_prepared, live_plans, quarantined, stranded
from airflow_ft.protocol.reasons import AbortReason
from airflow_ft.protocol.transitions import IN_DOUBT

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Recovery:
    """Result of a recovery: numbers found in doubt and how each ended; empty when there was nothing to do."""

    settled: tuple[tuple[int, CheckpointState], ...] = ()

    @property
    def completed(self) -> tuple[int, ...]:
        """Numbers that it brought to COMPLETED."""
        return tuple(number for number, state in self.settled if state is CheckpointState.COMPLETED)


def in_doubt(store: QueryLog, pipeline: str, min_age: timedelta = timedelta(0)) -> Sequence[Checkpoint]:
    """Return what has been in doubt for at least `min_age` (by the store's clock), ascending.

    PREPARED and COMMITTING numbers, and ABORTED ones of which a participant may still hold prepared rows. What comes
    after one that is younger, or QUARANTINED, waits for it (I4): no sink could take it yet.
    """
    now = store.now()
    found: list[Checkpoint] = []
    waits = False
    for checkpoint in store.open_checkpoints(pipeline):
        is_old = _is_old(checkpoint.in_doubt_since, now, min_age)
        if checkpoint.state in IN_DOUBT:
            waits = waits or not is_old
            if not waits:
                found.append(checkpoint)
        elif checkpoint.rollback_pending and is_old:
            found.append(checkpoint)
        waits = waits or checkpoint.state is CheckpointState.QUARANTINED
    return found


def half_prepared(store: QueryLog, pipeline: str, min_age: timedelta = timedelta(0)) -> Sequence[Checkpoint]:
    """Return STAGED numbers of which a TWO_PHASE participant may hold prepared rows, ascending; untouched for
    `min_age`.

    A `prepare` died, or another participant's did. Until a process continues, the prepared rows keep their locks.
    """
    now = store.now()
    found: list[Checkpoint] = []
    for checkpoint in store.open_checkpoints(pipeline):
        in_doubt = checkpoint.state in IN_DOUBT
        is_young = in_doubt and not _is_old(checkpoint.in_doubt_since, now, min_age)
        if checkpoint.state is CheckpointState.QUARANTINED or is_young:
            break  # I4: what comes after it waits
        if is_half_prepared(checkpoint):
            newest = store.events(pipeline, checkpoint.number, 1)
            if all(_is_old(event.at, now, min_age) for event in newest):
                found.append(checkpoint)
    return found


def _is_old(since: datetime, now: datetime, min_age: timedelta) -> bool:
    """Return whether it is at least `min_age` old, or as far in the future: then the log's clock was ahead (I7)."""
    return abs(now - since) >= min_age


def recover(
    store: DeliveryLog,
    pipeline: str,
    participants: ParticipantFactory,
    worker: Worker,
    *,
    run: RunKey | None = None,
    min_age: timedelta = timedelta(0),
    lease_seconds: float = LEASE_SECONDS,
    who: str = "",
    only_decided: bool = False,
) -> Recovery:
    """Settle every number in doubt by repeating its steps under the same marker; takes no epoch if none is.

    With `run` (a DAG run's own recover, which has the turn) rows stranded by an abort get a number of their own.
    Without it STAGED numbers are left to their run, unless a sink holds prepared rows of them that no process
    continues (`half_prepared`). `min_age` should then be the orphan age, so that a healthy run between two of its
    tasks is not fenced. `who` goes into the event log. `only_decided` leaves what could still be aborted as it is.
    Raises what the steps raise; all that was settled before stays settled.
    """
    doubtful = [*in_doubt(store, pipeline, min_age)]
    if only_decided:
        doubtful = [c for c in doubtful if c.state is CheckpointState.COMMITTING or c.rollback_pending]
    elif run is None:
        doubtful += half_prepared(store, pipeline, min_age)
    doubtful = _with_those_before(doubtful, store.open_checkpoints(pipeline))
    left_behind = stranded(store.open_checkpoints(pipeline)) if run is not None else []
    if not doubtful and not left_behind:
        log.info("pipeline %s: no checkpoint is in doubt", pipeline)
        return Recovery()
    why = f"{who or 'recover'}: {len(doubtful)} in doubt, {len(left_behind)} to be carried"
    with coordinating(store, pipeline, participants, worker, why, lease_seconds) as (coordinator, keeper):
        settled = []
        for checkpoint in doubtful:
            keeper.check()
            what = "rolling back its prepared rows" if checkpoint.rollback_pending else "delivering it under its marker"
            log.info("checkpoint %d is %s: %s", checkpoint.number, checkpoint.state, what)
            after = coordinator.deliver(checkpoint.number)
            settled.append((after.number, after.state))
        if run is not None:
            coordinator.carry_stranded(run)
    return Recovery(tuple(settled))


def _with_those_before(doubtful: Sequence[Checkpoint], opened: Sequence[Checkpoint]) -> list[Checkpoint]:
    """Add planned numbers before a number in doubt, which waits for them (I4): no other process would settle them.

    They were skipped when a late attempt withdrew its vote. They are at least as old as that number, so no process
    works on them either.
    """
    newest = max((checkpoint.number for checkpoint in doubtful if not checkpoint.rollback_pending), default=0)
    numbers = {checkpoint.number for checkpoint in doubtful}
    passed_by = [c for c in live_plans(opened) if c.number < newest and c.number not in numbers]
    return sorted([*doubtful, *passed_by], key=lambda checkpoint: checkpoint.number)


def give_up_undecided(store: DeliveryLog, pipeline: str, coordinator: Coordinator, why: str) -> bool:
    """Drop published rows that are not decided, to compute them again (a person's rewind). Return whether any exist.

    StateConflictError when something is COMMITTING or QUARANTINED: a sink may show its rows already.
    """
    opened = store.open_checkpoints(pipeline)
    for planned in [*live_plans(opened), *quarantined(opened)]:
        if planned.state in (CheckpointState.COMMITTING, CheckpointState.QUARANTINED):
            raise StateConflictError(
                f"it is {planned.state}, so a sink may already show its rows.",
                code="action_refused",
                remedy=f"Settle it first: `airflow ft in-doubt --pipeline {pipeline}` shows how.",
                state=planned.state.value,
                pipeline=pipeline,
                checkpoint=planned.number,
            )
    planned_now = live_plans(store.open_checkpoints(pipeline))
    if planned_now:
        coordinator.abort(planned_now[0].number, AbortReason.USER, why, AfterAbort.REWOUND)
    undelivered = [c for c in store.open_checkpoints(pipeline) if c.is_undelivered]
    if undelivered:
        first = min(c.number for c in undelivered)
        store.rewind(pipeline, coordinator.epoch, first, store.position_before(pipeline, first), why)
    return bool(planned_now or undelivered)
